-- Replace a session of layout 1 by the same session in the layout of this version.
-- KEYS   1 meta  2 state  3 log  4 running  5 once  6 events
-- ARGV   1 owner  2 fence  3 the session, a map in MessagePack: `UpgradedSession` in layout_v1.py
-- reply  {'ok'} | {'stale', owner now}
local meta, state, log, running, once, events = unpack(KEYS)
local owner, fence = unpack(redis.call('HMGET', meta, 'owner', 'fence'))
if owner ~= ARGV[1] or fence ~= ARGV[2] then
  return {'stale', owner or ''}
end

local session = cmsgpack.unpack(ARGV[3])
redis.call('DEL', log, once, events)
redis.call('SET', state, session.state)
for _, entry in ipairs(session.entries) do
  redis.call('RPUSH', log, entry)
end
for _, started in ipairs(session.checkpoints) do
  redis.call('HSET', running, started[1], started[2])
end
for number, request in ipairs(session.requests) do
  redis.call('HSET', once, request[1], cmsgpack.pack({number - 1, request[2], request[3]}))
end
for _, event in ipairs(session.events) do
  redis.call('RPUSH', events, event)
end
redis.call('HSET', meta, 'weight', session.event_bytes, 'requests', #session.requests,
  'request_bytes', session.request_bytes, 'layout', LAYOUT)
expire_keys(redis.call('HGET', meta, 'deadline'))
return {'ok'}
