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
said = math.max(said, first + tonumber(ARGV[5]))
redis.call('HSET', KEYS[2], ARGV[3] .. ':' .. ARGV[4], ARGV[6], ARGV[3] .. '#', said)
return {'ok', said}
