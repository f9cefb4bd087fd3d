"""Pure rules of escalation: no I/O, no clock."""
