"""The topics of a stack, as `schemas/topics/*.yaml` describe them."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import yaml
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relay_devstack.errors import StartFailedError
from relay_devstack.layout import ROOT

CreateTopics = Callable[[list[NewTopic]], dict[str, "Future[None]"]]
FOLDER = ROOT / "schemas" / "topics"
DEFAULT_PARTITIONS = "4"  # production numbers are for clusters; a stack has one small broker


def create(bootstrap: str, environ: Mapping[str, str]) -> list[str]:
    """Create the missing topics and return their names.

    RELAY_TOPIC_PREFIX goes in front of each name; RELAY_DEVSTACK_PARTITIONS says how many
    partitions each gets. Raises StartFailedError when no broker answers.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    known = _known(admin, bootstrap)
    prefix = environ.get("RELAY_TOPIC_PREFIX", "")
    partitions = int(environ.get("RELAY_DEVSTACK_PARTITIONS", DEFAULT_PARTITIONS))
    wanted = [topic for topic in described(prefix, partitions) if topic.topic not in known]
    if wanted:
        _create(admin, wanted)
    return sorted(topic.topic for topic in wanted)


def described(prefix: str, partitions: int, folder: Path = FOLDER) -> list[NewTopic]:
    """Return every topic that `folder` describes, with its configuration."""
    return [_topic(file, prefix, partitions) for file in sorted(folder.glob("*.yaml"))]


def _topic(file: Path, prefix: str, partitions: int) -> NewTopic:
    described = cast(dict[str, object], yaml.safe_load(file.read_text()))
    config = cast(dict[str, object], described.get("config") or {})
    return NewTopic(
        prefix + str(described["topic"]),
        num_partitions=partitions,
        replication_factor=-1,  # the broker's default
        config={name: str(value) for name, value in config.items()},
    )


def _known(admin: AdminClient, bootstrap: str) -> set[str]:
    try:
        return set(admin.list_topics(timeout=15).topics)
    except KafkaException as error:
        raise StartFailedError(
            f"No Kafka answers at {bootstrap} ({error}): start it, or unset RELAY_KAFKA_BOOTSTRAP "
            "to get one."
        ) from error


def _create(admin: AdminClient, wanted: list[NewTopic]) -> None:
    create_topics = cast(CreateTopics, admin.create_topics)  # its stubs leave the future's type out
    for future in create_topics(wanted).values():
        _accept_existing(future.exception())


def _accept_existing(error: BaseException | None) -> None:
    if isinstance(error, KafkaException):
        reason = error.args[0]
        if isinstance(reason, KafkaError) and reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
    if error is not None:
        raise StartFailedError(f"Kafka refused to create a topic: {error}") from error
