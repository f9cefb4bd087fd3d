"""RFC 9457 problem documents: what a caller gets of an error."""

from relay_common.errors import Json, RelayError

MAX_LISTED = 1000  # a body full of faults must not buy an answer many times its size


def title(code: str) -> str:
    """Return the short summary of `code`, the same for every occurrence."""
    return code.replace("_", " ").capitalize()


def problem(error: RelayError, instance: str | None = None) -> dict[str, Json]:
    """Return the RFC 9457 body of `error`.

    `instance` stays out by default: the bodies for unknown and foreign ids are equal byte for byte.
    """
    body: dict[str, Json] = {
        "type": f"urn:relay:problem:{error.code}",
        "title": title(error.code),
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
    }
    if instance is not None:
        body["instance"] = instance
    if error.limit is not None:
        hit = error.limit
        body["limit"] = {"name": hit.name, "value": hit.value, "got": hit.got}
    if error.errors:
        listed = error.errors[:MAX_LISTED]
        body["errors"] = [{"pointer": e.pointer, "detail": e.detail} for e in listed]
    if error.retry_after is not None:
        body["retry_after"] = error.retry_after
    return {**error.extra, **body}
