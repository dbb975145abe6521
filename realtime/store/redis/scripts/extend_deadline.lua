-- Set a later (or sooner) deadline. APPEND overallocates a string: the idempotency window of a
-- parked session is written anew, which returns the spare memory.
-- KEYS   1 meta  2 once
-- ARGV   1 owner  2 fence  3 for_ms  4 parked, 1 or 0
-- reply  {'ok', deadline ms} | as in check_lease.lua
local deadline = whole(now_ms + tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'deadline', deadline, 'parked', ARGV[4])
local window = ARGV[4] == '1' and redis.call('GET', KEYS[2])
if window then
  redis.call('SET', KEYS[2], window)
end
return {'ok', deadline}
