"""The same job for Relay and a peer: open N waits, deliver N events, each waiter sees its own."""
