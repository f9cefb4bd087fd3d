-- The tables of the matcher service.
call relay.plumbing('matcher');
