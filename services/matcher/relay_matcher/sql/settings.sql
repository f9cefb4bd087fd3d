-- name: forget_settings
-- Forget the settings of this tenant: what is not set again takes its default.
delete from tenant_setting s where s.tenant = current_setting('relay.tenant') and s.environment = current_setting('relay.environment');

-- name: store_settings
-- Store the settings of this tenant.
insert into tenant_setting (tenant, environment, name, value)
select current_setting('relay.tenant'), current_setting('relay.environment'), q.name, q.value::jsonb
from unnest(%(names)s::text[], %(values)s::text[]) q (name, value);

-- name: settings
-- Read the settings of this tenant.
select s.name, s.value from tenant_setting s
where s.tenant = current_setting('relay.tenant') and s.environment = current_setting('relay.environment');
