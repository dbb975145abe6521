-- List the sessions that are due for a check of their deadline.
-- KEYS   1 deadlines
-- ARGV   1 limit
-- reply  {session, ...}, the longest overdue first
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(now_ms), 'LIMIT', 0, ARGV[1])
