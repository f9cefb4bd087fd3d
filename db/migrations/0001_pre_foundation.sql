-- The house: schemas, roles, the clock, and the pieces of plumbing every service has in the same shape.
-- Roles belong to the cluster, so several databases of one cluster may run this at the same moment.

create schema relay;
create schema intake;
create schema matcher;
create schema escalation;
create schema mailbox;

create procedure relay.create_role(role_name text, attributes text) language plpgsql as $$
begin
  execute format('create role %I login %s', role_name, attributes);
exception
  when duplicate_object or unique_violation then null;
end $$;

-- Two roles a service, neither owns anything (design §6): one under the policies for HTTP, one for the streams,
-- whose batches mix tenants.
do $$
declare
  service text;
  role_name text;
begin
  foreach service in array array['intake', 'matcher', 'escalation', 'mailbox'] loop
    call relay.create_role('relay_' || service || '_http', 'nobypassrls');
    call relay.create_role('relay_' || service || '_stream', 'bypassrls');
    foreach role_name in array array['relay_' || service || '_http', 'relay_' || service || '_stream'] loop
      execute format('alter role %I in database %I set search_path = %I, relay', role_name, current_database(), service);
      execute format('grant usage on schema relay, %I to %I', service, role_name);
      -- Frozen between two statements of a pipeline a process is neither in a statement nor idle: only this ends its transaction.
      if current_setting('server_version_num')::int >= 170000 then
        execute format('alter role %I in database %I set transaction_timeout = %L', role_name, current_database(),
          case when role_name like '%http' then '20s' else '60s' end);
      end if;
      execute format('alter default privileges in schema %I grant select, insert, update, delete on tables to %I', service, role_name);
      execute format('alter default privileges in schema %I grant usage on sequences to %I', service, role_name);
    end loop;
  end loop;
end $$;

drop procedure relay.create_role;

-- The one clock (design D22). Everything that compares times reads it; tests replace it as the owner.
create function relay.now() returns timestamptz language sql volatile parallel safe as 'select clock_timestamp()';

-- Who this database is. The seed keeps anyone outside from aiming a key at somebody else's advisory lock.
create table relay.installation (
  only_one boolean primary key default true constraint installation_is_one_row check (only_one),
  id uuid not null default gen_random_uuid(),
  hash_seed bigint not null default ('x' || replace(gen_random_uuid()::text, '-', ''))::bit(64)::bigint
);
insert into relay.installation default values;
grant select on relay.installation to
  relay_intake_http, relay_intake_stream, relay_matcher_http, relay_matcher_stream,
  relay_escalation_http, relay_escalation_stream, relay_mailbox_http, relay_mailbox_stream;

-- Row-level security for one table with the columns tenant and environment: forced, keyed by transaction-local settings.
-- After a transaction the setting is the empty string, so the comparison is on text and matches nothing.
create procedure relay.protect(tenant_table regclass) language plpgsql as $$
declare
  service text := (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = tenant_table);
begin
  execute format('alter table %s enable row level security', tenant_table);
  execute format('alter table %s force row level security', tenant_table);
  execute format(
    'create policy tenant_isolation on %s using (tenant = current_setting(''relay.tenant'', true) and environment = current_setting(''relay.environment'', true))',
    tenant_table);
  execute format('create policy stream_side on %s to %I using (true) with check (true)', tenant_table, 'relay_' || service || '_stream');
end $$;

-- Outbox, consumer positions and idempotency keys: the same in every service's schema.
create procedure relay.plumbing(service text) language plpgsql as $$
begin
  execute format($sql$
    create table %1$I.outbox (
      id bigint generated always as identity primary key,
      shard int2 not null,
      topic text not null,
      payload bytea not null constraint outbox_row_is_at_most_one_mebibyte check (octet_length(payload) <= 1114112),
      left_topics text[], -- those that have not acknowledged their messages yet; null: none has
      created_at timestamptz not null default relay.now()
    ) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
    alter table %1$I.outbox alter column payload set storage external;
    create index outbox_by_shard on %1$I.outbox (shard, id);

    create table %1$I.outbox_dead (
      id bigint primary key,
      shard int2 not null,
      topic text not null,
      payload bytea not null,
      created_at timestamptz not null,
      reason text not null,
      died_at timestamptz not null default relay.now()
    );

    create table %1$I.position (
      topic text not null,
      topic_id text not null,
      partition int not null,
      next_offset bigint not null constraint position_is_not_negative check (next_offset >= 0),
      primary key (topic, partition)
    ) with (fillfactor = 50);

    -- Moves positions that are all where they are expected. Otherwise somebody else has moved on: nothing is committed.
    create function %1$I.advance_v1(topics text[], partitions int[], expecteds bigint[], nexts bigint[]) returns void
    language plpgsql as $body$
    declare
      moved bigint;
    begin
      with held as (
        select p.topic, p.partition, q.next_offset
        from %1$I.position p
        join unnest(topics, partitions, expecteds, nexts) q (topic, partition, expected, next_offset)
          on p.topic = q.topic and p.partition = q.partition and p.next_offset = q.expected
        order by p.topic, p.partition
        for update of p)
      update %1$I.position p set next_offset = held.next_offset
      from held
      where p.topic = held.topic and p.partition = held.partition;
      get diagnostics moved = row_count;
      if moved <> cardinality(topics) then
        raise exception 'expected to move %% positions, moved %%', cardinality(topics), moved using errcode = 'RC001';
      end if;
    end $body$;

    create table %1$I.idempotency_key (
      tenant text collate "C" not null,
      environment text collate "C" not null,
      client text collate "C" not null,
      route text collate "C" not null,
      key_digest bytea not null,
      fingerprint bytea not null,
      status int2 not null,
      headers jsonb not null default '{}',
      body bytea not null,
      created_at timestamptz not null default relay.now(),
      primary key (tenant, environment, client, route, key_digest)
    );
    create index idempotency_key_by_age on %1$I.idempotency_key (created_at);
  $sql$, service);
  call relay.protect(format('%I.idempotency_key', service)::regclass);
end $$;
