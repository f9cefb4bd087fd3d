"""Settings: shared names are shared, own names are the service's, secrets stay out of sight."""

import pytest
from pydantic import ValidationError
from relay_common.settings import CommonSettings, own, password


class ShopSettings(CommonSettings):
    model_config = own("shop")

    shelves: int = 3


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_DATABASE_URL", "postgresql://db/relay")
    monkeypatch.setenv("RELAY_KAFKA_BOOTSTRAP", "kafka:9092")


def test_shared_settings_have_one_name_and_own_ones_the_prefix(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RELAY_SHOP_HTTP_PORT", "8123")
    monkeypatch.setenv("RELAY_SHOP_SHELVES", "4")
    monkeypatch.setenv("RELAY_SHOP_DATABASE_URL", "postgresql://elsewhere/x")
    settings = ShopSettings.read()
    assert settings.database_url == "postgresql://db/relay"
    assert (settings.http_port, settings.shelves) == (8123, 4)


def test_topics_and_groups_carry_the_prefixes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RELAY_TOPIC_PREFIX", "t1.")
    monkeypatch.setenv("RELAY_GROUP_PREFIX", "g1")
    settings = ShopSettings.read()
    assert settings.topic("relay.events") == "t1.relay.events"
    assert settings.group("matcher") == "g1.matcher"


def test_a_missing_database_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RELAY_DATABASE_URL")
    with pytest.raises(ValidationError, match="RELAY_DATABASE_URL"):
        ShopSettings.read()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RELAY_SHOP_HTTP_PASSWORD", "canary-secret")
    settings = ShopSettings.read()
    assert "canary" not in repr(settings)
    assert password(settings.http_password) == "canary-secret"
    assert password(settings.stream_password) is None


def test_a_service_keeps_within_25_settings_of_its_own():
    assert len(set(ShopSettings.model_fields) - set(CommonSettings.model_fields)) <= 25
