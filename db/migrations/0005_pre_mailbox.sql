-- The tables of the mailbox service.
--
-- A mailbox row is the head of its stream: whoever appends holds it to the commit, so seq follows commit order and is dense
-- (design D11). A record never changes once appended and lies in a slice of its day, which retention drops whole. What a
-- reader still has to do with a record is its delivery row; without one the record is acked. A record that dies moves its
-- content into dead_letter, which retention of the stream does not touch.

call relay.plumbing('mailbox');

-- Which history of the database the numbers belong to (design D12). n is the epoch that the next append hands out.
create table mailbox.incarnation (
  only_one boolean primary key default true constraint incarnation_is_one_row check (only_one),
  system_identifier bigint not null,
  timeline text collate "C" not null,
  n bigint not null constraint incarnation_is_positive check (n > 0),
  reason text collate "C" not null,
  changed_at timestamptz not null default relay.now()
);
insert into mailbox.incarnation (system_identifier, timeline, n, reason)
select system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8),
       extract(epoch from relay.now() - timestamptz '2020-01-01 00:00:00+00')::bigint, 'installed'
from pg_control_system();

-- Where Kafka remembered more than Postgres did, and up to which offset: each such find raises the incarnation once.
create table mailbox.witness (
  topic text collate "C" not null,
  partition int not null,
  committed_offset bigint not null,
  constraint witness_one_per_partition primary key (topic, partition)
);

create table mailbox.mailbox (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  owner text collate "C" not null,
  id bigint generated always as identity constraint mailbox_id_is_its_own unique,
  state text collate "C" not null default 'active'
    constraint mailbox_state_is_known check (state in ('active', 'suspended', 'deleted')),
  epoch bigint not null,
  head bigint not null default 0,
  oldest bigint not null default 1,
  low_water bigint not null default 1,
  next_fresh bigint not null default 1,
  retry_at timestamptz not null default 'infinity',
  appended_at timestamptz not null default relay.now(),
  oldest_at timestamptz,
  created_at timestamptz not null default relay.now(),
  requests_subscribed boolean not null default false,
  hinted_at timestamptz not null default '-infinity',
  hint_due_at timestamptz,
  constraint mailbox_one_per_owner primary key (tenant, environment, owner),
  constraint mailbox_oldest_is_within_the_stream check (oldest between 1 and head + 1),
  constraint mailbox_low_water_is_within_the_stream check (low_water between 1 and head + 1),
  constraint mailbox_next_fresh_is_within_the_stream check (next_fresh between low_water and head + 1)
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
create index mailbox_by_oldest_record on mailbox.mailbox (oldest_at);
create index mailbox_by_due_hint on mailbox.mailbox (hint_due_at) where hint_due_at is not null;
comment on column mailbox.mailbox.low_water is 'below it nothing waits for a reader';
comment on column mailbox.mailbox.next_fresh is 'from here on nothing was ever leased';
comment on column mailbox.mailbox.retry_at is 'before this moment nothing between low_water and next_fresh can be leased: a lease scans from next_fresh';
comment on column mailbox.mailbox.hinted_at is 'when the last hint went out; for a second after it others are held back';
comment on column mailbox.mailbox.hint_due_at is 'when the hint that was held back goes out; null when none is';

create table mailbox.record (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  mailbox_id bigint not null,
  seq bigint not null constraint record_seq_is_positive check (seq > 0),
  epoch bigint not null,
  appended_at timestamptz not null,
  message_id uuid not null,
  acked_deliveries int not null default 1,
  kind text collate "C" not null
    constraint record_kind_is_known check (kind in ('message', 'waitpoint_event', 'early_event')),
  type text collate "C" not null,
  trust text collate "C",
  relationship text collate "C",
  sender text collate "C",
  waitpoint_id text collate "C",
  body bytea not null,
  constraint record_seq_is_given_once primary key (mailbox_id, seq, tenant, environment, appended_at),
  constraint record_message_is_appended_once unique (mailbox_id, message_id, tenant, environment, appended_at)
) partition by range (appended_at);
comment on column mailbox.record.acked_deliveries is 'how often it had been leased, once it is acked; before that the delivery row counts';

-- Catches what no slice was opened for (a clock far ahead), so that an append never fails for want of one.
create table mailbox.record_default partition of mailbox.record default;

create table mailbox.delivery (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  mailbox_id bigint not null,
  seq bigint not null,
  appended_at timestamptz not null,
  state text collate "C" not null
    constraint delivery_state_is_known check (state in ('available', 'leased', 'held')),
  leasable boolean not null,
  deliveries int not null default 0,
  lease_token uuid,
  lease_until timestamptz,
  available_at timestamptz,
  constraint delivery_one_per_record primary key (mailbox_id, seq, tenant, environment),
  constraint delivery_lease_has_token_and_end check ((state = 'leased') = (lease_token is not null and lease_until is not null)),
  constraint delivery_held_is_not_leasable check (state <> 'held' or not leasable)
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
-- What waits without being leasable: held records and the request box. The predicate names a column that a lease does not
-- change, so that leasing stays a heap-only update.
create index delivery_not_leasable on mailbox.delivery (mailbox_id, seq) where not leasable;
comment on column mailbox.delivery.leasable is 'false for held records and for those still in the request box';

create table mailbox.dead_letter (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  mailbox_id bigint not null,
  seq bigint not null,
  epoch bigint not null,
  appended_at timestamptz not null,
  message_id uuid not null,
  kind text collate "C" not null,
  type text collate "C" not null,
  trust text collate "C",
  relationship text collate "C",
  sender text collate "C",
  waitpoint_id text collate "C",
  body bytea not null,
  deliveries int not null,
  died_at timestamptz not null,
  constraint dead_letter_one_per_record primary key (tenant, environment, mailbox_id, seq)
);
create index dead_letter_by_death on mailbox.dead_letter (died_at);
create index dead_letter_by_message on mailbox.dead_letter (mailbox_id, message_id);

create table mailbox.cursor (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  mailbox_id bigint not null,
  reader text collate "C" not null constraint cursor_reader_is_named check (octet_length(reader) between 1 and 512),
  epoch bigint not null,
  seq bigint not null constraint cursor_is_not_negative check (seq >= 0),
  reported_at timestamptz not null default relay.now(),
  constraint cursor_one_per_reader primary key (tenant, environment, mailbox_id, reader)
);

-- The request box: records of senders whose relationship is unknown, until the owner accepts or blocks the sender.
create table mailbox.request (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  mailbox_id bigint not null,
  sender text collate "C" not null,
  seq bigint not null,
  appended_at timestamptz not null,
  constraint request_one_per_record primary key (tenant, environment, mailbox_id, sender, seq)
);

create table mailbox.accepted_sender (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  mailbox_id bigint not null,
  sender text collate "C" not null,
  accepted_at timestamptz not null default relay.now(),
  constraint accepted_sender_once primary key (tenant, environment, mailbox_id, sender)
);

create table mailbox.block (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  mailbox_id bigint not null,
  sender text collate "C" not null constraint block_sender_is_named check (octet_length(sender) between 1 and 512),
  blocked_at timestamptz not null default relay.now(),
  constraint block_one_per_sender primary key (tenant, environment, mailbox_id, sender)
);

create table mailbox.abuse_report (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  mailbox_id bigint not null,
  seq bigint not null,
  epoch bigint not null,
  message_id uuid not null,
  sender text collate "C",
  reason text,
  reported_at timestamptz not null default relay.now(),
  constraint abuse_report_one_per_record primary key (tenant, environment, mailbox_id, seq)
);

create table mailbox.subscription (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  topic text collate "C" not null constraint subscription_topic_is_named check (octet_length(topic) between 1 and 512),
  owner text collate "C" not null,
  subscribed_at timestamptz not null default relay.now(),
  constraint subscription_one_per_owner primary key (tenant, environment, topic, owner)
);

-- A message of a topic on its way to the subscribers; after_owner is where the last page ended. Who had a page queues up again.
create table mailbox.fan_out (
  id bigint generated always as identity primary key,
  tenant text collate "C" not null,
  environment text collate "C" not null,
  topic text collate "C" not null,
  message_id uuid not null,
  publisher text collate "C" not null,
  type text collate "C" not null,
  body bytea not null,
  after_owner text collate "C" not null default '',
  accepted_at timestamptz not null default relay.now(),
  queued_at timestamptz not null default relay.now()
) with (fillfactor = 70);
create index fan_out_queue on mailbox.fan_out (queued_at, id);

-- What retention by count took away unacknowledged, a row an append, until the sweeper has counted it.
create table mailbox.trimmed (unacked bigint not null);

-- What the gauges of every process show, and when one of them measures anew.
create table mailbox.measured (
  only_one boolean primary key default true constraint measured_is_one_row check (only_one),
  due_at timestamptz not null default '-infinity',
  figures jsonb not null default '{}'
);
insert into mailbox.measured default values;

-- What a tenant chose; null means the default of relay_common.limits.
create table mailbox.tenant_setting (
  tenant text collate "C" not null,
  environment text collate "C" not null,
  lease_seconds int constraint tenant_setting_lease_is_at_most_12_hours check (lease_seconds between 1 and 43200),
  max_redeliveries int constraint tenant_setting_redeliveries_are_at_most_100 check (max_redeliveries between 0 and 100),
  retention_seconds int constraint tenant_setting_retention_is_at_most_90_days check (retention_seconds between 60 and 7776000),
  max_records int constraint tenant_setting_records_are_at_most_10_million check (max_records between 1 and 10000000),
  constraint tenant_setting_once primary key (tenant, environment)
);

do $$
declare
  tenant_table text;
begin
  foreach tenant_table in array array['mailbox', 'record', 'record_default', 'delivery', 'dead_letter', 'cursor', 'request',
    'accepted_sender', 'block', 'abuse_report', 'subscription', 'fan_out', 'tenant_setting'] loop
    call relay.protect(format('mailbox.%I', tenant_table)::regclass);
  end loop;
end $$;
