"""The intake service."""
