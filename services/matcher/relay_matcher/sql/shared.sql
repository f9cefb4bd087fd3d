-- name: lock_match_keys
-- Lock the match keys of the batch, distinct and sorted, before anything is read (design D4).
select count(pg_advisory_xact_lock(k.key_hash))
from (select distinct q.key_hash from unnest(%(key_hashes)s::bigint[]) q (key_hash) order by 1) k;

-- name: expire_waitpoints
-- Expire locked waitpoints whose deadline has passed (design D5). Found one by one (limit): without statistics the planner would rather
-- go through all that are active.
update waitpoint w
set state = 'expired', updated_at = %(at)s, closed_at = %(at)s, revision = w.revision + 1
from (
  select f.place
  from unnest(%(tenants)s::text[], %(environments)s::text[], %(ids)s::uuid[]) q (tenant, environment, id)
  cross join lateral (
    select p.ctid as place from waitpoint p
    where p.tenant = q.tenant and p.environment = q.environment and p.id = q.id and p.closed_at is null and p.expires_at <= %(at)s
    limit 1) f) found
where w.ctid = found.place;

-- name: count_closed
-- Note closed waitpoints per waiter, one row a tenant; folded into the counters later, so that nobody waits here.
insert into closed_delta (tenant, environment, waiters, closed)
select q.tenant, q.environment, array_agg(q.waiter), array_agg(q.closed)
from unnest(%(tenants)s::text[], %(environments)s::text[], %(waiters)s::text[], %(closed)s::bigint[]) q (tenant, environment, waiter, closed)
group by q.tenant, q.environment;
