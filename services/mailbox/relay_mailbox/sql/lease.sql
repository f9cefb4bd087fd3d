-- name: lease_records
-- Lease to each caller in turn; the heads are held already, in id order
select c.place, l.seq, l.deliveries, l.lease_until
from unnest(%(mailbox_ids)s::bigint[], %(wanted)s::int[], %(seconds)s::int[], %(tokens)s::uuid[]) with ordinality
     c(mailbox_id, wanted, seconds, token, place)
cross join lateral lease_v1(%(tenant)s, %(environment)s, c.mailbox_id, c.wanted, c.seconds, c.token) l
order by c.place, l.seq

-- name: leased_records
-- The records that leases name, as far as they are retained; between its oldest and its newest one a mailbox has slices, in others it has none
select w.place, m.owner, w.epoch, w.seq, r.message_id, r.kind, r.type, 'leased', w.deliveries, r.appended_at, r.trust,
  r.relationship, r.body
from unnest(%(places)s::int[], %(mailbox_ids)s::bigint[], %(epochs)s::bigint[], %(seqs)s::bigint[], %(deliveries)s::int[])
     w(place, mailbox_id, epoch, seq, deliveries)
cross join lateral (select m.owner, m.oldest_at, m.appended_at from mailbox m
  where m.tenant = %(tenant)s and m.environment = %(environment)s and m.id = w.mailbox_id limit 1) m
cross join lateral (select r.* from record r
  where r.tenant = %(tenant)s and r.environment = %(environment)s and r.mailbox_id = w.mailbox_id
    and r.seq between w.seq and w.seq and r.appended_at between m.oldest_at and m.appended_at
  order by r.seq limit 1) r
order by w.place, w.seq

-- name: acknowledge
-- One result for each (mailbox, token, seq), in order
select result from acknowledge_v1(%(tenant)s, %(environment)s, %(mailbox_ids)s::bigint[], %(tokens)s::uuid[], %(seqs)s::bigint[])
order by ord

-- name: extend_lease
-- Move the end of a running lease; nothing moves when it has expired or another holds the records
with held as materialized (
  select d.seq from delivery d
  where d.tenant = %(tenant)s and d.environment = %(environment)s and d.mailbox_id = %(mailbox_id)s
    and d.seq between %(first)s and %(last)s and d.state = 'leased' and d.lease_token = %(token)s
  order by d.seq for no key update)
update delivery d
set lease_until = clock.at + make_interval(secs => %(seconds)s)
from (select relay.now() as at) clock
where d.tenant = %(tenant)s and d.environment = %(environment)s and d.mailbox_id = %(mailbox_id)s
  and d.seq = any(array(select h.seq from held h))
  and d.state = 'leased' and d.lease_token = %(token)s and d.lease_until > clock.at
returning d.lease_until

-- name: release_lease
-- Give records of a running lease back before it ends, to be leased again after a delay; the head is held
with held as materialized (
  select d.seq from delivery d
  where d.tenant = %(tenant)s and d.environment = %(environment)s and d.mailbox_id = %(mailbox_id)s
    and d.seq between %(first)s and %(last)s and d.state = 'leased' and d.lease_token = %(token)s
    and (%(seqs)s::bigint[] is null or d.seq = any(%(seqs)s::bigint[]))
  order by d.seq for no key update
), released as (
  update delivery d
  set state = 'available', lease_token = null, lease_until = null,
      available_at = clock.at + make_interval(secs => %(delay_seconds)s)
  from (select relay.now() as at) clock
  where d.tenant = %(tenant)s and d.environment = %(environment)s and d.mailbox_id = %(mailbox_id)s
    and d.seq = any(array(select h.seq from held h))
    and d.state = 'leased' and d.lease_token = %(token)s and d.lease_until > clock.at
  returning d.seq, d.available_at
), sooner as (
  update mailbox m set retry_at = least(m.retry_at, r.available_at)
  from (select min(available_at) as available_at from released) r
  where m.tenant = %(tenant)s and m.environment = %(environment)s and m.id = %(mailbox_id)s
)
select seq from released

-- name: report_cursors
-- Keep the furthest position of each reader within the epoch; another epoch starts it anew
insert into cursor as c (tenant, environment, mailbox_id, reader, epoch, seq)
select %(tenant)s, %(environment)s, w.mailbox_id, w.reader, w.epoch, w.seq
from (
  select mailbox_id, reader, epoch, max(seq) as seq
  from unnest(%(mailbox_ids)s::bigint[], %(readers)s::text[], %(epochs)s::bigint[], %(seqs)s::bigint[]) u(mailbox_id, reader, epoch, seq)
  group by 1, 2, 3) w
order by w.mailbox_id, w.reader
on conflict on constraint cursor_one_per_reader do update
set seq = case when c.epoch = excluded.epoch then greatest(c.seq, excluded.seq) else excluded.seq end,
    epoch = excluded.epoch, reported_at = relay.now()
returning mailbox_id, reader, epoch, seq
