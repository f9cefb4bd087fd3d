-- The tables of the escalation service.
call relay.plumbing('escalation');
