"""The relay command line."""
