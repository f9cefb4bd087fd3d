"""What can go wrong while a stack starts, each as one sentence that says what to do.

DevstackError
├── WrongMachineError     a tool or an account is missing
├── NoNetworkError        a download did not answer
├── WrongDigestError      what came is not what `jars.lock` names
├── PortTakenError        somebody else listens where this stack must
├── DiskFullError         no space, or no right to write
├── StartFailedError      a process of the stack died or did not become ready
├── NotRunningError       nothing to talk to: `make up` first
└── MalformedGrantError   a token was asked for somebody who cannot be
"""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class DevstackError(Exception):
    """A sentence for the developer; printed as it is, without a traceback."""


class WrongMachineError(DevstackError):
    """A tool or an account that the stack needs is missing on this machine."""


class NoNetworkError(DevstackError):
    """A download did not answer."""


class WrongDigestError(DevstackError):
    """A downloaded file is not the one that the lock names."""


class PortTakenError(DevstackError):
    """Another process listens on a port that was asked for."""


class DiskFullError(DevstackError):
    """The state folder cannot be written."""


class StartFailedError(DevstackError):
    """A process of the stack died, or did not become ready in time."""


class NotRunningError(DevstackError):
    """No stack is running in this state folder."""


class MalformedGrantError(DevstackError):
    """A token was asked for a sub, tenant or environment that no token of Access has."""


@contextmanager
def disk_faults(folder: Path) -> Generator[None]:
    """Turn the operating system's disk errors below `folder` into DiskFullError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"The disk of {folder} is full: free some space and start again."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise DiskFullError(
                f"{error.filename or folder} cannot be written: make it writable for you, or set "
                "RELAY_STATE_DIR to a folder that is."
            ) from error
        raise
