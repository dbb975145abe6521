-- Read all of a session for a backup.
-- KEYS   1 meta  2 state  3 log  4 running  5 idempotency keys  6 events
-- ARGV   -
-- reply  {'ok', now ms, next event, {tenant, secret, owner, fence, epoch, parked, created, deadline},
--        state, {entry, ...}, {field, value, ...} of running, {event, ...},
--        {{number, key, content, result}, ...} of the idempotency keys}
--        | {'unknown'} | {'other layout', layout}
local card = redis.call('HMGET', KEYS[1],
  'tenant', 'secret', 'owner', 'fence', 'epoch', 'parked', 'created', 'deadline')
if not card[8] or tonumber(card[8]) <= now_ms or card[3] == '' then
  return {'unknown'}
end
local next_event, layout = unpack(redis.call('HMGET', KEYS[1], 'events', 'layout'))
if layout ~= LAYOUT then
  return {'other layout', layout or '1'}
end
local requests, records = {}, redis.call('HGETALL', KEYS[5])
for n = 1, #records, 2 do
  local number, content, result = unpack(cmsgpack.unpack(records[n + 1]))
  requests[#requests + 1] = {number, records[n], content, result}
end
return {'ok', whole(now_ms), next_event, card, redis.call('GET', KEYS[2]),
  redis.call('LRANGE', KEYS[3], 0, -1), redis.call('HGETALL', KEYS[4]),
  redis.call('LRANGE', KEYS[6], 0, -1), requests}
