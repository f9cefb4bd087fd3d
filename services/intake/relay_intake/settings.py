"""Settings of intake."""

from relay_common.settings import CommonSettings, own


class IntakeSettings(CommonSettings):
    """The shared settings, the own ones under `RELAY_INTAKE_…`."""

    model_config = own("intake")

    broker_seconds: float = 10.0  # how long one request waits for the broker's acknowledgement
