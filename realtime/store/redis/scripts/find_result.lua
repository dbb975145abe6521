-- Find the recorded result of a request. Changes nothing.
-- KEYS   1 meta  2 idempotency keys
-- ARGV   1 owner  2 fence  3 key  4 digest
-- reply  {'new'} | {'repeated', result} | {'conflict'} | as in check_lease.lua
local record = redis.call('HGET', KEYS[2], ARGV[3])
if not record then
  return {'new'}
end
local _, content, result = unpack(cmsgpack.unpack(record))
return content == ARGV[4] and {'repeated', result} or {'conflict'}
