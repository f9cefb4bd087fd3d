-- The tables of the intake service.
call relay.plumbing('intake');
