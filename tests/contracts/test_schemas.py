"""The wire contract: examples decode, topics are described, versions stay compatible."""

import json
from datetime import datetime
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.schema import Schema, parse
from relay_common.avro import SCHEMA_DIR, Codec
from relay_common.events import CATALOG, INTERNAL

SCHEMAS = SCHEMA_DIR.parent
CODEC = Codec()
EXAMPLES = sorted((SCHEMAS / "examples").glob("*/*.json"))
TOPICS = {p.stem: yaml.safe_load(p.read_text()) for p in (SCHEMAS / "topics").glob("*.yaml")}
EVENTS = yaml.safe_load((SCHEMAS / "events.yaml").read_text())
LIFECYCLE = {"type", "id", "revision", "occurred_at", "waitpoint"}
SOURCES = {name: topic for name, topic in TOPICS.items() if not name.endswith(".dlq")}


def avro_value(kind: object, value: object) -> object:
    """Return the Avro value that the JSON of an example stands for."""
    if isinstance(kind, list):
        return None if value is None else avro_value(kind[1], value)
    name = kind["type"] if isinstance(kind, dict) else str(kind)
    if name == "bytes":
        return str(value).encode()
    if name == "fixed" or name.endswith("MessageId"):
        return bytes.fromhex(str(value))
    if isinstance(kind, dict) and kind.get("logicalType") == "timestamp-micros":
        return datetime.fromisoformat(str(value))
    return value


def record_of(path: Path) -> tuple[str, dict[str, object]]:
    schema = path.parent.name
    kinds = {f["name"]: f["type"] for f in CODEC.known[schema].parsed["fields"]}
    example = json.loads(path.read_text())
    return schema, {name: avro_value(kinds[name], value) for name, value in example.items()}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_example_decodes_with_its_declared_schema(path: Path) -> None:
    schema, record = record_of(path)
    registry = Codec(registry_url="mock://contract")
    assert registry.registry is not None
    registry.registry.register(f"{registry.known[schema].topic}-value", registry.known[schema].text)
    for codec in (CODEC, registry):
        name, found = codec.decode(codec.encode(schema, record))
        assert name == schema
        assert {k: v for k, v in found.items() if v is not None} == record
    for field in ("data", "body"):
        if field in record:
            json.loads(record[field])


def test_every_schema_has_an_example_and_a_topic() -> None:
    assert {p.parent.name for p in EXAMPLES} == set(CODEC.known)
    assert {schema for topic in SOURCES.values() for schema in topic["schemas"]} == set(CODEC.known)
    assert {known.topic for known in CODEC.known.values()} == set(SOURCES)


def test_every_lifecycle_event_has_an_example() -> None:
    records = [record_of(p)[1] for p in EXAMPLES if p.parent.name == "relay.waitpoints.v1"]
    shown = {record["type"]: record["internal"] for record in records}
    assert shown == dict.fromkeys(CATALOG, False) | dict.fromkeys(INTERNAL, True)


def test_the_catalog_names_every_event_and_its_members() -> None:
    lifecycle = EVENTS["lifecycle"]
    internal = {name for name, one in lifecycle.items() if one.get("internal")}
    assert (set(lifecycle) - internal, internal) == (CATALOG, INTERNAL)
    described = lifecycle | EVENTS["messages"] | EVENTS["early"]
    bodies = [json.loads(record_of(path)[1].get("body", b"{}")) for path in EXAMPLES]
    shown = [body for body in bodies if body.get("type") in described]
    assert {body["type"] for body in shown} >= CATALOG | INTERNAL | set(EVENTS["messages"])
    for body in shown:
        one = described[body["type"]]
        needed = {*one.get("members", ()), *(LIFECYCLE if body["type"] in lifecycle else ())}
        assert needed <= set(body) <= needed | set(one.get("maybe", ())), body["type"]


@pytest.mark.parametrize("name", sorted(TOPICS))
def test_topic_is_described_completely(name: str) -> None:
    topic = TOPICS[name]
    assert topic["topic"] == name
    for field in ("purpose", "key", "order", "producers", "consumers", "production"):
        assert topic[field], field
    assert set(topic["config"]) == {"cleanup.policy", "retention.ms", "max.message.bytes"}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_dead_letters_live_longer_and_fit_with_their_headers(name: str) -> None:
    source, dead = SOURCES[name], TOPICS[SOURCES[name]["dlq"]]
    assert dead["topic"] == f"{name}.dlq"
    assert dead["config"]["retention.ms"] > source["config"]["retention.ms"]
    assert dead["config"]["max.message.bytes"] >= source["config"]["max.message.bytes"] + (64 << 10)


def compatible(one: Schema, other: Schema) -> bool:
    """Say whether each reads what the other wrote: FULL."""
    checker = ReaderWriterCompatibilityChecker()
    return all(
        checker.get_compatibility(*pair).compatibility is SchemaCompatibilityType.compatible
        for pair in ((one, other), (other, one))
    )


@pytest.mark.parametrize("topic", sorted(SOURCES))
def test_all_versions_of_a_topic_are_fully_compatible(topic: str) -> None:
    versions = [parse(known.text) for known in CODEC.known.values() if known.topic == topic]
    assert versions
    for one, other in combinations(versions, 2):
        assert compatible(one, other)


def test_the_check_sees_an_incompatible_change() -> None:
    text = CODEC.known["relay.events.v1"].text
    changed = json.loads(text)
    added = {"name": "priority", "type": "int"}
    without_default = {**changed, "fields": [*changed["fields"], added]}
    with_default = {**changed, "fields": [*changed["fields"], {**added, "default": 0}]}
    fewer = {**changed, "fields": changed["fields"][1:]}
    assert compatible(parse(text), parse(json.dumps(with_default)))
    assert not compatible(parse(text), parse(json.dumps(without_default)))
    assert not compatible(parse(text), parse(json.dumps(fewer)))


@pytest.mark.parametrize("name", sorted(CODEC.known))
def test_schema_keeps_to_the_house_rules(name: str) -> None:
    fields = CODEC.known[name].parsed["fields"]
    names = [f["name"] for f in fields]
    assert names[:2] == ["tenant", "environment"]
    assert "body" not in names or names[-1] == "body"
    for field in fields:
        if isinstance(field["type"], list):
            assert field["type"][0] == "null", "a union is a nullable, so that none is ambiguous"
            assert len(field["type"]) == 2
            assert field["default"] is None
        if isinstance(field["type"], dict) and field["type"]["type"] == "enum":
            assert field["type"]["default"] in field["type"]["symbols"]
