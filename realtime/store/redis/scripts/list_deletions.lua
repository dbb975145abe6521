-- List the tenants whose records were deleted lately.
-- KEYS   1 deleted tenants
-- ARGV   1 within ms
-- reply  {tenant, ms, ...}
return redis.call('ZRANGEBYSCORE', KEYS[1], whole(now_ms - tonumber(ARGV[1])), '+inf', 'WITHSCORES')
