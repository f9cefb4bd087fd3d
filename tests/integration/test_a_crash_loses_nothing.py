"""`kill -9` at each named point: nothing is lost and no state is doubled (W5, W10, R4, R8, M40)."""

from collections.abc import Callable

import pytest

from tests.integration.clients import Program
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.load import Load

# Services that die in the same run; a point is hit the third time.
CRASHES = [
    pytest.param(crashes, id="+".join(f"{name}:{point}" for name, point in crashes.items()))
    for crashes in (
        {"matcher": "matcher.before_commit", "mailbox": "mailbox.before_commit"},
        {
            "matcher": "consumer.after_commit_before_kafka",
            "mailbox": "consumer.after_commit_before_kafka",
            "escalation": "consumer.after_commit_before_kafka",
        },
        {"matcher": "publisher.after_ack_before_delete", "mailbox": "mailbox.after_lease_commit"},
        {"matcher": "matcher.after_open_commit", "mailbox": "mailbox.after_ack_commit"},
        {"mailbox": "publisher.after_ack_before_delete"},
    )
]


@pytest.mark.spec("WP-INV-7", "MB-AT-LEAST-ONCE")
@pytest.mark.parametrize("crashes", CRASHES)
def test_a_crash_at_a_named_point_loses_nothing_and_doubles_nothing(
    stack: Deployment,
    program: Callable[..., Program],
    place: Place,
    crashes: dict[str, str],
    verify: Callable[[], None],
) -> None:
    for service, point in crashes.items():
        stack.stop(service)
        stack.start(service, RELAY_FAILPOINTS=f"{point}=kill@3")
    stack.until_ready(*crashes)
    with Load(stack, program, place) as load:
        for service in crashes:
            stack.until_dead(service)
            stack.start(service)
        stack.until_ready(*crashes)
        load.until_rounds(10)
    load.until_all_acknowledged()
    verify()
