-- More ids of an answer being made.
-- KEYS   1 meta  2 running
-- ARGV   1 owner  2 fence  3 answer  4 first  5 number of ids  6 ids, 4 bytes each
-- reply  {'ok', ids so far} | {'no answer'} | {'behind', what} | as in fenced.lua
local said = redis.call('HGET', KEYS[2], ARGV[3] .. '#')
if not said then
  return {'no answer'}
end
said = tonumber(said)
local first = tonumber(ARGV[4])
if first > said then
  return {'behind', said .. ' ids of ' .. ARGV[3] .. ', not ' .. first}
end
-- What was said stays: of a batch that comes again only what is new is put behind it.
local total = first + tonumber(ARGV[5])
if total > said then
  local new = string.sub(ARGV[6], 4 * (said - first) + 1)
  redis.call('HSET', KEYS[2], ARGV[3] .. ':' .. said, new, ARGV[3] .. '#', total)
  said = total
end
return {'ok', said}
