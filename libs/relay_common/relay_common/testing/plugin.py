"""Fixtures on real parts. Loaded by pytest for the whole workspace.

RELAY_TEST_DATABASE_URL and RELAY_TEST_KAFKA_BOOTSTRAP name parts that run already; without them
the devstack starts its own for the session.
"""

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer

from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Clock, Database, Template
from relay_common.testing.issuer import Issuer
from relay_common.testing.memory import SWEEPING, left_behind, quick_folder
from relay_common.testing.workers import ByFile


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Say which tests share a worker."""
    return ByFile(config, log)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The superuser's URL of a real server."""
    given = os.environ.get("RELAY_TEST_DATABASE_URL")
    if given:
        yield given
        return
    from relay_devstack.locks import only_one  # noqa: PLC0415 -- only where it is needed
    from relay_devstack.postgres import PostgresServer  # noqa: PLC0415 -- only where it is needed
    from relay_devstack.providers import choose  # noqa: PLC0415 -- only where it is needed

    with only_one(SWEEPING):
        for folder in left_behind():
            PostgresServer(folder).destroy()
            shutil.rmtree(folder, ignore_errors=True)
    with quick_folder() as folder:
        server = choose().postgres(folder)
        try:
            server.start()
            yield server.url
        finally:
            server.destroy()


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real broker."""
    given = os.environ.get("RELAY_TEST_KAFKA_BOOTSTRAP")
    if given:
        yield given
        return
    from relay_devstack.providers import choose  # noqa: PLC0415 -- only where it is needed

    cluster = choose().kafka(tmp_path_factory.mktemp("kafka"))
    try:
        cluster.start()
        yield cluster.bootstrap
    finally:
        gc.collect()  # clients of ended tests would complain that it is gone
        cluster.destroy()


@pytest.fixture(scope="session")
def database_template(postgres_url: str) -> Iterator[Template]:
    """The migrated database of this run."""
    template = Template(postgres_url)
    yield template
    template.drop(template.name)


@pytest.fixture
def database(database_template: Template) -> Iterator[Database]:
    """A fresh migrated database for one test."""
    with database_template.clone() as fresh:
        yield fresh


@pytest.fixture
def clock(database: Database) -> Clock:
    """relay.now() of `database`, to shift, freeze and thaw."""
    return Clock(database)


@pytest.fixture
def topics(kafka_bootstrap: str) -> Iterator[Topics]:
    """Topics of one test: `topics.create("relay.events")` returns the full name."""
    made = Topics(kafka_bootstrap)
    yield made
    made.close()


@pytest.fixture(scope="session")
def issuer() -> Issuer:
    """Signs access tokens; give `issuer.fetch_jwks` to the verifier."""
    return Issuer()


@pytest.fixture(scope="session")
def jwks_url(issuer: Issuer) -> Iterator[str]:
    """Where processes read the issuer's keys."""
    with issuer.serve_jwks() as url:
        yield url


def repository() -> Path:
    """Return the root of the checkout, for tests that read committed files."""
    return Path(__file__).parents[4]
