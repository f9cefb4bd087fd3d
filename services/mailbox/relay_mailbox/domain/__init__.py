"""Rules of mailboxes: no I/O, no clock."""
