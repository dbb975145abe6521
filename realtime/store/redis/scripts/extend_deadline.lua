-- Set a later (or sooner) deadline.
-- KEYS   1 meta, and all others
-- ARGV   1 owner  2 fence  3 for_ms  4 parked, 1 or 0
-- reply  {'ok', deadline ms} | as in check_lease.lua
local deadline = whole(now_ms + tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'deadline', deadline, 'parked', ARGV[4])
expire_keys(deadline)
return {'ok', deadline}
