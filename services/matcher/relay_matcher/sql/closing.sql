-- name: now
-- Read the clock, in a statement after the locks.
select relay.now();

-- name: cancel
-- Cancel locked active waitpoints.
update waitpoint w
set state = 'cancelled', updated_at = %(at)s, closed_at = %(at)s, revision = w.revision + 1
from unnest(%(ids)s::uuid[]) q (id)
where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment') and w.id = q.id
  and w.state in ('open', 'stalled');

-- name: record_heartbeats
-- Note that the waiters of locked waitpoints are alive; a stalled one is open again, in a new activation (design D7).
update waitpoint w
set state = 'open', heartbeat_due = %(at)s::timestamptz + w.heartbeat_interval, updated_at = %(at)s,
  activation = w.activation + case w.state when 'stalled' then 1 else 0 end,
  revision = w.revision + case w.state when 'stalled' then 1 else 0 end
from unnest(%(ids)s::uuid[]) q (id)
where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment') and w.id = q.id
  and w.state in ('open', 'stalled') and w.heartbeat_interval is not null;
