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
