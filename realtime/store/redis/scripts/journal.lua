-- Append to the ids of a response that is being generated.
-- KEYS   1 meta  2 running
-- ARGV   1 owner  2 fence  3 response  4 first  5 number of ids  6 ids, 4 bytes each
-- reply  {'ok', ids so far} | {'no answer'} | {'behind', what} | as in check_lease.lua
local said = redis.call('HGET', KEYS[2], ARGV[3] .. '#')
if not said then
  return {'no answer'}
end
said = tonumber(said)
local first = tonumber(ARGV[4])
if first > said then
  return {'behind', said .. ' ids of ' .. ARGV[3] .. ', not ' .. first}
end
-- Journaled ids are never replaced: only the new ids of a repeated batch are appended.
local total = first + tonumber(ARGV[5])
if total > said then
  local new = string.sub(ARGV[6], 4 * (said - first) + 1)
  redis.call('HSET', KEYS[2], ARGV[3] .. ':' .. said, new, ARGV[3] .. '#', total)
  said = total
end
return {'ok', said}
