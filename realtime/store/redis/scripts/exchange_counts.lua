-- Publish what a tenant has at a gateway, and sum up what it has at the others.
-- KEYS   1 counts
-- ARGV   1 gateway  2 lease ms  3 connections  4 running turns  5 waiting turns
-- reply  {connections, running turns, waiting turns, gateways with turns}, of the others
local sums = {0, 0, 0, 0}
local stored = redis.call('HGETALL', KEYS[1])
for at = 1, #stored, 2 do
  local connections, running, waiting, until_ms = stored[at + 1]:match('(%d+) (%d+) (%d+) (%d+)')
  if tonumber(until_ms) <= now_ms then
    redis.call('HDEL', KEYS[1], stored[at])
  elseif stored[at] ~= ARGV[1] then
    sums[1], sums[2] = sums[1] + connections, sums[2] + running
    sums[3] = sums[3] + waiting
    sums[4] = sums[4] + ((tonumber(running) + tonumber(waiting)) > 0 and 1 or 0)
  end
end
if tonumber(ARGV[3]) + tonumber(ARGV[4]) + tonumber(ARGV[5]) > 0 then
  local until_ms = whole(now_ms + tonumber(ARGV[2]))
  local mine = ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. until_ms
  redis.call('HSET', KEYS[1], ARGV[1], mine)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end
return sums
