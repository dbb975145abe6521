-- An engine is there, until it is forgotten.
-- KEYS   1 engines  2 what this one says of itself
-- ARGV   1 its address  2 what it says  3 forgotten after ms
-- reply  {'ok', when it is forgotten, ms}
local forgotten = whole(now_ms + tonumber(ARGV[3]))
redis.call('ZADD', KEYS[1], forgotten, ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {'ok', forgotten}
