-- name: append_records
-- Append a batch in commit order; returns the fresh ones by their place in the batch
select ord, mailbox_id, epoch, seq, appended_at, hinted
from append_v1(
  %(tenants)s::text[], %(environments)s::text[], %(owners)s::text[], %(boxes)s::bigint[], %(message_ids)s::uuid[],
  %(kinds)s::text[], %(types)s::text[], %(states)s::text[], %(trusts)s::text[], %(relationships)s::text[], %(senders)s::text[],
  %(waitpoint_ids)s::text[], %(supersedes)s::uuid[], %(wakings)s::bool[], %(bodies)s::bytea[])

-- name: raise_incarnation
-- Start a new epoch because Postgres went back in time
select raise_incarnation_v1(%(reason)s)

-- name: recognise_incarnation
-- Compare timeline and system identifier with what this database last knew; returns the epoch that stands
select incarnation_v1()

-- name: note_witness
-- Keep what Kafka remembers of partitions where Postgres is behind; returns those not noted before
insert into witness as w (topic, partition, committed_offset)
select * from unnest(%(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[]) u(topic, partition, committed_offset)
order by topic, partition
on conflict on constraint witness_one_per_partition do update
set committed_offset = excluded.committed_offset
where w.committed_offset < excluded.committed_offset
returning w.topic, w.partition

-- name: due_hints
-- Take the hints that were held back until now; a deleted mailbox's wait for its return
with clock as materialized (
  select relay.now() as at
), due as materialized (
  select d.id from mailbox d
  where d.hint_due_at <= (select at from clock) and d.state <> 'deleted'
  order by d.hint_due_at limit %(wanted)s for no key update skip locked)
update mailbox m
set hinted_at = clock.at, hint_due_at = null
from due, clock
where m.id = due.id
returning m.tenant, m.environment, m.owner, m.hinted_at
