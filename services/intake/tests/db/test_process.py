"""The intake process as it runs in production: tokens of a real JWKS, a real broker, readiness."""

import httpx
from relay_common.testing import wait
from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Database
from relay_common.testing.issuer import Issuer
from relay_common.testing.processes import ServiceRun, environment_of, free_port

PAID = {"event_type": "order.paid", "correlation_key": "order-7"}


def post(run: ServiceRun, issuer: Issuer) -> httpx.Response:
    headers = {
        "authorization": f"Bearer {issuer.token(scope='events:write')}",
        "idempotency-key": "key-1",
    }
    url = f"http://127.0.0.1:{run.http_port}/v1/events"
    return httpx.post(url, json=PAID, headers=headers, trust_env=False, timeout=30)


def test_it_takes_events_and_ends_when_told(
    database: Database, topics: Topics, issuer: Issuer, jwks_url: str
):
    topic = topics.create("relay.events", 1)
    run = ServiceRun("intake", environment_of(database, topics, jwks_url))
    try:
        run.until_ready()
        found = post(run, issuer)
        assert found.status_code == 202, found.text
        assert len(topics.records(topic)) == 1
        assert run.stop() == 0
        assert "order-7" not in run.log.read_text()
    finally:
        run.kill()


def test_without_a_broker_it_is_alive_but_not_ready(
    database: Database, topics: Topics, issuer: Issuer, jwks_url: str
):
    environment = {
        **environment_of(database, topics, jwks_url),
        "RELAY_KAFKA_BOOTSTRAP": f"127.0.0.1:{free_port()}",
        "RELAY_INTAKE_BROKER_SECONDS": "0.5",
    }
    run = ServiceRun("intake", environment)
    try:
        found = wait.until(lambda: run.get("/readyz"), 90)
        assert found.status_code == 503
        assert found.json()["checks"]["kafka"] != "ok"
        healthy = run.get("/healthz")
        assert healthy
        assert healthy.status_code == 200
        refused = post(run, issuer)
        assert (refused.status_code, refused.json()["code"]) == (503, "broker_unavailable")
        assert run.stop() == 0
    finally:
        run.kill()
