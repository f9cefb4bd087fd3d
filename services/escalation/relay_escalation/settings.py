"""Settings of escalation."""

from relay_common.settings import CommonSettings, own


class EscalationSettings(CommonSettings):
    """The shared settings, the own ones under `RELAY_ESCALATION_…`."""

    model_config = own("escalation")
