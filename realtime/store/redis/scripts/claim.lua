-- Claim a session for an owner under a higher fence; writes of the previous owner are refused.
-- KEYS   1 meta  2 state  3 log  4 running  5 once  6 events
-- ARGV   1 owner  2 for_ms  3 expected fence, or ''  4 secret, or ''
-- reply  {'ok', fence, deadline ms} | {'old', fence, deadline ms, state, {entry, ...},
--        {field, value, ...} of running, once, {event, ...}} a session of layout 1
--        | {'unknown'} | {'stale', owner now} | {'newer', layout}
local fence, deadline, owner, layout = unpack(
  redis.call('HMGET', KEYS[1], 'fence', 'deadline', 'owner', 'layout'))
if not fence or tonumber(deadline) <= now_ms or owner == '' then
  return {'unknown'}
end
if ARGV[3] ~= '' and ARGV[3] ~= fence then
  return {'stale', owner}
end
layout = layout or '1'
if tonumber(layout) > tonumber(LAYOUT) then
  return {'newer', layout}
end
fence = whole(math.max(tonumber(fence) + 1, now_ms))
deadline = whole(now_ms + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', fence, 'deadline', deadline, 'parked', 0)
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], 'secret', ARGV[4])
end
expire_keys(deadline)
if layout == LAYOUT then
  return {'ok', fence, deadline}
end
return {'old', fence, deadline, redis.call('GET', KEYS[2]), redis.call('LRANGE', KEYS[3], 0, -1),
  redis.call('HGETALL', KEYS[4]), redis.call('GET', KEYS[5]) or '',
  redis.call('LRANGE', KEYS[6], 0, -1)}
