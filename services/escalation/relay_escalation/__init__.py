"""The escalation service."""
