"""librdkafka's own mock cluster, for faults that a real broker does not produce on demand."""

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

PRODUCE = 0  # the protocol's number of the Produce request
LIBRARIES = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
PRODUCER_TYPE = 0


class MockBroker:
    """One broker on a port of its own. It keeps topics in memory and fails when told to."""

    def __init__(self, library: ctypes.CDLL, cluster: int) -> None:
        self.library = library
        self.cluster = ctypes.c_void_p(cluster)
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        self.bootstrap: str = library.rd_kafka_mock_cluster_bootstraps(self.cluster).decode()

    def create(self, topic: str) -> None:
        """Create `topic` with one partition."""
        self.library.rd_kafka_mock_topic_create(self.cluster, topic.encode(), 1, 1)

    def fail_next(self, times: int, code: int) -> None:
        """Answer the next `times` Produce requests with error `code`."""
        errors = [ctypes.c_int(code)] * times
        self.library.rd_kafka_mock_push_request_errors(
            self.cluster, ctypes.c_int16(PRODUCE), ctypes.c_size_t(times), *errors
        )

    def down(self) -> None:
        """Drop all connections and accept none."""
        self.library.rd_kafka_mock_broker_set_down(self.cluster, ctypes.c_int32(1))

    def up(self) -> None:
        """Accept connections again."""
        self.library.rd_kafka_mock_broker_set_up(self.cluster, ctypes.c_int32(1))


@contextmanager
def mock_broker() -> Generator[MockBroker]:
    """Lend a mock broker."""
    library = ctypes.CDLL(str(next(LIBRARIES.glob("librdkafka*"))))
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    text = ctypes.create_string_buffer(256)
    configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
    handle = ctypes.c_void_p(
        library.rd_kafka_new(PRODUCER_TYPE, configuration, text, ctypes.sizeof(text))
    )
    cluster = library.rd_kafka_mock_cluster_new(handle, 1)
    try:
        yield MockBroker(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(ctypes.c_void_p(cluster))
        library.rd_kafka_destroy(handle)
