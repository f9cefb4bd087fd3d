-- name: open_slices
-- Make the partitions of today and the next days
select open_slices_v1(%(days_ahead)s)

-- name: drop_slices
-- Drop the partitions that are older than the longest retention of any tenant, and than every record that a mailbox still
-- calls its oldest: a head that was locked when its turn came is trimmed later
select drop_slices_v1(least(
  relay.now() - make_interval(secs => greatest(604800, (select max(s.retention_seconds) from tenant_setting s))),
  (select min(m.oldest_at) from mailbox m)))

-- name: expire_records
-- Retention by age of up to so many mailboxes; how many were due, and what of theirs was not acknowledged
select mailboxes, unacked from expire_records_v1(%(wanted)s)

-- name: count_trimmed
-- What the count took away unacknowledged since somebody last asked
with counted as (delete from trimmed returning unacked)
select coalesce(sum(unacked), 0)::bigint from counted

-- name: expire_dead_letters
-- Dead letters nobody redrove within the retention
select expire_dead_letters_v1(%(wanted)s)

-- name: exhausted_mailboxes
-- Hold the heads of mailboxes with records that were redelivered too often and are not leased any more. Such a record
-- stands before next_fresh, and retry_at has come: nobody else's deliveries are read
select m.tenant, m.environment, m.id, m.low_water
from mailbox m
where m.retry_at <= (select relay.now()) and exists (
  select from delivery d
  where d.tenant = m.tenant and d.environment = m.environment and d.mailbox_id = m.id
    and d.seq >= m.low_water and d.seq < m.next_fresh and d.leasable
    and d.deliveries > (select least(5, min(s.max_redeliveries)) from tenant_setting s)
    and (d.state = 'available' or d.lease_until <= (select relay.now()))
    and d.deliveries > (settings_v1(d.tenant, d.environment)).max_redeliveries)
order by m.id limit %(wanted)s for no key update skip locked

-- name: dead_letter_exhausted
-- Dead-letter those among the next leasable records of one mailbox whose head is held; returns how many
select dead_letter_exhausted_v1(%(tenant)s, %(environment)s, %(mailbox_id)s, %(low_water)s, 10000, relay.now())
