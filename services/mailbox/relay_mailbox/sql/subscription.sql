-- name: subscribe
-- Subscribe owners to topics; again changes nothing
insert into subscription (tenant, environment, topic, owner)
select %(tenant)s, %(environment)s, w.topic, w.owner
from (select distinct * from unnest(%(topics)s::text[], %(owners)s::text[]) u(topic, owner)) w
order by w.topic, w.owner
on conflict do nothing

-- name: unsubscribe
-- End subscriptions; what is on its way still arrives
delete from subscription s
using unnest(%(topics)s::text[], %(owners)s::text[]) w(topic, owner)
where s.tenant = %(tenant)s and s.environment = %(environment)s and s.topic = w.topic and s.owner = w.owner

-- name: accept_messages
-- Keep published messages of topics that somebody subscribes to, to be fanned out
insert into fan_out (tenant, environment, topic, message_id, publisher, type, body)
select w.tenant, w.environment, w.topic, w.message_id, w.publisher, w.type, w.body
from unnest(%(tenants)s::text[], %(environments)s::text[], %(topics)s::text[], %(message_ids)s::uuid[], %(publishers)s::text[],
       %(types)s::text[], %(bodies)s::bytea[]) with ordinality
     w(tenant, environment, topic, message_id, publisher, type, body, place)
where exists (select from subscription s where s.tenant = w.tenant and s.environment = w.environment and s.topic = w.topic)
order by w.place

-- name: next_message
-- The message whose turn it is and that nobody works on
select f.id, f.tenant, f.environment, f.topic, f.message_id, f.publisher, f.type, f.body, f.after_owner
from fan_out f
order by f.queued_at, f.id limit 1 for update skip locked

-- name: next_subscribers
-- The next page of subscribers of a topic
select s.owner from subscription s
where s.tenant = %(tenant)s and s.environment = %(environment)s and s.topic = %(topic)s and s.owner > %(after_owner)s
order by s.owner limit %(limit)s

-- name: move_on
-- Remember where the next page starts, and queue up behind those that wait
update fan_out f set after_owner = %(after_owner)s, queued_at = relay.now() where f.id = %(id)s

-- name: finish
-- Every subscriber has its copy
delete from fan_out f where f.id = %(id)s
