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
-- Move positions that are where they were expected; others are fenced and stay.
with held as (
  select p.topic, p.partition, q.next_offset
  from position p
  join unnest(
    %(topics)s::text[], %(partitions)s::int[], %(expected)s::bigint[], %(nexts)s::bigint[]
  ) q (topic, partition, expected, next_offset)
    on p.topic = q.topic and p.partition = q.partition and p.next_offset = q.expected
  order by p.topic, p.partition
  for update of p
)
update position p set next_offset = held.next_offset
from held
where p.topic = held.topic and p.partition = held.partition;
