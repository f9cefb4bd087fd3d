"""The schema registry, when one is configured: ids of our schemas, texts of foreign ids."""

# The client's stubs leave its configuration dictionary untyped.
# pyright: reportUnknownMemberType=false
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from relay_common.errors import Busy

NEVER_THERE = 404


class Registry:
    """A thin view of one registry. `mock://…` is an empty one in memory, for tests."""

    def __init__(self, url: str) -> None:
        self.client = SchemaRegistryClient.new_client({"url": url})

    def id_of(self, subject: str, text: str) -> int:
        """Return the id under which `text` is registered for `subject`; nothing is registered here.

        Raises SchemaRegistryError when it is not registered or the registry does not answer.
        """
        return int(self.client.lookup_schema(subject, Schema(text, "AVRO")).schema_id or 0)

    def register(self, subject: str, text: str) -> int:
        """Register `text` for `subject` (deployment and tests) and return its id."""
        return self.client.register_schema(subject, Schema(text, "AVRO"))

    def text_of(self, number: int) -> str | None:
        """Return the schema text of id `number`, None when the registry has no such id.

        Raises Busy while the registry does not answer: that is no fault of the record.
        """
        try:
            return self.client.get_schema(number).schema_str
        except SchemaRegistryError as error:
            if error.http_status_code == NEVER_THERE:
                return None
            raise Busy("schema registry does not answer") from error
        except Exception as error:  # the client lets its HTTP library's own errors through
            raise Busy("schema registry is unreachable") from error
