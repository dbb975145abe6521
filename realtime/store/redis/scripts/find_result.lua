-- Find the recorded result of a request. Changes nothing.
-- KEYS   1 meta  2 once
-- ARGV   1 owner  2 fence  3 key  4 digest
-- reply  {'new'} | {'repeated', result} | {'conflict'} | as in check_lease.lua
local window = redis.call('GET', KEYS[2]) or ''
local from = string.find(window, ARGV[3], 1, true)
if not from then
  return {'new'}
end
if string.sub(window, from + 8, from + 15) ~= ARGV[4] then
  return {'conflict'}
end
local length = string.byte(window, from + 16)
return {'repeated', string.sub(window, from + 17, from + 16 + length)}
