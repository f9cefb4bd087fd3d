-- name: list_requests
-- Senders in the request box of one mailbox with what waits from each, by name
select q.sender, count(*), min(q.seq), max(q.seq), max(q.appended_at)
from request q
join mailbox m on m.tenant = q.tenant and m.environment = q.environment and m.id = q.mailbox_id
join delivery d on d.tenant = q.tenant and d.environment = q.environment and d.mailbox_id = q.mailbox_id and d.seq = q.seq
where m.tenant = %(tenant)s and m.environment = %(environment)s and m.owner = %(owner)s and q.sender > %(after)s
group by q.sender
order by q.sender limit %(limit)s

-- name: accept_sender
-- Let a sender in, and make what waits from it leasable; the head is held. Returns how many records
with accepted as (
  insert into accepted_sender (tenant, environment, mailbox_id, sender)
  values (%(tenant)s, %(environment)s, %(mailbox_id)s, %(sender)s)
  on conflict do nothing
), asked as (
  delete from request q
  where q.tenant = %(tenant)s and q.environment = %(environment)s and q.mailbox_id = %(mailbox_id)s and q.sender = %(sender)s
  returning q.seq
), freed as (
  update delivery d set leasable = true
  from asked a
  where d.tenant = %(tenant)s and d.environment = %(environment)s and d.mailbox_id = %(mailbox_id)s and d.seq = a.seq
  returning d.seq
), lowered as (
  update mailbox m set low_water = least(m.low_water, f.seq), retry_at = '-infinity', hint_due_at = relay.now()
  from (select min(seq) as seq from freed) f
  where m.tenant = %(tenant)s and m.environment = %(environment)s and m.id = %(mailbox_id)s and f.seq is not null
)
select count(*) from freed

-- name: block_sender
-- Block a sender and take what waits from it out of the request box; the head is held
with blocked as (
  insert into block (tenant, environment, mailbox_id, sender)
  values (%(tenant)s, %(environment)s, %(mailbox_id)s, %(sender)s)
  on conflict do nothing
), refused as (
  delete from accepted_sender a
  where a.tenant = %(tenant)s and a.environment = %(environment)s and a.mailbox_id = %(mailbox_id)s and a.sender = %(sender)s
), asked as (
  delete from request q
  where q.tenant = %(tenant)s and q.environment = %(environment)s and q.mailbox_id = %(mailbox_id)s and q.sender = %(sender)s
  returning q.seq
), gone as (
  delete from delivery d using asked a
  where d.tenant = %(tenant)s and d.environment = %(environment)s and d.mailbox_id = %(mailbox_id)s and d.seq = a.seq
    and d.state <> 'leased'
  returning d.seq, d.appended_at, d.deliveries
)
update record r set acked_deliveries = g.deliveries from gone g
where r.tenant = %(tenant)s and r.environment = %(environment)s and r.mailbox_id = %(mailbox_id)s and r.seq = g.seq
  and r.appended_at = g.appended_at

-- name: unblock_sender
-- Messages of this sender are like any others again, from now on
delete from block b
where b.tenant = %(tenant)s and b.environment = %(environment)s and b.mailbox_id = %(mailbox_id)s and b.sender = %(sender)s

-- name: subscribe_requests
-- Let the request box wake its owner and be leased, or no longer; the head is held
with subscribed as (
  update mailbox m set requests_subscribed = %(subscribed)s
  where m.tenant = %(tenant)s and m.environment = %(environment)s and m.id = %(mailbox_id)s
), turned as (
  update delivery d set leasable = %(subscribed)s
  from request q
  where q.tenant = %(tenant)s and q.environment = %(environment)s and q.mailbox_id = %(mailbox_id)s
    and d.tenant = q.tenant and d.environment = q.environment and d.mailbox_id = q.mailbox_id and d.seq = q.seq
    and d.state = 'available'
  returning d.seq
)
select min(seq) from turned

-- name: lower_water
-- Leasing has to look again from this seq on, and the owner is to hear of it; the head is held
update mailbox m set low_water = least(m.low_water, %(seq)s), retry_at = '-infinity', hint_due_at = relay.now()
where m.tenant = %(tenant)s and m.environment = %(environment)s and m.id = %(mailbox_id)s

-- name: report_abuse
-- Keep a report on one record of the owner, once; no row when the record is not there
with reported as (
  insert into abuse_report (tenant, environment, mailbox_id, seq, epoch, message_id, sender, reason)
  select r.tenant, r.environment, r.mailbox_id, r.seq, m.epoch, r.message_id, r.sender, %(reason)s
  from mailbox m
  join record r on r.tenant = m.tenant and r.environment = m.environment and r.mailbox_id = m.id and r.seq = %(seq)s
  where m.tenant = %(tenant)s and m.environment = %(environment)s and m.id = %(mailbox_id)s and r.kind = 'message'
    and r.seq >= m.oldest
  on conflict on constraint abuse_report_one_per_record do nothing
  returning seq, message_id, sender, reported_at
)
select seq, message_id, sender, reported_at, true from reported
union all
select a.seq, a.message_id, a.sender, a.reported_at, false from abuse_report a
where a.tenant = %(tenant)s and a.environment = %(environment)s and a.mailbox_id = %(mailbox_id)s and a.seq = %(seq)s
