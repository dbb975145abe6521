-- List the announced engines, after removal of expired announcements.
-- KEYS   1 engines
-- ARGV   -
-- reply  {address, ...}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now_ms))
return redis.call('ZRANGE', KEYS[1], 0, -1)
