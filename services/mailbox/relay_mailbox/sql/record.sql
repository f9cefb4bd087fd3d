-- name: read_page
-- Head and page in one statement, so that both are of one snapshot; a mailbox without a page is one row of nulls.
-- A page ends with the record that passes max_bytes.
with stream as (
  select m.tenant, m.environment, m.id, m.owner, m.state, m.epoch, m.head, m.oldest
  from mailbox m
  where m.tenant = %(tenant)s and m.environment = %(environment)s and m.owner = %(owner)s
), page as (
  select r.*
  from stream s
  cross join lateral page_v1(s.tenant, s.environment, s.id, greatest(%(since)s, s.oldest - 1), s.head, %(limit)s) r
), fitting as (
  select * from (
    select p.*, sum(octet_length(p.body)) over (order by p.seq) - octet_length(p.body) as bytes_before from page p) b
  where b.bytes_before < %(max_bytes)s
)
select s.state, s.epoch, s.head, s.oldest,
  s.epoch, p.seq, p.message_id, p.kind, p.type,
  case
    when x.seq is not null then 'dead_lettered'
    when d.seq is null then 'acked'
    when d.state = 'leased' and d.lease_until <= (select relay.now()) then 'available'
    else d.state
  end as delivery_state,
  coalesce(x.deliveries, d.deliveries, p.acked_deliveries) as deliveries,
  p.appended_at, p.trust, p.relationship, p.body
from stream s
left join fitting p on true
left join lateral (select d.* from delivery d
  where d.tenant = s.tenant and d.environment = s.environment and d.mailbox_id = s.id and d.seq = p.seq limit 1) d on true
left join lateral (select x.seq, x.deliveries from dead_letter x
  where x.tenant = s.tenant and x.environment = s.environment and x.mailbox_id = s.id and x.seq = p.seq limit 1) x on true
order by p.seq
