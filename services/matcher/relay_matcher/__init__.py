"""The matcher service."""
