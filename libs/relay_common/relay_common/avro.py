"""Avro on the wire: our schemas from files, both framings read, nothing foreign trusted (§2).

    single object   C3 01 · CRC-64-AVRO fingerprint, little-endian · body
    Confluent       00 · schema id, big-endian · body       (written when a registry is configured)

A record that cannot be read raises Poison with a reason; it never takes the process down.
"""
# fastavro's stubs leave the element types of its containers open.
# pyright: reportUnknownMemberType=false

import io
import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import fastavro
from fastavro.schema import SchemaParseException, fingerprint, to_parsing_canonical_form

from relay_common.errors import Poison

if TYPE_CHECKING:
    from relay_common.registry import Registry

SCHEMA_DIR = Path(__file__).parents[3] / "schemas" / "avro"
SINGLE_OBJECT = b"\xc3\x01"
CONFLUENT = 0
MAX_VALUE_BYTES = 16 << 20
MAX_DEPTH = 16
MAX_FIELDS = 256
FILE_NAME = re.compile(r"^(?P<topic>[a-z_.]+)\.v(?P<version>[0-9]+)\.avsc$")

AvroSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """A schema of ours: its name (`relay.events.v1`), its parsed form and its fingerprint."""

    name: str
    version: int
    parsed: AvroSchema
    text: str
    fingerprint: bytes

    @property
    def topic(self) -> str:
        """The topic whose values it describes."""
        return self.name.rpartition(".v")[0]


@dataclass(frozen=True, slots=True)
class Writer:
    """How one framing was written: the name to report and the schemas to read it with."""

    name: str
    schema: AvroSchema
    reader: AvroSchema | None


def registry_at(url: str) -> "Registry":
    """Return the registry at `url`. Imported only here: few have one, and it is slow to import."""
    from relay_common.registry import Registry  # noqa: PLC0415 - half a second for every process

    return Registry(url)


class Codec:
    """Encodes and decodes the values of all topics. One per process; safe to share by threads."""

    def __init__(self, schema_dir: Path | None = None, registry_url: str | None = None) -> None:
        folder = schema_dir or Path(os.environ.get("RELAY_SCHEMA_DIR") or SCHEMA_DIR)
        self.known = {known.name: known for known in read_schemas(folder)}
        self.registry = registry_at(registry_url) if registry_url else None
        self.by_fingerprint = {k.fingerprint: self.writer(k) for k in self.known.values()}
        self.by_id: dict[int, Writer] = {}
        self.prefixes: dict[str, bytes] = {}

    def encode(self, schema: str, record: Mapping[str, object]) -> bytes:
        """Return `record` framed and encoded with `schema` (`relay.events.v1`).

        Raises ValueError for a record that does not fit, an unknown field or a time without offset.
        """
        for name, value in record.items():
            # fastavro would read a naive time in the time zone of this process.
            if isinstance(value, datetime) and value.tzinfo is None:
                raise ValueError(f"{schema}.{name}: expected a time with an offset, found {value}")
        out = io.BytesIO()
        out.write(self.prefix(schema))
        try:
            fastavro.schemaless_writer(
                out, self.known[schema].parsed, record, strict_allow_default=True
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"expected a record of {schema}, but {error}") from error
        return out.getvalue()

    def decode(self, value: bytes | None) -> tuple[str, dict[str, Any]]:
        """Return the writer's schema name and the record, shaped as the topic's newest version.

        Raises Poison with reason null_value, bad_magic, unknown_schema, truncated, trailing_bytes,
        invalid_utf8, invalid_value, too_deep or oversized; Busy while the registry is unreachable.
        """
        writer, offset = self.locate(value)
        body = io.BytesIO(cast(bytes, value))
        body.seek(offset)
        record = cast(dict[str, Any], read_body(body, writer))
        if body.tell() != len(cast(bytes, value)):
            raise Poison(
                "trailing_bytes", f"{len(cast(bytes, value)) - body.tell()} after the record"
            )
        return writer.name, record

    def prefix(self, schema: str) -> bytes:
        """Return the framing before a body of `schema`, for writers that pack by hand."""
        found = self.prefixes.get(schema)
        if found is None:
            known = self.known[schema]
            found = SINGLE_OBJECT + known.fingerprint
            if self.registry is not None:
                number = self.registry.id_of(f"{known.topic}-value", known.text)
                found = struct.pack(">bI", CONFLUENT, number)
            self.prefixes[schema] = found
        return found

    def split(self, value: bytes | None) -> tuple[str, int]:
        """Return the schema name of `value` and the offset of its body. Raises as decode does."""
        writer, offset = self.locate(value)
        return writer.name, offset

    def locate(self, value: bytes | None) -> tuple[Writer, int]:
        """Return who wrote `value` and where the body begins."""
        if value is None:
            raise Poison("null_value")
        if len(value) > MAX_VALUE_BYTES:
            raise Poison("oversized", f"{len(value)} bytes, at most {MAX_VALUE_BYTES}")
        if value[:2] == SINGLE_OBJECT and len(value) >= 10:
            writer = self.by_fingerprint.get(value[2:10])
            if writer is None:
                raise Poison("unknown_schema", f"fingerprint {value[2:10].hex()}")
            return writer, 10
        if value[:1] == b"\0" and len(value) >= 5:
            return self.registered(int.from_bytes(value[1:5], "big")), 5
        if value[:2] in (b"", SINGLE_OBJECT, SINGLE_OBJECT[:1]) or value[:1] == b"\0":
            raise Poison("truncated", f"{len(value)} bytes, not even a framing")
        raise Poison("bad_magic", f"first bytes {value[:2].hex()}")

    def registered(self, number: int) -> Writer:
        """Return the writer of registry id `number`, fetched once."""
        found = self.by_id.get(number)
        if found is None:
            text = self.registry.text_of(number) if self.registry is not None else None
            if text is None:
                raise Poison("unknown_schema", f"registry id {number}")
            found = self.by_id[number] = self.foreign(text)
        return found

    def foreign(self, text: str) -> Writer:
        """Return the writer for a schema of the registry that is safe and one of our records."""
        try:
            parsed = cast(AvroSchema, fastavro.parse_schema(json.loads(text)))
            check_safe(parsed, ())
            name = parsed["name"]
        except RecursionError as error:
            raise Poison("too_deep", "schema nests too deeply") from error
        except (SchemaParseException, ValueError, KeyError, TypeError) as error:
            raise Poison("unknown_schema", "registry holds no readable schema") from error
        mark = fingerprint_of(parsed)
        if mark in self.by_fingerprint:
            return self.by_fingerprint[mark]
        for known in sorted(self.known.values(), key=lambda k: -k.version):
            if known.parsed["name"] == name:
                return Writer(known.name, parsed, known.parsed)
        raise Poison("unknown_schema", f"record {name}")

    def writer(self, known: Known) -> Writer:
        """Return the writer for a schema of ours; older versions are read as the newest."""
        newest = max(
            (k for k in self.known.values() if k.topic == known.topic), key=lambda k: k.version
        )
        return Writer(known.name, known.parsed, None if newest is known else newest.parsed)


def read_body(body: io.BytesIO, writer: Writer) -> object:
    """Return the record at `body`, every failure of the reader turned into Poison."""
    try:
        return fastavro.schemaless_reader(body, writer.schema, writer.reader)
    except UnicodeDecodeError as error:
        raise Poison("invalid_utf8", f"at byte {error.start} of a string") from error
    except (EOFError, IndexError) as error:
        raise Poison("truncated", "a length or index points outside the value") from error
    except RecursionError as error:
        raise Poison("too_deep") from error
    except MemoryError as error:
        raise Poison("oversized", "a length asks for more memory than there is") from error
    except Exception as error:
        raise Poison("invalid_value", type(error).__name__) from error


def read_schemas(folder: Path) -> list[Known]:
    """Return the schemas of `folder`. Raises ValueError when there is none or a name is off."""
    found: list[Known] = []
    for path in sorted(folder.glob("*.avsc")):
        match = FILE_NAME.match(path.name)
        if match is None:
            raise ValueError(f"expected <topic>.v<N>.avsc, found {path.name}")
        text = path.read_text(encoding="utf-8")
        parsed = cast(AvroSchema, fastavro.parse_schema(json.loads(text)))
        check_safe(parsed, ())
        found.append(Known(path.stem, int(match["version"]), parsed, text, fingerprint_of(parsed)))
    if not found:
        raise ValueError(f"expected Avro schemas in {folder}, found none")
    return found


def fingerprint_of(parsed: AvroSchema) -> bytes:
    """Return the CRC-64-AVRO fingerprint as single-object encoding carries it: little-endian."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO"))


def check_safe(schema: object, inside: tuple[str, ...]) -> None:
    """Raise Poison for a schema whose values can blow up: recursion, depth, arrays and maps.

    fastavro reads a recursive record until the stack ends, and an `array<null>` of 2^28 items into
    memory. No schema of Relay has an array or a map, so neither is taken from a registry.
    """
    if len(inside) > MAX_DEPTH:
        raise Poison("too_deep", "schema nests too deeply")
    if isinstance(schema, str):
        if schema in inside:
            raise Poison("too_deep", f"schema {schema} contains itself")
        return
    if isinstance(schema, list):
        for branch in cast(list[object], schema):
            check_safe(branch, inside)
        return
    node = cast(dict[str, Any], schema)
    if node["type"] in ("array", "map"):
        raise Poison("unknown_schema", f"schema uses {node['type']}")
    fields = cast(list[dict[str, Any]], node.get("fields", []))
    if len(fields) > MAX_FIELDS:
        raise Poison("unknown_schema", f"schema has {len(fields)} fields")
    for field in fields:
        check_safe(field["type"], (*inside, cast(str, node["name"])))
