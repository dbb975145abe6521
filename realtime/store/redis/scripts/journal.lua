-- Append to the ids of a response that is being generated.
-- KEYS   1 meta  2 running
-- ARGV   1 owner  2 fence  3 response  4 first  5 number of ids  6 ids, 4 bytes each
-- reply  {'ok', ids so far} | {'no response'} | {'behind', what} | as in check_lease.lua
local count = redis.call('HGET', KEYS[2], ARGV[3] .. '#')
if not count then
  return {'no response'}
end
count = tonumber(count)
local first = tonumber(ARGV[4])
if first > count then
  return {'behind', count .. ' ids of ' .. ARGV[3] .. ', not ' .. first}
end
-- Journaled ids are never replaced: only the new ids of a repeated batch are appended.
local total = first + tonumber(ARGV[5])
if total > count then
  local new = string.sub(ARGV[6], 4 * (count - first) + 1)
  redis.call('HSET', KEYS[2], ARGV[3] .. ':' .. count, new, ARGV[3] .. '#', total)
  count = total
end
return {'ok', count}
