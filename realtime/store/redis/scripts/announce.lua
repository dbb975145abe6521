-- Announce an engine until its announcement expires.
-- KEYS   1 engines  2 the engine's description
-- ARGV   1 address  2 description  3 expires after ms
-- reply  {'ok', expires at ms}
local forgotten = whole(now_ms + tonumber(ARGV[3]))
redis.call('ZADD', KEYS[1], forgotten, ARGV[1])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {'ok', forgotten}
