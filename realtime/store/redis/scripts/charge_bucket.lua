-- Take an amount from a token bucket of a tenant, after the refill since it was charged last.
-- KEYS   1 buckets
-- ARGV   1 kind  2 capacity  3 amount  4 expires after ms
-- reply  what the bucket holds, as text
local at = ARGV[1] .. ':at'
local level, charged_ms = unpack(redis.call('HMGET', KEYS[1], ARGV[1], at))
local capacity = tonumber(ARGV[2])
level, charged_ms = tonumber(level or capacity), tonumber(charged_ms or now_ms)
level = math.min(capacity, level + (now_ms - charged_ms) * capacity / 60000) - tonumber(ARGV[3])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.6f', level), at, whole(now_ms))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return string.format('%.6f', level)
