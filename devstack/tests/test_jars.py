"""Kafka's jars arrive by every way this machine has, and only as the lock names them."""

import hashlib
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from maven_artifact import Downloader
from relay_devstack import jars
from relay_devstack.errors import NoNetworkError, WrongDigestError

WAYS = {"mvn": jars.fetch_with_maven, "maven-artifact": jars.fetch_with_wheel}


@pytest.fixture(scope="session")
def maven_central() -> str:
    address = os.environ.get("RELAY_MAVEN_URL") or Downloader().resolver.base
    try:
        httpx.head(address, timeout=10, follow_redirects=True)
    except httpx.TransportError as error:
        pytest.skip(f"{address} does not answer: {error}")
    return address


@pytest.mark.parametrize("way", WAYS)
def test_every_jar_of_the_lock_arrives(way: str, tmp_path: Path, maven_central: str) -> None:
    if way == "mvn" and shutil.which("mvn") is None:
        pytest.skip("mvn is not on the PATH")
    wanted = jars.read_lock()
    WAYS[way](wanted, tmp_path, lambda _: None)
    assert len(wanted) == 45
    for jar in wanted:
        jars.check(jar, tmp_path / jar.file_name)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Maven mirror of this test, and a machine without mvn."""
    folder = tmp_path / "mirror"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("RELAY_MAVEN_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("PATH", str(tmp_path))
        yield folder
        server.shutdown()


def lock_of_one(folder: Path, content: bytes) -> Path:
    lock = folder / "jars.lock"
    lock.write_text(f"# a lock\norg.example:thing:1.0 {hashlib.sha256(content).hexdigest()}\n")
    return lock


def publish(mirror: Path, content: bytes) -> None:
    place = mirror / "org" / "example" / "thing" / "1.0"
    place.mkdir(parents=True)
    (place / "thing-1.0.jar").write_bytes(content)


def test_what_the_lock_names_is_kept(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, b"the right one")
    cache = tmp_path / "cache"
    said: list[str] = []
    jars.fetch_missing(said.append, cache, lock_of_one(tmp_path, b"the right one"))
    assert (cache / "thing-1.0.jar").read_bytes() == b"the right one"
    assert said[-1] == "fetching Kafka: 1 of 1 jars"


def test_another_digest_is_refused_and_not_kept(mirror: Path, tmp_path: Path) -> None:
    publish(mirror, b"another one")
    cache = tmp_path / "cache"
    with pytest.raises(WrongDigestError, match=r"thing-1\.0\.jar has the SHA-256 .* try again"):
        jars.fetch_missing(lambda _: None, cache, lock_of_one(tmp_path, b"the right one"))
    assert not list(cache.glob("*.jar"))


def test_a_jar_the_mirror_lacks_is_a_sentence(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(NoNetworkError, match="set RELAY_MAVEN_URL to a mirror"):
        jars.fetch_missing(lambda _: None, tmp_path / "cache", lock_of_one(tmp_path, b""))


def test_no_network_is_a_sentence(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_MAVEN_URL", "http://127.0.0.1:9")
    with pytest.raises(NoNetworkError, match="check the network or the proxy"):
        jars.fetch_missing(lambda _: None, tmp_path / "cache", lock_of_one(tmp_path, b""))
