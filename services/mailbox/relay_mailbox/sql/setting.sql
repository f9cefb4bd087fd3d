-- name: read_settings
-- What the tenant chose; null where it takes the default
select s.lease_seconds, s.max_redeliveries, s.retention_seconds, s.max_records
from (select 1) always
left join tenant_setting s on s.tenant = %(tenant)s and s.environment = %(environment)s

-- name: write_settings
-- Replace what the tenant chose
insert into tenant_setting (tenant, environment, lease_seconds, max_redeliveries, retention_seconds, max_records)
values (%(tenant)s, %(environment)s, %(lease_seconds)s, %(max_redeliveries)s, %(retention_seconds)s, %(max_records)s)
on conflict on constraint tenant_setting_once do update
set lease_seconds = excluded.lease_seconds, max_redeliveries = excluded.max_redeliveries,
    retention_seconds = excluded.retention_seconds, max_records = excluded.max_records

-- name: set_state
-- Change the state of one mailbox; the head is held. One that becomes active again is hinted at: see what waits
update mailbox m
set state = %(state)s,
    hint_due_at = case when %(state)s = 'active' and m.state <> 'active' then relay.now() else m.hint_due_at end
where m.tenant = %(tenant)s and m.environment = %(environment)s and m.id = %(mailbox_id)s
