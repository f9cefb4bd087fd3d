-- name: take_turn
-- Hold the figures while measuring anew is due and nobody else does it
select relay.now() from measured where due_at <= relay.now() for no key update skip locked

-- name: keep
-- Keep the figures; measuring takes a hundredth of the time at most
update measured set figures = %(figures)s::jsonb,
  due_at = at.now + greatest(make_interval(secs => %(interval_seconds)s), 99 * (at.now - %(began)s))
from (select relay.now()) at (now)

-- name: last
-- What was found last
select figures from measured

-- name: by_state
-- Records by delivery state, and the age of the oldest that waits to be leased; acked ones have no delivery any more
select
  count(*) filter (where d.state = 'available' or d.lease_until <= clock.at),
  count(*) filter (where d.state = 'leased' and d.lease_until > clock.at),
  count(*) filter (where d.state = 'held'),
  (select count(*) from dead_letter),
  coalesce(extract(epoch from max(clock.at) - min(d.appended_at) filter (where d.leasable and d.state = 'available')), 0)::float8
from (select relay.now() as at) clock left join delivery d on true

-- name: waiting_fan_outs
-- Messages of topics that not every subscriber has yet
select count(*) from fan_out

-- name: prepared_transactions
-- Transactions that somebody prepared and left: Relay makes none
select count(*) from pg_prepared_xacts p where p.database = current_database()

-- name: density
-- In a sample of streams: records between the last ten thousand and the head must be as many as their numbers say
with sample as (
  select m.tenant, m.environment, m.id, m.head, greatest(m.oldest, m.head - 9999) as first
  from mailbox m
  where m.head > 0
  order by random() limit %(sample)s
)
select count(*), count(*) filter (where s.head - s.first + 1 <> c.found)
from sample s
cross join lateral (
  select count(*) as found from record r
  where r.tenant = s.tenant and r.environment = s.environment and r.mailbox_id = s.id and r.seq between s.first and s.head) c
