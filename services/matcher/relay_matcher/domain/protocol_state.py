"""What a waitpoint means to a task of A2A 1.0 and MCP (spec, Protocol state mapping).

Task state belongs to the waiting side; null says "unchanged" or "the owner decides".
"""

from relay_common.errors import Json

ACCESS_PROFILES = frozenset({"access_approval", "guardian_approval"})


def protocol_state(kind: str, profile: str | None, state: str) -> dict[str, Json]:
    """Return the A2A and MCP task state that a waitpoint translates to."""
    if state == "resolved":
        return {"a2a": "TASK_STATE_WORKING", "mcp": "working"}
    if state != "open" or kind == "event":
        return {"a2a": None, "mcp": None}
    if profile in ACCESS_PROFILES:
        return {"a2a": "TASK_STATE_AUTH_REQUIRED", "mcp": "input_required"}
    return {"a2a": "TASK_STATE_INPUT_REQUIRED", "mcp": "input_required"}
