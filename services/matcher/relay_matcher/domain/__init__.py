"""The matcher's rules: pure, no I/O, no clock."""
