-- Add a session from a backup, unless its id is in use. No gateway owns it, and its epoch is new:
-- event ids issued after the backup cannot be resumed from.
-- KEYS   1 meta  2 state  3 log  4 running  5 idempotency keys  6 events
-- ARGV   1 the session, a map in MessagePack: see `_encode_session` in administration.py
-- reply  {'ok', deadline ms} | {'exists'}
local meta, state, log, running, idempotency_keys, events = unpack(KEYS)
if redis.call('EXISTS', meta) == 1 then
  return {'exists'}
end
local session = cmsgpack.unpack(ARGV[1])
local fence = math.max(session.fence + 1, now_ms)
local deadline = whole(now_ms + session.remaining_ms)
add_to_tenant(session.tenant)
redis.call('DEL', unpack(KEYS))
redis.call('SET', state, session.state)
for _, entry in ipairs(session.entries) do
  redis.call('RPUSH', log, entry)
end
for _, field in ipairs(session.running) do
  redis.call('HSET', running, field[1], field[2])
end
for number, request in ipairs(session.requests) do
  local record = cmsgpack.pack({number - 1, request[2], request[3]})
  redis.call('HSET', idempotency_keys, request[1], record)
end
for _, event in ipairs(session.events) do
  redis.call('RPUSH', events, event)
end
redis.call('HSET', meta, 'owner', session.owner, 'fence', whole(fence), 'tenant', session.tenant,
  'secret', session.secret, 'deadline', deadline, 'created', whole(session.created_ms),
  'epoch', whole(math.max(session.epoch + 1, fence)), 'parked', 1,
  'events', whole(session.next_event), 'weight', session.event_bytes,
  'requests', #session.requests, 'request_bytes', session.request_bytes, 'layout', LAYOUT)
expire_keys(deadline)
return {'ok', deadline}
