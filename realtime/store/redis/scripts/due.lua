-- Sessions to look at.
-- KEYS   1 deadlines
-- ARGV   1 limit
-- reply  {session, ...}, the longest due first
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(now_ms), 'LIMIT', 0, ARGV[1])
