-- A session that is going to be made may be looked at for expiry from now + for_ms on. One that is
-- there already keeps its place.
-- KEYS   1 deadlines
-- ARGV   1 session  2 for_ms
-- reply  the deadline, ms
local deadline = whole(now_ms + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], 'NX', deadline, ARGV[1])
return deadline
