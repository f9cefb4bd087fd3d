"""Response schemas: JSON Schema 2020-12 from tenants, with every way out of the document shut.

Formats are asserted, patterns are linear in time, references stay inside, numbers are decimal.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import jsonschema_rs
import orjson
from relay_common.errors import FieldError, Json, PayloadTooLarge, SchemaInvalid
from relay_common.limits import RESPONSE_SCHEMA_BYTES

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_DEPTH = 32
PATTERN_BYTES = 1 << 20
MOST_FAULTS = 100


def schema_text(schema: Mapping[str, Json]) -> bytes:
    """Return the schema as it is stored and digested."""
    return orjson.dumps(schema, option=orjson.OPT_SORT_KEYS)


def check_schema(schema: Mapping[str, Json]) -> None:
    """Raise SchemaInvalid or PayloadTooLarge for a schema that Relay does not take."""
    text = schema_text(schema)
    limit = RESPONSE_SCHEMA_BYTES
    if len(text) > limit.default:
        raise PayloadTooLarge(
            f"Expected a response schema of at most {limit.default} bytes, found {len(text)}.",
            limit=limit.hit(len(text)),
        )
    faults = list(guard(schema, "/response_schema", 0))
    if faults:
        raise SchemaInvalid(errors=faults[:MOST_FAULTS])
    validator(text)


def guard(node: Json, pointer: str, depth: int) -> Sequence[FieldError]:
    """Return what could leave the document or never end: references, dialects, depth."""
    if depth > SCHEMA_DEPTH:
        return [FieldError(pointer, f"expected at most {SCHEMA_DEPTH} levels")]
    faults: list[FieldError] = []
    if isinstance(node, Mapping):
        faults += guard_keywords(node, pointer)
        for name, value in node.items():
            faults += guard(value, f"{pointer}/{escaped(name)}", depth + 1)
    elif isinstance(node, list | tuple):
        for place, value in enumerate(node):
            faults += guard(value, f"{pointer}/{place}", depth + 1)
    return faults


def guard_keywords(node: Mapping[str, Json], pointer: str) -> list[FieldError]:
    """Return the faults of the keywords that name another document."""
    faults: list[FieldError] = []
    if node.get("$schema", DIALECT) != DIALECT:
        faults.append(FieldError(f"{pointer}/$schema", f"expected {DIALECT}"))
    for name in ("$ref", "$dynamicRef"):
        target = node.get(name)
        if isinstance(target, str) and not target.startswith("#"):
            faults.append(FieldError(f"{pointer}/{name}", "expected a reference inside the schema"))
    return faults


def escaped(name: str) -> str:
    """Return one member name as a JSON Pointer writes it."""
    return name.replace("~", "~0").replace("/", "~1")


@lru_cache(maxsize=2_000)
def validator(text: bytes) -> jsonschema_rs.Draft202012Validator:
    """Return the compiled schema. Raises SchemaInvalid."""
    try:
        return jsonschema_rs.Draft202012Validator(
            orjson.loads(text),
            offline=True,
            validate_formats=True,
            ignore_unknown_formats=False,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES),
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        detail = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise SchemaInvalid(errors=[FieldError("/response_schema", detail)]) from error


def faults_of(text: bytes, reply: Json, pointer: str) -> list[FieldError]:
    """Return where `reply` (at `pointer` of its body) does not fit the schema of `text`.

    A fault names place and keyword, never a value.
    """
    found: list[FieldError] = []
    for error in validator(text).iter_errors(reply):
        path = "".join(f"/{escaped(str(part))}" for part in error.instance_path)
        found.append(FieldError(pointer + path, f"expected it to fit {error.kind.name}"))
        if len(found) == MOST_FAULTS:
            break
    return found
