-- Delete the counters of a tenant, and record the time.
-- KEYS   1 deleted tenants  2 and all others: keys of the tenant
-- ARGV   1 tenant  2 expires after ms
-- reply  {'ok'}
redis.call('DEL', unpack(KEYS, 2))
redis.call('ZADD', KEYS[1], whole(now_ms), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'ok'}
