-- Health probe: run each command that any script writes with, so that Redis refuses this script if
-- it would refuse one of them (memory, replicas, permissions). Nothing remains. SET comes first,
-- because it takes any key, and Redis checks its memory only at the first write of a script.
-- KEYS   1 string  2 hash  3 list  4 sorted set  5 set
-- ARGV   -
-- reply  now, ms
redis.call('SET', KEYS[1], 'a')
redis.call('HSET', KEYS[2], 'a', 1)
redis.call('HDEL', KEYS[2], 'a')
redis.call('RPUSH', KEYS[3], 'a', 'b', 'c')
redis.call('LTRIM', KEYS[3], 0, 1)
redis.call('LPOP', KEYS[3])
redis.call('RPOP', KEYS[3])
redis.call('ZADD', KEYS[4], 0, 'a')
redis.call('ZREM', KEYS[4], 'a')
redis.call('SADD', KEYS[5], 'a')
redis.call('SREM', KEYS[5], 'a')
redis.call('PEXPIREAT', KEYS[1], whole(now_ms + 60000))
redis.call('DEL', unpack(KEYS))
return whole(now_ms)
