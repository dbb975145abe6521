-- Claim a session for an owner under a higher fence; writes of the previous owner are refused.
-- KEYS   1 meta
-- ARGV   1 owner  2 for_ms  3 expected fence, or ''  4 secret, or ''
-- reply  {'ok', fence, deadline ms} | {'unknown'} | {'stale', owner now}
local held = redis.call('HMGET', KEYS[1], 'fence', 'deadline', 'owner')
if not held[1] or tonumber(held[2]) <= now_ms or held[3] == '' then
  return {'unknown'}
end
if ARGV[3] ~= '' and ARGV[3] ~= held[1] then
  return {'stale', held[3]}
end
local fence = whole(math.max(tonumber(held[1]) + 1, now_ms))
local deadline = whole(now_ms + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', fence, 'deadline', deadline, 'parked', 0)
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], 'secret', ARGV[4])
end
return {'ok', fence, deadline}
