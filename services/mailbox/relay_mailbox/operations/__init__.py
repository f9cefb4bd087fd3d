"""Every verb of the mailbox contract; each is one transaction."""
