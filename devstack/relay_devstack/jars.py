"""Kafka's 45 jars by committed coordinates and SHA-256.

They come through `mvn` where it is present, else through the `maven-artifact` wheel. Whoever
fetched a file, its digest is checked before it is used.
"""

import contextlib
import hashlib
import io
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Protocol, cast

from relay_devstack.errors import NoNetworkError, WrongDigestError, disk_faults
from relay_devstack.layout import ROOT
from relay_devstack.locks import only_one

LOCK = ROOT / "devstack" / "jars.lock"
CACHE = ROOT / ".relay" / "jars"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock."""

    group: str
    artifact: str
    version: str
    digest: str

    @property
    def file_name(self) -> str:
        """The name Maven gives the file."""
        return f"{self.artifact}-{self.version}.jar"


def read_lock(lock: Path = LOCK) -> list[Jar]:
    """Return the jars that `lock` names."""
    lines = [line.split() for line in lock.read_text().splitlines() if not line.startswith("#")]
    return [_jar(coordinates, digest) for coordinates, digest in lines]


def _jar(coordinates: str, digest: str) -> Jar:
    group, artifact, version = coordinates.split(":")
    return Jar(group, artifact, version, digest)


def folder() -> Path:
    """Return the folder with all jars; what is missing is fetched silently."""
    fetch_missing(lambda _: None)
    return CACHE


def fetch_missing(tell: Tell, cache: Path = CACHE, lock: Path = LOCK) -> None:
    """Make `cache` hold every jar of the lock; `tell` hears of progress.

    Raises NoNetworkError, WrongDigestError, DiskFullError.
    """
    with disk_faults(cache), only_one(cache / ".lock"):
        missing = [jar for jar in read_lock(lock) if not (cache / jar.file_name).exists()]
        if missing:
            fetch = fetch_with_maven if shutil.which("mvn") else fetch_with_wheel
            tell(f"fetching {len(missing)} jars of Kafka")
            _take_in(missing, fetch, tell, cache)


def _take_in(missing: list[Jar], fetch: "Fetch", tell: Tell, cache: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache) as arriving:
        fetch(missing, Path(arriving), tell)
        for jar in missing:
            check(jar, Path(arriving) / jar.file_name)
        for jar in missing:
            (Path(arriving) / jar.file_name).replace(cache / jar.file_name)


Fetch = Callable[[list[Jar], Path, Tell], None]


def check(jar: Jar, file: Path) -> None:
    """Raise WrongDigestError unless `file` is the jar that the lock names."""
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != jar.digest:
        raise WrongDigestError(
            f"{jar.file_name} has the SHA-256 {found}, but devstack/jars.lock names {jar.digest}: "
            "it was not kept; try again, and if it stays so ask whoever runs your Maven mirror."
        )


def fetch_with_maven(missing: list[Jar], target: Path, tell: Tell) -> None:
    """Copy `missing` into `target` through Maven, its settings and its local repository."""
    pom = target / "pom.xml"
    pom.write_text(_pom(missing))
    copy = ["mvn", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    options = [f"-DoutputDirectory={target}", "-DexcludeTransitive=true"]
    with subprocess.Popen(
        [*copy, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as maven:
        said = list(_progress(maven.stdout or (), len(missing), tell))
    if maven.returncode != 0:
        errors = [line.strip() for line in said if "ERROR" in line]
        raise NoNetworkError(_unreachable("mvn", errors[0] if errors else "no reason given"))


def _progress(lines: Iterable[str], total: int, tell: Tell) -> Iterator[str]:
    arrived = 0
    for line in lines:
        if re.match(r"(\[INFO\] )?Downloaded from .*\.jar", line):
            arrived += 1
            tell(f"fetching Kafka through mvn: {min(arrived, total)} of {total} jars")
        yield line


def fetch_with_wheel(missing: list[Jar], target: Path, tell: Tell) -> None:
    """Download `missing` into `target` from RELAY_MAVEN_URL or Maven Central."""
    arrived = 0
    with contextlib.redirect_stdout(io.StringIO()), ThreadPoolExecutor(6) as pool:
        for _ in pool.map(_download, missing, repeat(target)):
            arrived += 1
            tell(f"fetching Kafka: {arrived} of {len(missing)} jars")


class _Downloads(Protocol):
    """What the untyped wheel offers."""

    def download(self, artifact: object, filename: str) -> object: ...


def _download(jar: Jar, target: Path) -> None:
    from maven_artifact import Artifact, Downloader, RequestException  # noqa: PLC0415 -- slow, rare

    mirror = os.environ.get("RELAY_MAVEN_URL")
    downloader = Downloader(base=mirror) if mirror else Downloader()  # its own default is Central
    artifact = Artifact(jar.group, jar.artifact, jar.version)
    try:
        cast(_Downloads, downloader).download(artifact, str(target / jar.file_name))
    except RequestException as error:
        source = mirror or "Maven Central"
        raise NoNetworkError(_unreachable(source, str(error).strip())) from error


def _unreachable(source: str, reason: str) -> str:
    return (
        f"Kafka's jars could not be fetched through {source} ({reason}): check the network or the "
        "proxy, or set RELAY_MAVEN_URL to a mirror, or RELAY_KAFKA_BOOTSTRAP to a Kafka you have."
    )


def _pom(jars: list[Jar]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version></dependency>"
        for jar in jars
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>relay</groupId><artifactId>devstack</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
