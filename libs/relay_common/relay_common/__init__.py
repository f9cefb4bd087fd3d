"""Plumbing and wire types shared by the services."""
