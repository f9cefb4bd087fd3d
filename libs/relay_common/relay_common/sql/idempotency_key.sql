-- name: lock_keys
-- Lock every key of the batch that nobody else holds, in the order of the locks (design §6, lock order 1).
select call.ordinal, pg_try_advisory_xact_lock(call.lock)
from (
  select given.ordinal, given.lock
  from unnest(%(locks)s::int8[]) with ordinality as given (lock, ordinal)
  order by given.lock
) as call;

-- name: stored_answers
-- Read the stored answers; a statement after the locks, so that it sees what the last holder committed.
-- The limit is a fence: without statistics the planner would rather read all keys of the tenant.
select call.ordinal, found.fingerprint, found.status, found.body, found.headers
from unnest(%(clients)s::text[], %(routes)s::text[], %(digests)s::bytea[])
  with ordinality as call (client, route, key_digest, ordinal)
cross join lateral (
  select stored.fingerprint, stored.status, stored.body, stored.headers from idempotency_key as stored
  where stored.tenant = current_setting('relay.tenant')
    and stored.environment = current_setting('relay.environment')
    and stored.client = call.client
    and stored.route = call.route
    and stored.key_digest = call.key_digest
  limit 1
) as found;

-- name: store_answers
-- Store the answers of the batch; they commit with the effects.
insert into idempotency_key (tenant, environment, client, route, key_digest, fingerprint, status, body, headers)
select
  current_setting('relay.tenant'), current_setting('relay.environment'),
  done.client, done.route, done.key_digest, done.fingerprint, done.status, done.body, done.headers::jsonb
from unnest(
  %(clients)s::text[], %(routes)s::text[], %(digests)s::bytea[], %(fingerprints)s::bytea[],
  %(statuses)s::int2[], %(bodies)s::bytea[], %(headers)s::text[]
) as done (client, route, key_digest, fingerprint, status, body, headers);

-- name: expire_keys
-- Forget the keys of more than 48 hours ago, at most a few thousand at a time.
with old as (
  select tenant, environment, client, route, key_digest
  from idempotency_key
  where created_at < (select relay.now()) - interval '48 hours'
  order by created_at
  limit 5000
  for update skip locked
)
delete from idempotency_key as stored
using old
where stored.tenant = old.tenant
  and stored.environment = old.environment
  and stored.client = old.client
  and stored.route = old.route
  and stored.key_digest = old.key_digest;
