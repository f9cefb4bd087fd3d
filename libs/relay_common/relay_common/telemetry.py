"""Logs, metrics and trace context: every name in one place (docs/metrics.md is generated from it).

Logs are JSON lines on stdout with an `action` in the spec's verbs and ids; never content, reply
values or keys. So of an exception only its type and place are logged, and its text where that is
the transport's own.
"""

import logging
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast

import psycopg
import structlog
from opentelemetry import propagate
from opentelemetry.context import Context
from prometheus_client import Counter, Gauge, Histogram
from structlog.typing import EventDict, ExcInfo, Processor

Headers = tuple[tuple[str, bytes], ...]
TRANSPORT = (OSError, psycopg.OperationalError)
TRACE_HEADERS = ("traceparent", "tracestate")

MetricName = Literal[
    "relay_consumer_records_total",
    "relay_consumer_batch_seconds",
    "relay_consumer_failures_total",
    "relay_consumer_lag_records",
    "relay_consumer_stopped_partitions",
    "relay_dead_letters_total",
    "relay_outbox_published_total",
    "relay_outbox_dead_total",
    "relay_outbox_age_seconds",
    "relay_http_request_seconds",
    "relay_combiner_batch_calls",
    "relay_sweep_rows_total",
    "relay_sweep_failures_total",
    "relay_matcher_events_total",
    "relay_waitpoints_total",
    "relay_waitpoint_open_seconds",
    "relay_mailbox_records_total",
    "relay_mailbox_append_lag_seconds",
    "relay_mailbox_acks_total",
    "relay_mailbox_delivery_records",
    "relay_mailbox_oldest_available_seconds",
    "relay_mailbox_streams_with_holes",
    "relay_mailbox_fan_outs",
    "relay_mailbox_prepared_transactions",
]


@dataclass(frozen=True, slots=True)
class Metric:
    """What one metric means and its labels. Labels never carry ids, tenants or keys."""

    meaning: str
    labels: tuple[str, ...] = ()


METRICS: Mapping[MetricName, Metric] = {
    "relay_consumer_records_total": Metric("Records committed with their position", ("topic",)),
    "relay_consumer_batch_seconds": Metric("Time from handing over a batch to its commit"),
    "relay_consumer_failures_total": Metric("Batches rolled back, by cause", ("cause",)),
    "relay_consumer_lag_records": Metric(
        "Records behind the log's end, by the stored position", ("topic", "partition")
    ),
    "relay_consumer_stopped_partitions": Metric(
        "Partitions stopped because position and log disagree (design D12)"
    ),
    "relay_dead_letters_total": Metric("Records sent to the DLQ", ("topic", "reason")),
    "relay_outbox_published_total": Metric("Messages the broker acknowledged", ("topic",)),
    "relay_outbox_dead_total": Metric("Messages the broker refused for good", ("topic",)),
    "relay_outbox_age_seconds": Metric("Age of the oldest unpublished row", ("shard",)),
    "relay_http_request_seconds": Metric("Time to answer a request", ("method", "route", "status")),
    "relay_combiner_batch_calls": Metric("Calls put into one transaction", ("kind",)),
    "relay_sweep_rows_total": Metric("What periodic duties found", ("duty", "result")),
    "relay_sweep_failures_total": Metric("Runs of a periodic duty that failed", ("duty",)),
    "relay_matcher_events_total": Metric("Events recorded, by rule_id", ("rule_id",)),
    "relay_waitpoints_total": Metric("Lifecycle events, by type", ("type",)),
    "relay_waitpoint_open_seconds": Metric("Time from open to a terminal state", ("state",)),
    "relay_mailbox_records_total": Metric("Records appended, by kind", ("kind",)),
    "relay_mailbox_append_lag_seconds": Metric(
        "Age of the oldest record of a batch when it is appended, by the producer's clock"
    ),
    "relay_mailbox_acks_total": Metric("Acknowledgements, by result", ("result",)),
    "relay_mailbox_delivery_records": Metric("Records by delivery state, but acked", ("state",)),
    "relay_mailbox_oldest_available_seconds": Metric("Age of the oldest record that waits"),
    "relay_mailbox_streams_with_holes": Metric("Streams of a sample that are not dense: 0"),
    "relay_mailbox_fan_outs": Metric("Topic messages that not every subscriber has yet"),
    "relay_mailbox_prepared_transactions": Metric(
        "Prepared transactions left in the database, each of which may hold a mailbox for ever: 0"
    ),
}


@cache
def counter(name: MetricName) -> Counter:
    """Return the counter `name`, made at first use."""
    return Counter(name, METRICS[name].meaning, METRICS[name].labels)


@cache
def gauge(name: MetricName) -> Gauge:
    """Return the gauge `name`, made at first use."""
    return Gauge(name, METRICS[name].meaning, METRICS[name].labels)


@cache
def histogram(name: MetricName) -> Histogram:
    """Return the histogram `name`, made at first use."""
    return Histogram(name, METRICS[name].meaning, METRICS[name].labels)


def configure_logs(service: str, level: str = "INFO") -> None:
    """Send all logs of this process, libraries' too, to stdout as JSON lines with `service`."""

    def add_service(_logger: object, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_service,
        structlog.processors.ExceptionRenderer(facts_of),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.EventRenamer("action"),
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line a request, with its address


def facts_of(exc_info: ExcInfo) -> dict[str, object]:
    """Return what may be logged of an exception: a message may quote content, a place cannot."""
    kind, error, trace = exc_info
    frames = traceback.extract_tb(trace)[-8:]
    facts: dict[str, object] = {
        "type": kind.__qualname__,
        "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
    if isinstance(error, psycopg.Error):
        facts |= {"sqlstate": error.sqlstate, "constraint": error.diag.constraint_name}
    if isinstance(error, TRANSPORT) or kind.__module__.startswith("cimpl"):
        facts["text"] = str(error)
    return facts


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of module `name`; log as `log.info("waitpoint_expired", waitpoint=id)`."""
    return cast(structlog.stdlib.BoundLogger, structlog.get_logger(name))


def trace_headers() -> Headers:
    """Return the current trace context as Kafka headers; empty outside a trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple((name, value.encode()) for name, value in carrier.items())


def carried_trace(headers: Iterable[tuple[str, bytes]]) -> Headers:
    """Return the trace headers among `headers`, to pass on with what a record caused."""
    return tuple((n, v) for n, v in headers if n in TRACE_HEADERS)


def context_of(headers: Iterable[tuple[str, bytes]]) -> Context:
    """Return the trace context of Kafka or raw HTTP `headers`; a bad one starts a new trace."""
    return propagate.extract({n: v.decode("ascii", "replace") for n, v in carried_trace(headers)})
