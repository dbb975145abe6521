-- Read all of a session.
-- KEYS   1 meta  2 state  3 log  4 running  5 events
-- ARGV   -
-- reply  {'ok', metadata as in find.lua, number of entries, state, next event, {entry, ...},
--        {field, value, ...} of running, {event, ...}} | {'unknown'} | {'other layout', layout}
local card = redis.call('HMGET', KEYS[1],
  'tenant', 'secret', 'owner', 'fence', 'epoch', 'parked', 'created', 'deadline')
if not card[8] or tonumber(card[8]) <= now_ms or card[3] == '' then
  return {'unknown'}
end
local next_event, layout = unpack(redis.call('HMGET', KEYS[1], 'events', 'layout'))
if layout ~= LAYOUT then
  return {'other layout', layout or '1'}
end
local log = redis.call('LRANGE', KEYS[3], 0, -1)
return {'ok', card, #log, redis.call('GET', KEYS[2]), next_event, log,
  redis.call('HGETALL', KEYS[4]), redis.call('LRANGE', KEYS[5], 0, -1)}
