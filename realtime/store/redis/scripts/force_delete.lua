-- Delete a session, whichever gateway owns it; a tombstone with a higher fence remains.
-- KEYS   1 meta, and all others
-- ARGV   1 ms that the tombstone is kept
-- reply  {'ok', fence, deadline ms} | {'unknown'}
local held = redis.call('HMGET', KEYS[1], 'fence', 'deadline', 'owner')
if not held[1] or tonumber(held[2]) <= now_ms or held[3] == '' then
  return {'unknown'}
end
return over(whole(math.max(tonumber(held[1]) + 1, now_ms)), ARGV[1])
