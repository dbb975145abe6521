-- Another owner; the one before it is fenced off from now on.
-- KEYS   1 meta
-- ARGV   1 owner  2 for_ms  3 secret, or ''
-- reply  {'ok', fence, deadline ms} | {'unknown'}
local held = redis.call('HMGET', KEYS[1], 'fence', 'deadline', 'owner')
if not held[1] or tonumber(held[2]) <= now_ms or held[3] == '' then
  return {'unknown'}
end
local fence = whole(math.max(tonumber(held[1]) + 1, now_ms))
local deadline = whole(now_ms + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', fence, 'deadline', deadline, 'parked', 0)
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'secret', ARGV[3])
end
return {'ok', fence, deadline}
