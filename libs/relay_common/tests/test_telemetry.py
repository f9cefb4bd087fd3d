"""Logs without content, metrics without ids, one trace through Kafka."""

import json
import re
import subprocess
import sys
from typing import get_args

import pytest
from opentelemetry import context
from relay_common import telemetry

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SCRIPT = """
import logging, psycopg
from relay_common import telemetry
telemetry.configure_logs("matcher", "info")
log = telemetry.logger("x")
log.info("waitpoint_expired", waitpoint="wp_1")
log.debug("hidden")
logging.getLogger("library").warning("plain %s", "words")
try:
    raise ValueError("canary-content")
except ValueError:
    log.exception("batch_failed")
try:
    raise psycopg.errors.UniqueViolation("Key (correlation_key)=(canary-key) exists")
except psycopg.Error:
    log.exception("batch_failed")
try:
    raise psycopg.OperationalError("connection refused")
except psycopg.Error:
    logging.getLogger("library").exception("odd")
"""


def test_logs_are_json_lines_that_never_quote_an_exception() -> None:
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    ).stdout
    assert "canary" not in out
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["action"] for line in lines] == [
        "waitpoint_expired",
        "plain words",
        "batch_failed",
        "batch_failed",
        "odd",
    ]
    assert {line["service"] for line in lines} == {"matcher"}
    assert lines[0]["waitpoint"] == "wp_1"
    assert lines[2]["exception"]["type"] == "ValueError"
    assert lines[4]["exception"]["text"] == "connection refused"


def test_every_metric_is_described_and_well_named() -> None:
    assert set(get_args(telemetry.MetricName)) == set(telemetry.METRICS)
    for name, metric in telemetry.METRICS.items():
        assert re.fullmatch(r"relay_[a-z_]+", name)
        assert metric.meaning
        assert not {"tenant", "id", "key", "owner", "waitpoint"} & set(metric.labels)


def test_trace_context_goes_through_kafka_headers() -> None:
    headers = [("ce_id", b"1"), ("traceparent", TRACE), ("tracestate", b"a=b")]
    assert telemetry.carried_trace(headers) == (("traceparent", TRACE), ("tracestate", b"a=b"))
    token = context.attach(telemetry.context_of(headers))
    try:
        assert dict(telemetry.trace_headers())["traceparent"] == TRACE
    finally:
        context.detach(token)
    assert telemetry.trace_headers() == ()


ZEROS = b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"


@pytest.mark.parametrize("bad", [b"", b"00-xyz", b"\xff\xfe", ZEROS])
def test_bad_trace_context_starts_a_new_trace(bad: bytes) -> None:
    token = context.attach(telemetry.context_of([("traceparent", bad)]))
    try:
        assert telemetry.trace_headers() == ()
    finally:
        context.detach(token)
