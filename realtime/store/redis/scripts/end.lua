-- Somebody ends the session, whoever owns it.
-- KEYS   1 meta, and all others
-- ARGV   1 remembered for ms
-- reply  {'ok', fence, deadline ms} | {'unknown'}
local held = redis.call('HMGET', KEYS[1], 'fence', 'deadline', 'owner')
if not held[1] or tonumber(held[2]) <= now_ms or held[3] == '' then
  return {'unknown'}
end
return over(whole(math.max(tonumber(held[1]) + 1, now_ms)), ARGV[1])
