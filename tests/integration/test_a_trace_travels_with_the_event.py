"""One trace from the request, or the record of a plain producer, to the mailbox (R30)."""

from collections.abc import Callable

import pytest
from relay_common.testing.wait import until

from tests.integration.clients import Program, event
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.producer import PlainProducer, event_value
from tests.integration.tap import Seen, Tap

TRACE = "4bf92f3577b34da6a3ce929d0e0e47%02x"
PARENT = "00-{}-00f067aa0ba902b7-01"


@pytest.mark.parametrize("path", ["http", "topic"])
def test_the_trace_of_an_event_is_on_the_record_it_causes(
    stack: Deployment, program: Callable[..., Program], place: Place, tap: Tap, path: str
) -> None:
    waiter, trace = program("client:checkout"), TRACE % (1 if path == "http" else 2)
    waiter.open("order.paid", place.key())
    sent = event("order.paid", place.key())
    if path == "http":
        headers = {"traceparent": PARENT.format(trace)}
        program("client:shop").request("POST", "/v1/events", sent, headers=headers)
    else:
        producer = PlainProducer(stack.bootstrap)
        value = event_value(place.tenant, place.environment, sent)
        producer.send(value, headers=[("traceparent", PARENT.format(trace).encode())])
        producer.flush()

    def told() -> list[Seen]:
        return [
            seen
            for topic in ("relay.waitpoints", "relay.mailbox")
            for seen in tap.of(topic)
            if (seen.record["tenant"], seen.record["type"]) == (place.tenant, "waitpoint.resolved")
        ]

    until(lambda: len(told()) == 2, 20, lambda: str(told()))
    for seen in told():
        assert (seen.header("traceparent") or "").split("-")[1:2] == [trace], seen.headers
