"""The sections of a run: each measures one thing and returns its figures."""
