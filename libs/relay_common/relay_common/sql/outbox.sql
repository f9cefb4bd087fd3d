-- name: append
-- Append rows: each is the messages of one transaction, topic and shard.
insert into outbox (shard, topic, payload)
select q.shard, q.topic, q.payload
from unnest(%(shards)s::int2[], %(topics)s::text[], %(payloads)b::bytea[])
  with ordinality q (shard, topic, payload, place)
order by q.place;

-- name: lock_shard
-- Become the one publisher of a shard, for as long as the connection lives.
select pg_try_advisory_lock(hashtext('outbox of ' || current_schema()), %(shard)s);

-- name: next_rows
-- Read the oldest rows of each shard held, in id order, but those that wait for a topic that rests.
select o.id, o.shard, o.topic, o.payload, o.left_topics
from unnest(%(shards)s::int2[]) s
cross join lateral (
  select id, shard, topic, payload, left_topics from outbox
  where shard = s and coalesce(left_topics[1], topic) <> all(%(resting)s::text[])
  order by id
  limit %(rows)s
) o
order by o.id;

-- name: delete_rows
-- Forget rows whose messages are all settled.
delete from outbox where id = any(%(ids)s);

-- name: leave_topics
-- Keep a row for the topics that have not acknowledged its messages.
update outbox set left_topics = %(topics)s::text[] where id = %(id)s;

-- name: bury_refused
-- Keep refused messages of one row; a twin's topic is not the row's, so they get a row of their own.
insert into outbox_dead (id, shard, topic, payload, created_at, reason)
select case when topic = %(topic)s then id else nextval(pg_get_serial_sequence('outbox', 'id')) end,
  shard, %(topic)s, %(payload)s, created_at, %(reason)s
from outbox where id = %(id)s
on conflict (id) do nothing;

-- name: ages
-- Read the age in seconds of the oldest row of each shard.
select s, coalesce(extract(epoch from (select relay.now()) - o.created_at), 0)::float8
from unnest(%(shards)s::int2[]) s
left join lateral (select created_at from outbox where shard = s order by id limit 1) o on true;

-- name: bury_letter
-- Keep a dead letter that is larger than a row may be.
insert into outbox_dead (id, shard, topic, payload, created_at, reason)
select nextval(pg_get_serial_sequence('outbox', 'id')), %(shard)s, %(topic)s, %(payload)s,
       (select relay.now()), %(reason)s;
