"""The mailbox service."""
