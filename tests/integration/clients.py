"""Programs that use Relay over HTTP; every call goes into a history that the checkers read."""

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from relay_common.testing.wait import until

Json = dict[str, Any]
EVERYTHING = (
    "events:write events:read waitpoints:write waitpoints:read waitpoints:reply "
    "mailbox:read mailbox:ack messages:send topics:publish"
)

EVER = {"received_after": "2020-01-01T00:00:00Z", "received_before": "2100-01-01T00:00:00Z"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request. `status` is None when no answer came: whether it took effect is unknown."""

    tenant: str
    identity: str
    invoked: float
    answered: float
    method: str
    path: str
    sent: object
    status: int | None
    text: str


@dataclass
class History:
    """All calls of all clients of a run."""

    calls: list[Call] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, call: Call) -> None:
        """Append one call."""
        with self._lock:
            self.calls.append(call)

    def of(self, tenant: str) -> list[Call]:
        """Return the calls of one tenant, in the order of their answers."""
        return [call for call in self.calls if call.tenant == tenant]

    def write(self, file: Path) -> None:
        """Keep the history of a failed run as JSON lines."""
        lines = [json.dumps({n: getattr(c, n) for n in Call.__slots__}) for c in self.calls]
        file.write_text("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Program:
    """One identity of one tenant. Methods return the answer; `ok` variants demand a good one."""

    http: httpx.Client
    history: History
    tenant: str
    environment: str
    identity: str
    token: str
    base_url: str

    def request(self, method: str, path: str, body: object = None, **more: Any) -> httpx.Response:
        """Send one request. `more`: params, headers, content. Raises httpx.TransportError."""
        headers = {"Authorization": f"Bearer {self.token}"} | more.pop("headers", {})
        if method not in ("GET", "HEAD"):
            headers = {"Idempotency-Key": str(uuid4())} | headers
        chosen = more if body is None else {"json": body, **more}
        began = time.monotonic()
        answer: httpx.Response | None = None
        try:
            answer = self.http.request(method, self.base_url + path, headers=headers, **chosen)
            return answer
        finally:
            status, text = (answer.status_code, answer.text) if answer is not None else (None, "")
            self.history.add(
                Call(
                    self.tenant,
                    self.identity,
                    began,
                    time.monotonic(),
                    method,
                    path,
                    body,
                    status,
                    text,
                )
            )

    def post(self, path: str, body: object, **more: Any) -> Json:
        """POST and return the JSON of a good answer."""
        return good(self.request("POST", path, body, **more))

    def get(self, path: str, **params: Any) -> Json:
        """GET and return the JSON of a good answer."""
        return good(self.request("GET", path, params=params))

    def persist(self, path: str, body: object) -> Json:
        """POST until it is answered, as a careful client does: always with the same key."""
        headers = {"Idempotency-Key": str(uuid4())}
        answers: list[str] = []

        def answered() -> Json | None:
            try:
                answer = self.request("POST", path, body, headers=headers)
            except httpx.TransportError as error:
                answers.append(type(error).__name__)
                return None
            answers.append(f"{answer.status_code} {answer.text[:200]}")
            if answer.status_code == 503 or "idempotency_in_progress" in answer.text:
                return None
            return good(answer)

        return until(answered, 60, lambda: f"{path}: {answers[-1:]}")

    # ---- the verbs of the main job ----------------------------------------------------------

    def open(self, event_type: str, key: str, seconds: float = 3600, **more: Any) -> Json:
        """Open an event waitpoint."""
        return self.post("/v1/waitpoints", opening(event_type, key, seconds, **more))

    def publish(self, *events: Mapping[str, object]) -> list[str]:
        """POST events and return their ids."""
        body = dict(events[0]) if len(events) == 1 else {"events": [dict(e) for e in events]}
        return self.post("/v1/events", body)["accepted"]

    def waitpoint(self, number: str) -> Json:
        """Return one waitpoint."""
        return self.get(f"/v1/waitpoints/{number}")

    def event(self, number: str) -> Json:
        """Return one recorded event."""
        return self.get(f"/v1/events/{number}")

    def records(self, since: int = 0) -> list[Json]:
        """Return all records of the own mailbox after `since`, page by page."""
        found: list[Json] = []
        epoch: dict[str, int] = {}
        while True:
            page = self.get("/v1/mailboxes/me/records", since=since, limit=500, **epoch)
            found += page["records"]
            epoch, since = {"epoch": page["epoch"]}, page["next_since"]
            if since >= page["head"]:
                return found

    def mailbox(self) -> Json | None:
        """Return the own mailbox, None before its first record."""
        answer = self.request("GET", "/v1/mailboxes/me")
        return None if answer.status_code == 404 else good(answer)

    def lease(self, count: int = 100, seconds: float | None = None) -> Json:
        """Lease up to `count` records."""
        chosen = {} if seconds is None else {"lease_seconds": seconds}
        return self.post("/v1/mailboxes/me/leases", {"max_records": count, **chosen})

    def acknowledge(self, lease: Json, records: Iterable[Json] | None = None) -> list[Json]:
        """Acknowledge records of a lease (default: all) and return the results."""
        chosen = list(lease["records"] if records is None else records)
        body = {"lease_id": lease["lease_id"], "epoch": chosen[0]["epoch"]}
        body["seqs"] = [record["seq"] for record in chosen]
        return self.post("/v1/mailboxes/me/acks", body)["results"]

    def pages(self, path: str, **params: Any) -> list[Json]:
        """Return all items of a list."""
        items: list[Json] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.get(path, **params, **cursor)
            items += page["items"]
            if not page["next_cursor"]:
                return items
            cursor = {"cursor": page["next_cursor"]}


def good(answer: httpx.Response) -> Json:
    """Return the JSON of a good answer; fails with the problem otherwise."""
    request = answer.request
    assert answer.is_success, (
        f"{request.method} {request.url.path}: {answer.status_code} {answer.text}"
    )
    return answer.json()


def in_seconds(seconds: float) -> str:
    """Return the time `seconds` from now, as a client writes it."""
    at = datetime.now(UTC) + timedelta(seconds=seconds)  # noqa: TID251 -- the client's own wish
    return at.isoformat().replace("+00:00", "Z")


def opening(event_type: str, key: str, seconds: float = 3600, **more: Any) -> Json:
    """Return the body that opens an event waitpoint."""
    match = {"event_type": event_type, "correlation_key": key}
    return {"kind": "event", "match": match, "expires_at": in_seconds(seconds), **more}


def event(event_type: str, key: str, **more: Any) -> Json:
    """Return an event in the shape of POST /v1/events."""
    return {"event_type": event_type, "correlation_key": key, **more}
