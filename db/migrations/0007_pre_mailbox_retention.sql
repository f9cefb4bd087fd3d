-- Slices of the record table, and what retention takes away. Slices are made and dropped by functions of the owner, because
-- the roles own nothing (design §6).

-- Opens the slices of today and the next days; returns how many were new. A day whose records already lie in the default
-- slice is left there.
create function mailbox.open_slices_v1(days_ahead int) returns int
language plpgsql security definer set search_path = mailbox, relay, pg_temp as $$
declare
  today date := (relay.now() at time zone 'UTC')::date;
  slice text;
  opened int := 0;
begin
  for ahead in 0..days_ahead loop
    slice := 'record_' || to_char(today + ahead, 'YYYYMMDD');
    continue when to_regclass('mailbox.' || slice) is not null;
    begin
      execute format('create table mailbox.%I partition of mailbox.record for values from (%L) to (%L)', slice,
        (today + ahead)::text || ' 00:00:00+00', (today + ahead + 1)::text || ' 00:00:00+00');
      call relay.protect(format('mailbox.%I', slice)::regclass);
      opened := opened + 1;
    exception
      when check_violation or duplicate_table then null;
    end;
  end loop;
  return opened;
end $$;

-- Drops the slices whose last record is older than `before`; returns how many.
create function mailbox.drop_slices_v1(before timestamptz) returns int
language plpgsql security definer set search_path = mailbox, relay, pg_temp as $$
declare
  slice text;
  dropped int := 0;
begin
  for slice in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'mailbox.record'::regclass and c.relname ~ '^record_[0-9]{8}$'
      and (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'UTC' <= before
    order by c.relname
  loop
    execute format('drop table mailbox.%I', slice);
    dropped := dropped + 1;
  end loop;
  return dropped;
end $$;

-- Retention by age: moves the oldest retained record of up to `wanted` due mailboxes to the first one that is young enough.
-- Returns how many mailboxes were due and how many records were taken away that nobody had acknowledged.
create function mailbox.expire_records_v1(wanted int, out mailboxes int, out unacked bigint)
language plpgsql set search_path = mailbox, relay, pg_temp as $$
declare
  at timestamptz := relay.now();
  shortest interval := make_interval(secs => (select least(604800, min(retention_seconds)) from tenant_setting));
  box record;
begin
  mailboxes := 0;
  unacked := 0;
  for box in
    select m.tenant, m.environment, m.id, m.head, at - make_interval(secs => s.retention_seconds) as since
    from mailbox m cross join lateral settings_v1(m.tenant, m.environment) s
    where m.oldest_at < at - shortest and m.oldest_at < at - make_interval(secs => s.retention_seconds)
    order by m.id limit wanted for no key update of m skip locked
  loop
    mailboxes := mailboxes + 1;
    unacked := unacked + trim_v1(box.tenant, box.environment, box.id, coalesce((
      select r.seq from record r
      where r.tenant = box.tenant and r.environment = box.environment and r.mailbox_id = box.id and r.appended_at >= box.since
      order by r.seq limit 1), box.head + 1), true);
  end loop;
end $$;

-- Dead letters that nobody redrove within the retention, counted from their death.
create function mailbox.expire_dead_letters_v1(wanted int) returns int
language plpgsql set search_path = mailbox, relay, pg_temp as $$
declare
  at timestamptz := relay.now();
  removed int;
begin
  with due as (
    select x.tenant, x.environment, x.mailbox_id, x.seq
    from dead_letter x cross join lateral settings_v1(x.tenant, x.environment) s
    where x.died_at < at - make_interval(secs => s.retention_seconds)
      and x.died_at < at - make_interval(secs => (select least(604800, min(retention_seconds)) from tenant_setting))
    order by x.died_at limit wanted for update of x skip locked)
  delete from dead_letter x using due
  where x.tenant = due.tenant and x.environment = due.environment and x.mailbox_id = due.mailbox_id and x.seq = due.seq;
  get diagnostics removed = row_count;
  return removed;
end $$;

-- Dead letters back into their stream: available under their old seq where the record is retained, else the same message
-- appended again, so that what supersedes it finds it. Delivery counts start anew. The caller holds the head. Null seqs mean all, at most `wanted`.
create function mailbox.redrive_v1(p_tenant text, p_environment text, p_mailbox_id bigint, seqs bigint[], wanted int)
returns bigint language plpgsql set search_path = mailbox, relay, pg_temp as $$
declare
  here mailbox := (select m from mailbox m where m.tenant = p_tenant and m.environment = p_environment and m.id = p_mailbox_id);
  revived dead_letter[];
  again dead_letter[];
begin
  with chosen as (
    select x.seq from dead_letter x
    where x.tenant = p_tenant and x.environment = p_environment and x.mailbox_id = p_mailbox_id
      and (seqs is null or x.seq = any(seqs))
    order by x.seq limit wanted for update
  ), gone as (
    delete from dead_letter x using chosen c
    where x.tenant = p_tenant and x.environment = p_environment and x.mailbox_id = p_mailbox_id and x.seq = c.seq
    returning x)
  select array_agg(g.x order by (g.x).seq) filter (where (g.x).seq >= here.oldest),
    array_agg(g.x order by (g.x).seq) filter (where (g.x).seq < here.oldest)
  into revived, again from gone g;

  insert into delivery (tenant, environment, mailbox_id, seq, appended_at, state, leasable)
  select v.tenant, v.environment, v.mailbox_id, v.seq, v.appended_at, 'available', true from unnest(revived) v;
  update mailbox m set low_water = least(m.low_water, revived[1].seq), retry_at = '-infinity', hint_due_at = relay.now()
  where m.tenant = p_tenant and m.environment = p_environment and m.id = p_mailbox_id and cardinality(revived) > 0;

  perform append_v1(array[p_tenant], array[p_environment], array[here.owner], array_agg(1::bigint),
    array_agg(v.message_id order by v.seq), array_agg(v.kind order by v.seq), array_agg(v.type order by v.seq), array_agg('available'::text),
    array_agg(v.trust order by v.seq), array_agg(null::text), array_agg(null::text), array_agg(v.waitpoint_id order by v.seq),
    array_agg(null::uuid), array_agg(true), array_agg(v.body order by v.seq), false, true)
  from unnest(again) v having count(*) > 0;
  return coalesce(cardinality(revived), 0) + coalesce(cardinality(again), 0);
end $$;

revoke execute on function mailbox.open_slices_v1(int), mailbox.drop_slices_v1(timestamptz) from public;
grant execute on function mailbox.open_slices_v1(int), mailbox.drop_slices_v1(timestamptz) to relay_mailbox_stream;

select mailbox.open_slices_v1(2);
