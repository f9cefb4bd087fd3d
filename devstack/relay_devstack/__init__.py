"""Starts real parts for development and tests."""
