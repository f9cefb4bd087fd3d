-- name: list_dead_letters
-- Dead letters of one mailbox after a seq, ending with the one that passes max_bytes
with page as (
  select x.* from dead_letter x
  join mailbox m on m.tenant = x.tenant and m.environment = x.environment and m.id = x.mailbox_id
  where m.tenant = %(tenant)s and m.environment = %(environment)s and m.owner = %(owner)s and x.seq > %(after)s
  order by x.seq limit %(limit)s
), sized as (
  select p.*, sum(octet_length(p.body)) over (order by p.seq) - octet_length(p.body) as bytes_before from page p
)
select x.epoch, x.seq, x.message_id, x.kind, x.type, 'dead_lettered', x.deliveries, x.appended_at, x.trust, x.relationship, x.body,
  x.died_at
from sized x where x.bytes_before < %(max_bytes)s
order by x.seq

-- name: count_dead_letters
-- How many dead letters a redrive would bring back
select count(*) from (
  select from dead_letter x
  where x.tenant = %(tenant)s and x.environment = %(environment)s and x.mailbox_id = %(mailbox_id)s
    and (%(seqs)s::bigint[] is null or x.seq = any(%(seqs)s::bigint[]))
  limit %(wanted)s) c

-- name: redrive
-- Dead letters back into their stream
select redrive_v1(%(tenant)s, %(environment)s, %(mailbox_id)s, %(seqs)s::bigint[], %(wanted)s)
