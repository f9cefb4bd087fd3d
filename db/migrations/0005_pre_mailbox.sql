-- The tables of the mailbox service.
call relay.plumbing('mailbox');
