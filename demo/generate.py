"""Makes `demo/data/events.jsonl.gz`: a day of orders and payments, always the same.

Run `python -m demo.generate` to make the file again; the seed is part of the story.
"""

import gzip
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

SEED = 20261130
ORDERS = 7_000
FILE = Path(__file__).parent / "data" / "events.jsonl.gz"
DAY = datetime(2026, 11, 27, 6, 0, tzinfo=UTC)
CITIES = {
    "DE": "Hamburg Köln München",
    "FR": "Lyon Paris Lille",
    "ES": "Madrid Málaga",
    "PL": "Łódź Gdańsk",
}
GOODS = [("kettle", 3490), ("desk lamp", 5990), ("espresso machine", 64900), ("headphones", 12900)]
GOODS += [
    ("cotton shirt", 2495),
    ("bicycle pump", 1999),
    ("office chair", 38900),
    ("notebook", 790),
]
FAILURES = ("insufficient_funds", "card_expired", "do_not_honor", "authentication_required")
WAREHOUSES = ("agent:warehouse-nord", "agent:warehouse-sued")

Event = dict[str, object]


def events() -> Iterator[Event]:
    """Yield the events of all orders in the order of their time."""
    chance = random.Random(SEED)
    made = [event for number in range(ORDERS) for event in order(chance, number)]
    yield from sorted(made, key=lambda event: str(event["occurred_at"]))


def order(chance: random.Random, number: int) -> list[Event]:
    """Return what happens to one order: placed, paid or not, dispatched when paid."""
    at = DAY + timedelta(seconds=chance.betavariate(2, 2) * 16 * 3600)
    lines = [line(chance) for _ in range(chance.choice((1, 1, 1, 2, 2, 3)))]
    amount = sum(int(str(item["price_cents"])) * int(str(item["quantity"])) for item in lines)
    order_id, intent = f"ord-20261127-{number:05d}", f"pi_{chance.getrandbits(64):016x}"
    story = [event("order.placed", order_id, at, placed(chance, order_id, intent, lines, amount))]
    paid_at = at + timedelta(seconds=chance.uniform(2, 240))
    if chance.random() < 0.11:
        story.append(event("payment.failed", intent, paid_at, failed(chance, order_id, amount)))
        return story
    story += paid(chance, order_id, intent, paid_at, amount)
    return story


def line(chance: random.Random) -> Event:
    """Return one line of an order."""
    name, price = chance.choice(GOODS)
    return {"article": name, "price_cents": price, "quantity": chance.choice((1, 1, 1, 2, 4))}


def placed(
    chance: random.Random, order_id: str, intent: str, lines: list[Event], amount: int
) -> Event:
    """Return the data of order.placed."""
    country = chance.choice(tuple(CITIES))
    address = {"country": country, "city": chance.choice(CITIES[country].split())}
    basket = {"lines": lines, "amount_cents": amount, "currency": "EUR"}
    customer = f"cus_{chance.getrandbits(40):010x}"
    return {
        "order_id": order_id,
        "payment_intent": intent,
        "customer": customer,
        "ship_to": address,
    } | basket


def failed(chance: random.Random, order_id: str, amount: int) -> Event:
    """Return the data of payment.failed."""
    reason = chance.choice(FAILURES)
    return {"order_id": order_id, "amount_cents": amount, "currency": "EUR", "decline_code": reason}


def paid(
    chance: random.Random, order_id: str, intent: str, at: datetime, amount: int
) -> list[Event]:
    """Return authorization, capture and dispatch of a paid order; the dispatch is addressed."""
    card = {
        "brand": chance.choice(("visa", "mastercard", "girocard")),
        "last4": f"{chance.randrange(10_000):04d}",
    }
    money: Event = {"order_id": order_id, "amount_cents": amount, "currency": "EUR"}
    captured_at = at + timedelta(seconds=chance.uniform(1, 1800))
    sent_at = captured_at + timedelta(seconds=chance.uniform(600, 7200))
    parcel = {
        "order_id": order_id,
        "carrier": chance.choice(("DHL", "DPD", "GLS")),
        "parcels": 1 + (amount > 30_000),
    }
    return [
        event("payment.authorized", intent, at, money | {"card": card}),
        event(
            "payment.captured", intent, captured_at, money | {"fee_cents": 25 + amount * 14 // 1000}
        ),
        event("shipment.dispatched", order_id, sent_at, parcel, recipient=WAREHOUSES[amount % 2]),
    ]


def event(kind: str, key: str, at: datetime, data: Event, recipient: str | None = None) -> Event:
    """Return one event in the shape of `POST /v1/events`."""
    source = "psp" if kind.startswith("payment") else "shop"
    named: Event = {"id": f"{key}/{kind}", "source": f"urn:demo:{source}", "event_type": kind}
    addressed: Event = {"recipient": recipient} if recipient else {}
    when = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return named | {"correlation_key": key} | addressed | {"occurred_at": when, "data": data}


def read() -> list[Event]:
    """Return the events of the committed file."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        return [json.loads(text) for text in lines]


def main() -> None:
    """Write the file, byte for byte the same on every machine."""
    text = "".join(
        json.dumps(e, ensure_ascii=False, separators=(",", ":")) + "\n" for e in events()
    )
    FILE.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


if __name__ == "__main__":
    main()
