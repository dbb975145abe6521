-- Create a session. The first fence is the time, so that fences grow even over a failover that lost
-- the last claims.
-- KEYS   1 meta  2 state
-- ARGV   1 owner  2 tenant  3 secret  4 deadline ms  5 state
-- reply  {'ok', fence} | {'exists'} | {'ended'}
local held = redis.call('HMGET', KEYS[1], 'owner', 'secret', 'fence')
if held[1] == '' then
  return {'ended'}
end
if held[1] then
  if held[1] == ARGV[1] and held[2] == ARGV[3] then
    return {'ok', held[3]}
  end
  return {'exists'}
end
local now = whole(now_ms)
add_to_tenant(ARGV[2])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', now, 'tenant', ARGV[2], 'secret', ARGV[3],
  'deadline', ARGV[4], 'created', now, 'epoch', 0, 'parked', 0, 'events', 0, 'weight', 0,
  'layout', LAYOUT)
redis.call('SET', KEYS[2], ARGV[5])
expire_keys(ARGV[4])
return {'ok', now}
