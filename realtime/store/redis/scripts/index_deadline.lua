-- Index a session that is about to be created: a sweep checks it from now + for_ms on. A session
-- that is indexed already keeps its score.
-- KEYS   1 deadlines
-- ARGV   1 session  2 for_ms
-- reply  the deadline, ms
local deadline = whole(now_ms + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], 'NX', deadline, ARGV[1])
return deadline
