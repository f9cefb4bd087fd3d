-- name: create_mailboxes
-- Create on first use; whoever comes second finds it
insert into mailbox (tenant, environment, owner, epoch)
select %(tenant)s, %(environment)s, o.owner, i.n
from (select distinct unnest(%(owners)s::text[]) as owner) o cross join incarnation i
order by o.owner
on conflict do nothing

-- name: find_mailboxes
-- Where the streams of these owners stand
select m.owner, m.id, m.state, m.epoch, m.oldest, m.head
from mailbox m
where m.tenant = %(tenant)s and m.environment = %(environment)s and m.owner = any(%(owners)s::text[])

-- name: lock_mailboxes
-- Hold the heads of these owners, in id order, and tell where their streams stand
select m.owner, m.id, m.state, m.epoch, m.oldest, m.head
from mailbox m
where m.tenant = %(tenant)s and m.environment = %(environment)s and m.owner = any(%(owners)s::text[])
order by m.id for no key update

-- name: describe_mailbox
-- State, position and counts of one mailbox in one snapshot
with m as (
  select * from mailbox
  where tenant = %(tenant)s and environment = %(environment)s and owner = %(owner)s
), waiting as (
  select
    count(*) filter (where d.leasable and (d.state = 'available' or d.lease_until <= clock.at)) as available,
    count(*) filter (where d.state = 'leased' and d.lease_until > clock.at) as leased,
    count(*) filter (where d.state = 'held') as held,
    count(*) as retained
  from m cross join (select relay.now() as at) clock
  join delivery d on d.tenant = m.tenant and d.environment = m.environment and d.mailbox_id = m.id and d.seq >= m.oldest
), dead as (
  select count(*) as dead_lettered, count(*) filter (where x.seq >= m.oldest) as retained
  from m join dead_letter x on x.tenant = m.tenant and x.environment = m.environment and x.mailbox_id = m.id
)
select m.owner, m.state, m.epoch, m.head, m.oldest, w.available, w.leased,
  m.head - m.oldest + 1 - w.retained - x.retained as acked, x.dead_lettered, w.held
from m cross join waiting w cross join dead x
