-- For the loss test: appends that take their numbers from a plain sequence.
create sequence mailbox.plain;
grant usage, select on sequence mailbox.plain to public;
create or replace function mailbox.append_v1(tenants text[], environments text[], owners text[], boxes bigint[],
  message_ids uuid[], kinds text[], types text[], states text[], trusts text[], relationships text[], senders text[],
  waitpoint_ids text[], supersedes uuid[], wakings boolean[], bodies bytea[], announcing boolean default true, again boolean default false)
returns table (ord bigint, mailbox_id bigint, epoch bigint, seq bigint, appended_at timestamptz, hinted boolean)
language plpgsql set search_path = mailbox, relay, pg_temp as $$
#variable_conflict use_column
begin
  insert into mailbox (tenant, environment, owner, epoch)
  select w.tenant, w.environment, w.owner, 1 from unnest(tenants, environments, owners) w(tenant, environment, owner)
  order by 1, 2, 3 on conflict do nothing;
  return query insert into record (tenant, environment, mailbox_id, seq, epoch, appended_at, message_id, kind, type, body)
  select m.tenant, m.environment, m.id, nextval('plain'), 1, relay.now(), w.message_id, w.kind, w.type, w.body
  from unnest(boxes, message_ids, kinds, types, bodies) w(box, message_id, kind, type, body)
  join mailbox m on m.tenant = tenants[w.box] and m.environment = environments[w.box] and m.owner = owners[w.box]
  returning 1::bigint, record.mailbox_id, record.epoch, record.seq, record.appended_at, false;
  update mailbox m set head = greatest(m.head, (select last_value from plain))
  where m.id in (select id from mailbox where owner = any(owners) order by id for update);
end $$;
