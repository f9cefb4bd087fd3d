"""Pure rules of intake: no I/O, no clock."""
