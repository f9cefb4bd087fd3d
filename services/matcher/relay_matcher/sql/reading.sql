-- name: waitpoint
-- Read one waitpoint as its waiter, one of its responders or an operator sees it; others find nothing.
select w.id, w.kind::text, w.profile,
  case when w.state in ('open', 'stalled') and w.expires_at <= c.at then 'expired' else w.state::text end,
  w.revision, w.activation, w.updated_at,
  case when w.state in ('open', 'stalled') and w.expires_at <= c.at then w.expires_at else w.closed_at end,
  w.responded_at, w.responder, w.channel, w.evidence_level::text, w.reply_subject_digest, w.reply,
  w.key_hash, w.event_id, w.event_received_at, e.value, w.opened
from waitpoint w
cross join (select relay.now() as at) c
left join lateral (
  select e.value from event e
  where e.received_at = w.event_received_at and e.key_hash = w.key_hash and e.event_id = w.event_id) e on true
where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment') and w.id = %(id)s
  and (%(sees_all)s or w.waiter = %(caller)s or exists (
    select from responder r
    where r.tenant = w.tenant and r.environment = w.environment and r.waitpoint_id = w.id and r.responder = %(caller)s));

-- name: waitpoints
-- Read a page of waitpoints in order of creation; a filter that is null is no filter.
select w.id, w.kind::text, w.profile,
  case when w.state in ('open', 'stalled') and w.expires_at <= c.at then 'expired' else w.state::text end,
  w.revision, w.activation, w.updated_at,
  case when w.state in ('open', 'stalled') and w.expires_at <= c.at then w.expires_at else w.closed_at end,
  w.responded_at, w.responder, w.channel, w.evidence_level::text, w.reply_subject_digest, w.reply,
  w.key_hash, w.event_id, w.event_received_at, e.value, w.opened
from (select relay.now() as at) c
cross join lateral (
  select w.* from waitpoint w
  where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment')
    and w.id > %(after)s
    and (%(sees_all)s or w.waiter = %(caller)s
        and w.waiter_hash = hash_of_waiter(current_setting('relay.tenant'), current_setting('relay.environment'), %(caller)s)
      or w.id = any(array(
        select r.waitpoint_id from responder r
        where r.tenant = current_setting('relay.tenant') and r.environment = current_setting('relay.environment')
          and r.responder = %(caller)s and r.waitpoint_id > %(after)s)))
    and (%(states)s::text[] is null or
      case when w.state in ('open', 'stalled') and w.expires_at <= c.at then 'expired' else w.state::text end = any(%(states)s::text[]))
    and (%(kinds)s::text[] is null or w.kind::text = any(%(kinds)s::text[]))
    and (%(waiter)s::text is null or w.waiter = %(waiter)s::text
      and w.waiter_hash = hash_of_waiter(current_setting('relay.tenant'), current_setting('relay.environment'), %(waiter)s::text))
    and (%(event_type)s::text is null or w.event_type = %(event_type)s::text)
    and (%(correlation_key)s::text is null or w.correlation_key = %(correlation_key)s::text)
    and (%(expires_before)s::timestamptz is null or w.expires_at < %(expires_before)s::timestamptz)
    and (%(responder)s::text is null or exists (
      select from responder r
      where r.tenant = w.tenant and r.environment = w.environment and r.waitpoint_id = w.id and r.responder = %(responder)s::text))
    and not exists (
      select from unnest(%(tag_names)s::text[], %(tag_values)s::text[]) q (name, value)
      where not exists (
        select from waitpoint_tag t
        where t.tenant = w.tenant and t.environment = w.environment and t.waitpoint_id = w.id and t.name = q.name and t.value = q.value))
  order by w.id
  limit %(limit)s) w
left join lateral (
  select e.value from event e
  where e.received_at = w.event_received_at and e.key_hash = w.key_hash and e.event_id = w.event_id) e on true
order by w.id;

-- name: event
-- Read one recorded event, with the waitpoints that took it.
select e.received_at, e.key_hash, e.event_id, e.rule_id, e.reason, e.value, e.received_at < c.at - %(retention)s::interval, t.taken_by, e.arrival
from (select relay.now() as at) c
cross join event e
left join lateral (
  select json_agg(json_build_array(t.id, t.waiter, t.responded_at) order by t.responded_at, t.waiter) as taken_by
  from (select t.id, t.waiter, t.responded_at from waitpoint t where t.tenant = e.tenant and t.environment = e.environment and t.key_hash = e.key_hash
    and t.event_id = e.event_id limit %(takers)s) t) t on true
where e.tenant = current_setting('relay.tenant') and e.environment = current_setting('relay.environment')
  and e.key_hash = %(key_hash)s and e.event_id = %(event_id)s
order by e.received_at desc
limit 1;

-- name: events_of_key
-- Read a page of the events of one key, newest first.
select e.received_at, e.key_hash, e.event_id, e.rule_id, e.reason, e.value, e.received_at < c.at - %(retention)s::interval, t.taken_by, e.arrival
from (select relay.now() as at) c
cross join lateral (
  select e.* from event e
  where e.key_hash = %(key_hash)s and e.arrival < %(before)s
    and e.tenant = current_setting('relay.tenant') and e.environment = current_setting('relay.environment')
    and e.event_type = %(event_type)s and e.correlation_key = %(correlation_key)s
    and (%(received_after)s::timestamptz is null or e.received_at >= %(received_after)s::timestamptz)
    and (%(received_before)s::timestamptz is null or e.received_at < %(received_before)s::timestamptz)
    and (%(dispositions)s::text[] is null or case
      when exists (select from waitpoint t where t.tenant = e.tenant and t.environment = e.environment and t.key_hash = e.key_hash
        and t.event_id = e.event_id) then 'matched'
      when e.received_at < c.at - %(retention)s::interval then 'expired' else 'held' end = any(%(dispositions)s::text[]))
  order by e.arrival desc
  limit %(limit)s) e
left join lateral (
  select json_agg(json_build_array(t.id, t.waiter, t.responded_at) order by t.responded_at, t.waiter) as taken_by
  from (select t.id, t.waiter, t.responded_at from waitpoint t where t.tenant = e.tenant and t.environment = e.environment and t.key_hash = e.key_hash
    and t.event_id = e.event_id limit %(takers)s) t) t on true
order by e.arrival desc;

-- name: events_in_window
-- Read a page of the events of a window of time, newest first.
select e.received_at, e.key_hash, e.event_id, e.rule_id, e.reason, e.value, e.received_at < c.at - %(retention)s::interval, t.taken_by, e.arrival
from (select relay.now() as at) c
cross join lateral (
  select e.* from event e
  where e.received_at >= %(received_after)s::timestamptz and e.received_at < %(received_before)s::timestamptz
    and (e.received_at, e.arrival) < (%(before_time)s::timestamptz, %(before)s::bigint)
    and e.tenant = current_setting('relay.tenant') and e.environment = current_setting('relay.environment')
    and (%(event_type)s::text is null or e.event_type = %(event_type)s::text)
    and (%(correlation_key)s::text is null or e.correlation_key = %(correlation_key)s::text)
    and (%(dispositions)s::text[] is null or case
      when exists (select from waitpoint t where t.tenant = e.tenant and t.environment = e.environment and t.key_hash = e.key_hash
        and t.event_id = e.event_id) then 'matched'
      when e.received_at < c.at - %(retention)s::interval then 'expired' else 'held' end = any(%(dispositions)s::text[]))
  order by e.received_at desc, e.arrival desc
  limit %(limit)s) e
left join lateral (
  select json_agg(json_build_array(t.id, t.waiter, t.responded_at) order by t.responded_at, t.waiter) as taken_by
  from (select t.id, t.waiter, t.responded_at from waitpoint t where t.tenant = e.tenant and t.environment = e.environment and t.key_hash = e.key_hash
    and t.event_id = e.event_id limit %(takers)s) t) t on true
order by e.received_at desc, e.arrival desc;

-- name: awaiting
-- Count what waits for a reply, by the same filters as the list.
select w.state::text, count(*)
from waitpoint w
where w.tenant = current_setting('relay.tenant') and w.environment = current_setting('relay.environment')
  and w.state in ('open', 'stalled') and w.kind <> 'event' and w.expires_at > (select relay.now())
  and (%(sees_all)s or w.waiter = %(caller)s or exists (
    select from responder r
    where r.tenant = w.tenant and r.environment = w.environment and r.waitpoint_id = w.id and r.responder = %(caller)s))
  and (%(kinds)s::text[] is null or w.kind::text = any(%(kinds)s::text[]))
  and (%(waiter)s::text is null or w.waiter = %(waiter)s::text)
  and (%(event_type)s::text is null or w.event_type = %(event_type)s::text)
  and (%(correlation_key)s::text is null or w.correlation_key = %(correlation_key)s::text)
  and (%(expires_before)s::timestamptz is null or w.expires_at < %(expires_before)s::timestamptz)
  and (%(responder)s::text is null or exists (
    select from responder r
    where r.tenant = w.tenant and r.environment = w.environment and r.waitpoint_id = w.id and r.responder = %(responder)s::text))
  and not exists (
    select from unnest(%(tag_names)s::text[], %(tag_values)s::text[]) q (name, value)
    where not exists (
      select from waitpoint_tag t
      where t.tenant = w.tenant and t.environment = w.environment and t.waitpoint_id = w.id and t.name = q.name and t.value = q.value))
group by w.state;
