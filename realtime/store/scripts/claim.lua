-- Another owner; the one before it is fenced off from now on.
-- KEYS   1 meta
-- ARGV   1 owner  2 deadline ms  3 secret, or ''
-- reply  {'ok', fence} | {'unknown'}
local held = redis.call('HMGET', KEYS[1], 'fence', 'deadline')
if not held[1] or tonumber(held[2]) <= now_ms then
  return {'unknown'}
end
local fence = whole(math.max(tonumber(held[1]) + 1, now_ms))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', fence, 'deadline', ARGV[2], 'parked', 0)
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'secret', ARGV[3])
end
return {'ok', fence}
