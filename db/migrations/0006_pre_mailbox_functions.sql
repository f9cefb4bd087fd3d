-- The atomic steps of the mailbox that both sides take: the stream in batches, HTTP one by one, through the same function.
-- Lock order: heads in id order, then deliveries in seq order. The clock and the heads are read in statements after the lock.

-- The settings of a tenant with the defaults filled in. A test compares them with relay_common.limits.
create function mailbox.settings_v1(p_tenant text, p_environment text, out lease_seconds int, out max_redeliveries int,
  out retention_seconds int, out max_records int)
language sql stable set search_path = mailbox, relay, pg_temp as $$
  select coalesce(s.lease_seconds, 30), coalesce(s.max_redeliveries, 5), coalesce(s.retention_seconds, 604800),
         coalesce(s.max_records, 1000000)
  from (select 1) always left join tenant_setting s on s.tenant = p_tenant and s.environment = p_environment;
$$;

-- Raises n because Postgres went back in time, or is another cluster; returns the n that stands.
create function mailbox.raise_incarnation_v1(p_reason text) returns bigint
language sql set search_path = mailbox, relay, pg_temp as $$
  update incarnation
  set n = greatest(n + 1, extract(epoch from relay.now() - timestamptz '2020-01-01 00:00:00+00')::bigint),
      system_identifier = (select c.system_identifier from pg_control_system() c),
      timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8),
      reason = p_reason, changed_at = relay.now()
  returning n;
$$;

-- The epoch that an append hands out now. Detects a promotion or point-in-time recovery by the timeline of the WAL being
-- written (pg_control_checkpoint() lags after a promotion), and a restore into another cluster by its identifier.
create function mailbox.incarnation_v1() returns bigint
language plpgsql set search_path = mailbox, relay, pg_temp as $$
declare
  here incarnation;
begin
  select true, c.system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8), i.n, i.reason, i.changed_at
    into here from incarnation i, pg_control_system() c;
  if exists (select from incarnation i where i.system_identifier = here.system_identifier and i.timeline = here.timeline) then
    return here.n;
  end if;
  -- One of the appends that find it raises; the others wait for that row and find it raised.
  perform from incarnation for update;
  if exists (select from incarnation i where i.system_identifier = here.system_identifier and i.timeline = here.timeline) then
    return (select i.n from incarnation i);
  end if;
  return raise_incarnation_v1(case when exists (select from incarnation i where i.system_identifier = here.system_identifier)
    then 'timeline_changed' else 'system_identifier_changed' end);
end $$;

-- Moves the oldest retained record of a mailbox up to `new_oldest`. The count may not take a held record away, age may
-- (design D1): so this stops before the first held one. The caller holds the head. Returns what nobody had acknowledged.
create function mailbox.trim_v1(p_tenant text, p_environment text, p_mailbox_id bigint, new_oldest bigint, by_age boolean default false)
returns bigint language plpgsql set search_path = mailbox, relay, pg_temp as $$
declare
  first_held bigint;
  dropped bigint;
begin
  if not by_age then
    select min(d.seq) into first_held from delivery d
    where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and not d.leasable
      and d.state = 'held';
    new_oldest := least(new_oldest, first_held);
  end if;
  delete from delivery d
  where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and d.seq < new_oldest;
  get diagnostics dropped = row_count;
  delete from request q
  where q.tenant = p_tenant and q.environment = p_environment and q.mailbox_id = p_mailbox_id and q.seq < new_oldest;
  update mailbox m set oldest = new_oldest, low_water = greatest(m.low_water, new_oldest),
    next_fresh = greatest(m.next_fresh, new_oldest),
    oldest_at = (select r.appended_at from record r where r.tenant = p_tenant and r.environment = p_environment
      and r.mailbox_id = p_mailbox_id and r.seq = new_oldest)
  where m.tenant = p_tenant and m.environment = p_environment and m.id = p_mailbox_id and m.oldest < new_oldest;
  return dropped;
end $$;

-- Look-ups are laterals with a limit: on a table that was never analysed every prefix of a key looks like one row, and any
-- other shape may read all of a tenant for each record. This one takes the whole key whatever the statistics say. Records
-- have two such keys; the order by, over a range of one value, says which of them to use.
--
-- Appends a batch: creates mailboxes on first use, locks the heads in id order, and in a new statement deduplicates by
-- message id, numbers densely and inserts. The owners of the batch are given once each; `boxes` says for every record which
-- of them gets it. Returns the fresh records; an input that is missing was a duplicate. A repeat is recognised as long as
-- its record is retained, and for a day at least: slices outside of that are not searched (ADR 15). Without enable_sort the search
-- goes by message id whatever the statistics say: the other index has no order by it. The plan is generic, because with
-- arrays each batch would be planned anew, which takes longer than to append one record; and without enable_seqscan, because
-- it may be as old as the empty tables.
-- hinted says that the owner has to be woken now; within a second of its last hint it becomes due instead (ADR 14), and
-- at once where the caller is not `announcing`. What a record supersedes is acked in the same step, whoever holds it or asks
-- with it, dead or alive. `again` appends what the stream has had before.
create function mailbox.append_v1(tenants text[], environments text[], owners text[], boxes bigint[], message_ids uuid[],
  kinds text[], types text[], states text[], trusts text[], relationships text[], senders text[], waitpoint_ids text[],
  supersedes uuid[], wakings boolean[], bodies bytea[], announcing boolean default true, again boolean default false)
returns table (ord bigint, mailbox_id bigint, epoch bigint, seq bigint, appended_at timestamptz, hinted boolean)
language plpgsql set search_path = mailbox, relay, pg_temp set enable_hashjoin = off set enable_mergejoin = off set enable_material = off
  set enable_sort = off set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  incarnation_now bigint;
  at timestamptz;
  since timestamptz;
  until timestamptz;
  ids bigint[];
  locked bigint;
begin
  loop
    select array_agg(m.id order by w.box) into ids
    from unnest(tenants, environments, owners) with ordinality w(tenant, environment, owner, box)
    left join lateral (select m.id from mailbox m
      where m.tenant = w.tenant and m.environment = w.environment and m.owner = w.owner limit 1) m on true;
    exit when array_position(ids, null) is null;
    insert into mailbox (tenant, environment, owner, epoch)
    select w.tenant, w.environment, w.owner, (select i.n from incarnation i)
    from unnest(tenants, environments, owners, ids) w(tenant, environment, owner, id)
    where w.id is null
    order by 1, 2, 3
    on conflict do nothing;
  end loop;
  select count(*), min(h.oldest_at), max(h.appended_at) into locked, since, until
  from (select m.oldest_at, m.appended_at from mailbox m where m.id = any(ids) order by m.id for no key update) h;
  if locked <> cardinality(ids) then
    raise exception 'expected to lock % heads, found %', cardinality(ids), locked using errcode = 'RM001';
  end if;

  incarnation_now := incarnation_v1();
  at := relay.now();
  since := least(since, at - interval '1 day');
  until := greatest(until, at);
  return query
  with item as materialized (
    select distinct on (m.id, w.message_id) w.*, m.tenant, m.environment, m.id as mailbox_id, m.head,
      m.state as mailbox_state, m.requests_subscribed, least(m.oldest_at, at - interval '1 day') as oldest_at,
      announcing and m.hinted_at not between at - interval '1 second' and at as hintable,
      greatest(m.epoch, incarnation_now) as epoch, greatest(m.appended_at, at) as appended_at
    from unnest(boxes, message_ids, kinds, types, states, trusts, relationships, senders, waitpoint_ids, wakings, bodies)
        with ordinality
         w(box, message_id, kind, type, state, trust, relationship, sender, waitpoint_id, waking, body, ord)
    cross join lateral (select m.* from mailbox m where m.id = ids[w.box] limit 1) m
    order by m.id, w.message_id, w.ord
  ), fresh as materialized (
    select i.*, i.head + row_number() over (partition by i.mailbox_id order by i.ord) as seq,
      j.blocked, j.requesting,
      i.waking and i.state = 'available' and i.mailbox_state <> 'deleted' and not j.blocked
        and (not j.requesting or i.requests_subscribed) as wakes
    from item i
    left join lateral (select b.sender from block b where b.tenant = i.tenant and b.environment = i.environment
      and b.mailbox_id = i.mailbox_id and b.sender = i.sender and i.kind = 'message' limit 1) b on true
    left join lateral (select a.sender from accepted_sender a where a.tenant = i.tenant and a.environment = i.environment
      and a.mailbox_id = i.mailbox_id and a.sender = i.sender limit 1) a on true
    cross join lateral (select b.sender is not null as blocked,
      i.kind = 'message' and i.relationship is not distinct from 'unknown' and b.sender is null and a.sender is null
        and i.sender is not null as requesting) j
    left join lateral (select true as found from record r where r.tenant = i.tenant and r.environment = i.environment
      and r.mailbox_id = i.mailbox_id and r.message_id between i.message_id and i.message_id
      and r.appended_at between since and until and r.appended_at >= i.oldest_at
      order by r.message_id limit 1) r on true
    where again or r.found is null
  ), advanced as (
    update mailbox m
    set head = f.last_seq, epoch = f.epoch, appended_at = f.appended_at, oldest_at = coalesce(m.oldest_at, f.appended_at),
      hinted_at = case when f.wakes and f.hintable then at else m.hinted_at end,
      hint_due_at = case
        when not f.wakes then m.hint_due_at
        when f.hintable then null
        when announcing then coalesce(m.hint_due_at, m.hinted_at + interval '1 second')
        else at end
    from (select mailbox_id, epoch, appended_at, hintable, max(seq) as last_seq, bool_or(wakes) as wakes
      from fresh group by 1, 2, 3, 4) f
    where m.id = f.mailbox_id
  ), recorded as (
    insert into record (tenant, environment, mailbox_id, seq, epoch, appended_at, message_id, acked_deliveries, kind, type,
      trust, relationship, sender, waitpoint_id, body)
    select f.tenant, f.environment, f.mailbox_id, f.seq, f.epoch, f.appended_at, f.message_id,
      case when f.state = 'acked' or f.blocked then 0 else 1 end, f.kind, f.type,
      case when f.blocked then 'blocked' else f.trust end, f.relationship, f.sender, f.waitpoint_id, f.body
    from fresh f
    order by f.mailbox_id, f.seq
  ), delivered as (
    insert into delivery (tenant, environment, mailbox_id, seq, appended_at, state, leasable)
    select f.tenant, f.environment, f.mailbox_id, f.seq, f.appended_at, f.state,
      f.state = 'available' and (not f.requesting or f.requests_subscribed)
    from fresh f
    where f.state <> 'acked' and not f.blocked
    order by f.mailbox_id, f.seq
  ), requested as (
    insert into request (tenant, environment, mailbox_id, sender, seq, appended_at)
    select f.tenant, f.environment, f.mailbox_id, f.sender, f.seq, f.appended_at
    from fresh f
    where f.requesting
  )
  select f.ord, f.mailbox_id, f.epoch, f.seq, f.appended_at, f.wakes and f.hintable
  from fresh f
  order by f.ord;

  -- Acknowledgements hold deliveries without a head, in this order; an "acked" of theirs that came first stands. Of a message that
  -- was redriven into a new record only the newest can still wait.
  if cardinality(array_remove(supersedes, null)) > 0 then
    with superseded as materialized (
      select r.tenant, r.environment, r.mailbox_id, r.seq, r.appended_at
      from unnest(boxes, supersedes) w(box, message_id)
      cross join lateral (select r.* from record r where r.tenant = tenants[w.box] and r.environment = environments[w.box]
        and r.mailbox_id = ids[w.box] and r.message_id between w.message_id and w.message_id
        order by r.message_id desc, r.appended_at desc limit 1) r
      order by r.mailbox_id, r.seq
    ), locked as materialized (
      select s.* from superseded s
      cross join lateral (select from delivery d where d.tenant = s.tenant and d.environment = s.environment
        and d.mailbox_id = s.mailbox_id and d.seq = s.seq limit 1 for update) d
    ), asked as (
      delete from request q using locked l
      where q.tenant = l.tenant and q.environment = l.environment and q.mailbox_id = l.mailbox_id and q.seq = l.seq
    ), taken as (
      delete from delivery d using locked l
      where d.tenant = l.tenant and d.environment = l.environment and d.mailbox_id = l.mailbox_id and d.seq = l.seq
      returning d.tenant, d.environment, d.mailbox_id, d.seq, d.appended_at, d.deliveries
    ), buried as (
      delete from dead_letter x using unnest(boxes, supersedes) w(box, message_id)
      where x.tenant = tenants[w.box] and x.environment = environments[w.box] and x.mailbox_id = ids[w.box]
        and x.message_id = w.message_id
      returning x.tenant, x.environment, x.mailbox_id, x.seq, x.appended_at, x.deliveries)
    update record r set acked_deliveries = t.deliveries from (select * from taken union all select * from buried) t
    where r.tenant = t.tenant and r.environment = t.environment and r.mailbox_id = t.mailbox_id and r.seq = t.seq
      and r.appended_at = t.appended_at;
  end if;

  -- Retention by count, only looked at closely when some mailbox of the batch may have too many.
  insert into trimmed (unacked)
  select sum(t.unacked) from mailbox m
  cross join lateral settings_v1(m.tenant, m.environment) s
  cross join lateral (select trim_v1(m.tenant, m.environment, m.id, m.head - s.max_records + 1) as unacked) t
  where m.id = any(ids) and m.head - m.oldest >= (select least(1000000, min(t.max_records)) from tenant_setting t)
    and m.head - m.oldest >= s.max_records
  having sum(t.unacked) > 0;
end $$;

-- The next `wanted` records after `since` up to `head`, in seq order, found by their seq whatever the statistics say.
create function mailbox.page_v1(p_tenant text, p_environment text, p_mailbox_id bigint, since bigint, head bigint, wanted int)
returns setof mailbox.record
language sql stable set search_path = mailbox, relay, pg_temp set enable_sort = off as $$
  select r.* from record r
  where r.tenant = p_tenant and r.environment = p_environment and r.mailbox_id = p_mailbox_id and r.seq > since and r.seq <= head
  order by r.seq limit wanted;
$$;

-- What can be leased now, in seq order from `low`: available and due, or leased and expired. Expiry is judged here, by the
-- database clock; no reaper is needed for it.
create function mailbox.leasable_v1(p_tenant text, p_environment text, p_mailbox_id bigint, low bigint, wanted int, at timestamptz)
returns table (seq bigint, deliveries int, appended_at timestamptz)
language sql set search_path = mailbox, relay, pg_temp as $$
  select d.seq, d.deliveries, d.appended_at from delivery d
  where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and d.seq >= low and d.leasable
    and ((d.state = 'available' and (d.available_at is null or d.available_at <= at))
      or (d.state = 'leased' and d.lease_until <= at))
  order by d.seq limit wanted
  for no key update skip locked;
$$;

-- Moves into dead_letter what stands among the next `wanted` leasable records and was redelivered too often, and appends
-- one notice for each to the same mailbox; a notice that dies leaves no further notice. The caller holds the head.
create function mailbox.dead_letter_exhausted_v1(p_tenant text, p_environment text, p_mailbox_id bigint, low bigint, wanted int,
  at timestamptz) returns int
language plpgsql set search_path = mailbox, relay, pg_temp set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
declare
  allowed int := (mailbox.settings_v1(p_tenant, p_environment)).max_redeliveries;
  dead_seqs bigint[];
  total int := 0;
begin
  loop
    with dying as (
      delete from delivery d using leasable_v1(p_tenant, p_environment, p_mailbox_id, low, wanted, at) l
      where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and d.seq = l.seq
        and d.deliveries > allowed
      returning d.*
    ), dead as (
      insert into dead_letter (tenant, environment, mailbox_id, seq, epoch, appended_at, message_id, kind, type, trust,
        relationship, sender, waitpoint_id, body, deliveries, died_at)
      select r.tenant, r.environment, r.mailbox_id, r.seq, r.epoch, r.appended_at, r.message_id, r.kind, r.type, r.trust,
        r.relationship, r.sender, r.waitpoint_id, r.body, d.deliveries, at
      from dying d cross join lateral (select r.* from record r where r.tenant = d.tenant and r.environment = d.environment
        and r.mailbox_id = d.mailbox_id and r.seq between d.seq and d.seq and r.appended_at = d.appended_at
        order by r.seq limit 1) r
      returning seq)
    select array_agg(dead.seq order by dead.seq) into dead_seqs from dead;
    exit when dead_seqs is null;
    total := total + cardinality(dead_seqs);
    perform notice_dead_letters_v1(p_tenant, p_environment, p_mailbox_id, dead_seqs, at);
  end loop;
  return total;
end $$;

create function mailbox.notice_dead_letters_v1(p_tenant text, p_environment text, p_mailbox_id bigint, dead_seqs bigint[],
  at timestamptz) returns void
language sql set search_path = mailbox, relay, pg_temp as $$
  with notice as (
    select m.owner, encode(substr(sha256(convert_to(concat_ws(':', 'dead-letter-notice', d.message_id, d.seq, at), 'UTF8')), 1, 16),
        'hex')::uuid as message_id,
      convert_to(jsonb_build_object('type', 'mailbox.record_dead_lettered', 'epoch', d.epoch, 'seq', d.seq,
        'record_type', d.type, 'kind', d.kind, 'deliveries', d.deliveries,
        'occurred_at', to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))::text, 'UTF8') as body,
      row_number() over (order by d.seq) as ord
    from dead_letter d join mailbox m on m.tenant = d.tenant and m.environment = d.environment and m.id = d.mailbox_id
    where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and d.seq = any(dead_seqs)
      and d.type <> 'mailbox.record_dead_lettered'
  ), batch as (
    select count(*)::int as size, min(owner) as owner, array_agg(message_id order by ord) as message_ids,
      array_agg(body order by ord) as bodies
    from notice)
  select count(*) from batch b, append_v1(array[p_tenant], array[p_environment], array[b.owner],
    array_fill(1::bigint, array[b.size]), b.message_ids, array_fill('message'::text, array[b.size]), array_fill('mailbox.record_dead_lettered'::text, array[b.size]),
    array_fill('available'::text, array[b.size]), array_fill('relay'::text, array[b.size]), array_fill(null::text, array[b.size]),
    array_fill(null::text, array[b.size]), array_fill(null::text, array[b.size]), array_fill(null::uuid, array[b.size]),
    array_fill(true, array[b.size]), b.bodies, false)
  where b.size > 0;
$$;

-- Leases up to `wanted` records in seq order to `token`. The caller holds the head. After a first redelivery a record is
-- handed out alone, so that one that kills its reader does not burn its neighbours. A lease ends before 4 MiB of bodies.
-- While nothing that was leased before can be leased again (retry_at), only fresh records are looked at: records that
-- others hold cost nothing.
create function mailbox.lease_v1(p_tenant text, p_environment text, p_mailbox_id bigint, wanted int, seconds int, token uuid)
returns table (seq bigint, deliveries int, lease_until timestamptz)
language plpgsql set search_path = mailbox, relay, pg_temp set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
#variable_conflict use_column
declare
  at timestamptz := relay.now();
  here mailbox := (select m from mailbox m where m.tenant = p_tenant and m.environment = p_environment and m.id = p_mailbox_id);
  again boolean := here.retry_at <= at;
  low bigint := case when again then here.low_water else here.next_fresh end;
  settings record := mailbox.settings_v1(p_tenant, p_environment);
  taken bigint[];
  ends timestamptz := at + make_interval(secs => coalesce(seconds, settings.lease_seconds));
begin
  if again then
    perform dead_letter_exhausted_v1(p_tenant, p_environment, p_mailbox_id, low, wanted, at);
  end if;

  with candidate as materialized (
    select l.seq, l.deliveries, octet_length(r.body) as bytes
    from leasable_v1(p_tenant, p_environment, p_mailbox_id, low, wanted, at) l
    cross join lateral (select r.body from record r where r.tenant = p_tenant and r.environment = p_environment
      and r.mailbox_id = p_mailbox_id and r.seq between l.seq and l.seq and r.appended_at = l.appended_at
      order by r.seq limit 1) r
  ), run as (
    select c.seq, row_number() over (order by c.seq) as place, sum(c.bytes) over (order by c.seq) as bytes,
      count(*) filter (where c.deliveries >= greatest(1, least(2, settings.max_redeliveries))) over (order by c.seq) as alone
    from candidate c)
  select array_agg(r.seq) into taken from run r where r.place = 1 or (r.alone = 0 and r.bytes <= 4194304);

  return query
  update delivery d
  set state = 'leased', deliveries = d.deliveries + 1, lease_token = token, available_at = null, lease_until = ends
  where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and d.seq = any(taken)
  returning d.seq, d.deliveries, d.lease_until;

  perform move_marks_v1(p_tenant, p_environment, p_mailbox_id, token, ends, again);
end $$;

-- Moves the marks of a mailbox after a lease by `token` that `ends` then: see the columns' comments.
create function mailbox.move_marks_v1(p_tenant text, p_environment text, p_mailbox_id bigint, token uuid, ends timestamptz,
  again boolean) returns void
language plpgsql set search_path = mailbox, relay, pg_temp as $$
declare
  here mailbox := (select m from mailbox m where m.tenant = p_tenant and m.environment = p_environment and m.id = p_mailbox_id);
  water bigint := coalesce((select d.seq from delivery d
    where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and d.seq >= here.low_water
      and d.leasable
    order by d.seq limit 1), here.head + 1);
  -- The first one this lease left: it may stand before one it took, when an acknowledgement held it just then.
  fresh bigint := coalesce((select d.seq from delivery d
    where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and d.seq >= here.next_fresh
      and d.leasable and d.lease_token is distinct from token
    order by d.seq limit 1), here.head + 1);
begin
  fresh := greatest(here.next_fresh, fresh, water);
  update mailbox m
  set low_water = water, next_fresh = fresh,
    retry_at = case when again then coalesce((
        select min(case d.state when 'leased' then d.lease_until else coalesce(d.available_at, '-infinity') end) from delivery d
        where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = p_mailbox_id and d.seq >= water
          and d.seq < fresh and d.leasable), 'infinity')
      else least(here.retry_at, ends) end
  where m.tenant = p_tenant and m.environment = p_environment and m.id = p_mailbox_id;
end $$;

-- Acknowledges (mailbox, token, seq) items; one result for each, in order. The rows are locked first: a second acker then
-- reads, in a new snapshot, what the first one did.
create function mailbox.acknowledge_v1(p_tenant text, p_environment text, mailbox_ids bigint[], tokens uuid[], seqs bigint[])
returns table (ord bigint, result text)
language plpgsql set search_path = mailbox, relay, pg_temp set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
#variable_conflict use_column
declare
  at timestamptz;
  lease record;
  gone delivery;
begin
  perform from (select distinct * from unnest(mailbox_ids, seqs) order by 1, 2) w(mailbox_id, seq)
    cross join lateral (select from delivery d
      where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = w.mailbox_id and d.seq = w.seq
      limit 1 for update) d;
  at := relay.now();
  -- The laterals keep the shape of the plan also before the tables were ever analysed.
  return query
  with asked as materialized (
    select w.*, row_number() over (partition by w.mailbox_id, w.seq, w.token order by w.ord) as time,
      d.seq is not null as waits, d.state = 'leased' and d.lease_token = w.token and d.lease_until > at as ours
    from unnest(mailbox_ids, tokens, seqs) with ordinality w(mailbox_id, token, seq, ord)
    left join lateral (
      select d.seq, d.state, d.lease_token, d.lease_until from delivery d
      where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = w.mailbox_id and d.seq = w.seq limit 1) d on true
  )
  select a.ord,
    case
      when a.ours and a.time = 1 then 'acked'
      when a.ours then 'already_acked'
      when a.waits or x.seq is not null then 'lease_lost'
      when a.seq between m.oldest and m.head then 'already_acked'
      else 'not_found'
    end
  from asked a
  left join lateral (
    select m.oldest, m.head from mailbox m
    where m.tenant = p_tenant and m.environment = p_environment and m.id = a.mailbox_id limit 1) m on true
  left join lateral (
    select x.seq from dead_letter x
    where x.tenant = p_tenant and x.environment = p_environment and x.mailbox_id = a.mailbox_id and x.seq = a.seq limit 1) x on true
  order by a.ord;

  -- The rows are held, so what the results say is still so.
  for lease in
    select w.mailbox_id, w.token, array_agg(w.seq) as seqs from unnest(mailbox_ids, tokens, seqs) w(mailbox_id, token, seq)
    group by 1, 2
  loop
    for gone in
      delete from delivery d
      where d.tenant = p_tenant and d.environment = p_environment and d.mailbox_id = lease.mailbox_id and d.seq = any(lease.seqs)
        and d.state = 'leased' and d.lease_token = lease.token and d.lease_until > at
      returning d.*
    loop
      continue when gone.deliveries = 1;
      update record r set acked_deliveries = gone.deliveries
      where r.tenant = p_tenant and r.environment = p_environment and r.mailbox_id = gone.mailbox_id
        and r.seq = gone.seq and r.appended_at = gone.appended_at;
    end loop;
  end loop;
end $$;
