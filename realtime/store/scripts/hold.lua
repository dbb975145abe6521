-- A later (or sooner) deadline.
-- KEYS   1 meta
-- ARGV   1 owner  2 fence  3 deadline ms  4 parked, 1 or 0
-- reply  {'ok'} | as in fenced.lua
redis.call('HSET', KEYS[1], 'deadline', ARGV[3], 'parked', ARGV[4])
return {'ok'}
