-- Prefix of write.lua, of which it makes the script that writes a whole session again, after the store
-- has lost it. The fence before the loss stays in `recreated`: of two gateways that write the same
-- session again, the one with the higher fence was the last to own it, and replaces what the other
-- one has written. So does it with an older copy, which has a lower fence.
-- KEYS   1 meta, and all others
-- ARGV   1 owner  2 fence before the loss  3 the batch, as in write.lua  4 fence of the session that is
--        replaced, or 0 if there is none  5 tenant  6 secret  7 deadline ms
-- reply  {'ended'} | {'stale', owner now} | {'changed', fence now, or 0} | none: write.lua replies
local fence = 0
do
  local owner, held, deadline, recreated = unpack(
    redis.call('HMGET', KEYS[1], 'owner', 'fence', 'deadline', 'recreated'))
  if owner == '' then
    return {'ended'}
  end
  if owner and tonumber(deadline) > now_ms then
    if owner ~= ARGV[1] and tonumber(recreated or held) >= tonumber(ARGV[2]) then
      return {'stale', owner}
    end
    fence = tonumber(held)
  end
end
if fence ~= tonumber(ARGV[4]) then
  return {'changed', whole(fence)}
end
add_to_tenant(ARGV[5])
redis.call('DEL', unpack(KEYS))
redis.call('HSET', KEYS[1], 'owner', ARGV[1],
  'fence', whole(math.max(now_ms, tonumber(ARGV[2]) + 1, fence + 1)), 'tenant', ARGV[5],
  'secret', ARGV[6], 'deadline', ARGV[7], 'created', whole(now_ms), 'epoch', 0, 'parked', 0,
  'events', 0, 'weight', 0, 'layout', LAYOUT, 'recreated', ARGV[2])
