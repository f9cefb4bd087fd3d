"""How large a run is: sizes and repetitions of `--quick`, the default and `--full`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """Sizes of one run. Counts are rows or events, times are seconds."""

    name: str
    repetitions: int
    events: int
    open_sizes: tuple[int, ...]
    open_default: int
    history: int
    batch_sizes: tuple[int, ...]
    fan_outs: tuple[int, ...]
    latency_seconds: float
    http_seconds: float
    replies: int
    expiring: int
    idle_seconds: float
    quiet_mailboxes: int
    hot_seconds: float
    shared_buffers: str


QUICK = Profile(
    name="quick",
    repetitions=1,
    events=60_000,
    open_sizes=(10_000, 100_000),
    open_default=100_000,
    history=0,
    batch_sizes=(500, 2000),
    fan_outs=(1, 100, 1000),
    latency_seconds=4.0,
    http_seconds=3.0,
    replies=1000,
    expiring=5_000,
    idle_seconds=3.0,
    quiet_mailboxes=500,
    hot_seconds=6.0,
    shared_buffers="1GB",
)
DEFAULT = Profile(
    name="default",
    repetitions=3,
    events=160_000,
    open_sizes=(10_000, 100_000, 1_000_000),
    open_default=1_000_000,
    history=0,
    batch_sizes=(500, 2000, 5000),
    fan_outs=(1, 100, 10_000),
    latency_seconds=10.0,
    http_seconds=8.0,
    replies=3000,
    expiring=50_000,
    idle_seconds=10.0,
    quiet_mailboxes=5000,
    hot_seconds=60.0,
    shared_buffers="6GB",
)
FULL = Profile(
    name="full",
    repetitions=5,
    events=200_000,
    open_sizes=(10_000, 100_000, 1_000_000, 5_000_000),
    open_default=1_000_000,
    history=10_000_000,
    batch_sizes=(100, 500, 2000, 5000),
    fan_outs=(1, 100, 10_000),
    latency_seconds=20.0,
    http_seconds=10.0,
    replies=5000,
    expiring=50_000,
    idle_seconds=30.0,
    quiet_mailboxes=5000,
    hot_seconds=60.0,
    shared_buffers="6GB",
)
PROFILES = {profile.name: profile for profile in (QUICK, DEFAULT, FULL)}
