"""What the mailbox service reads and writes: functions of a connection, nothing else."""
