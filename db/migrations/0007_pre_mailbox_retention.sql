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

revoke execute on function mailbox.open_slices_v1(int), mailbox.drop_slices_v1(timestamptz) from public;
grant execute on function mailbox.open_slices_v1(int), mailbox.drop_slices_v1(timestamptz) to relay_mailbox_stream;

select mailbox.open_slices_v1(2);
