-- The append with its numbers from a plain sequence: the same rows and indexes, but no order of commits, no repeats
-- recognised, no epoch and no head. A connection that looks here first appends by it.
create sequence if not exists ceiling.seq start 1000000000;
create or replace function ceiling.append_v1(tenants text[], environments text[], owners text[], boxes bigint[],
  message_ids uuid[], kinds text[], types text[], states text[], trusts text[], relationships text[], senders text[],
  waitpoint_ids text[], supersedes uuid[], wakings boolean[], bodies bytea[], announcing boolean default true, again boolean default false)
returns table (ord bigint, mailbox_id bigint, epoch bigint, seq bigint, appended_at timestamptz, hinted boolean)
language plpgsql set search_path = mailbox, relay, pg_temp set enable_hashjoin = off set enable_mergejoin = off
  set enable_material = off set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  ids bigint[];
  at timestamptz := relay.now();
begin
  loop
    select array_agg(m.id order by w.box) into ids
    from unnest(tenants, environments, owners) with ordinality w(tenant, environment, owner, box)
    left join lateral (select m.id from mailbox m
      where m.tenant = w.tenant and m.environment = w.environment and m.owner = w.owner limit 1) m on true;
    exit when array_position(ids, null) is null;
    insert into mailbox (tenant, environment, owner, epoch)
    select w.tenant, w.environment, w.owner, 1
    from unnest(tenants, environments, owners) w(tenant, environment, owner)
    order by 1, 2, 3 on conflict do nothing;
  end loop;
  return query
  with fresh as materialized (
    select w.*, tenants[1] as tenant, environments[1] as environment, ids[w.box] as mailbox_id,
      nextval('ceiling.seq') as seq
    from unnest(boxes, message_ids, kinds, types, states, trusts, relationships, senders, waitpoint_ids, bodies)
        with ordinality
         w(box, message_id, kind, type, state, trust, relationship, sender, waitpoint_id, body, ord)
  ), recorded as (
    insert into record (tenant, environment, mailbox_id, seq, epoch, appended_at, message_id, kind, type, trust,
      relationship, sender, waitpoint_id, body)
    select f.tenant, f.environment, f.mailbox_id, f.seq, 1, at, f.message_id, f.kind, f.type, f.trust, f.relationship,
      f.sender, f.waitpoint_id, f.body
    from fresh f
  ), delivered as (
    insert into delivery (tenant, environment, mailbox_id, seq, appended_at, state, leasable)
    select f.tenant, f.environment, f.mailbox_id, f.seq, at, f.state, true from fresh f
  )
  select f.ord, f.mailbox_id, 1::bigint, f.seq, at, false from fresh f;
end $$;
grant usage on schema ceiling to relay_mailbox_stream;
grant usage on sequence ceiling.seq to relay_mailbox_stream;
