"""SQL of the matcher: functions that take a connection, run named queries and return values."""
