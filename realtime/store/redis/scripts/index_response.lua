-- Index a response that is about to be stored, and remove expired ones from the index.
-- KEYS   1 responses of the tenant
-- ARGV   1 response  2 for_ms  3 the index expires after ms
-- reply  {'ok'}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now_ms))
redis.call('ZADD', KEYS[1], whole(now_ms + tonumber(ARGV[2])), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'ok'}
