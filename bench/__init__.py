"""Relay against its own ceilings: real Kafka, real Postgres, the real processes, one run."""
