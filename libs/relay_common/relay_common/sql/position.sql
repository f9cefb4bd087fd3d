-- name: create_positions
-- Begin partitions that have no position at the low end of their log.
insert into position (topic, topic_id, partition, next_offset)
select * from unnest(
  %(topics)s::text[], %(topic_ids)s::text[], %(partitions)s::int[], %(lows)s::bigint[]
)
on conflict (topic, partition) do nothing;

-- name: read_positions
-- Read where partitions stand.
select p.topic, p.partition, p.topic_id, p.next_offset
from position p
join unnest(%(topics)s::text[], %(partitions)s::int[]) q (topic, partition) using (topic, partition);

-- name: advance_positions
-- Move positions that are where they were expected; any other raises RC001.
select advance_v1(%(topics)s::text[], %(partitions)s::int[], %(expected)s::bigint[], %(nexts)s::bigint[]);
