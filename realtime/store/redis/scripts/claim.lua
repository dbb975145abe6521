-- Claim a session for an owner under a higher fence; writes of the previous owner are refused. The
-- index of deadlines keeps the earlier one, at which a sweep replaces it.
-- KEYS   1 meta, and all others
-- ARGV   1 owner  2 for_ms  3 expected fence, or ''
-- reply  {'ok', fence} | {'unknown'} | {'stale', owner now} | {'other layout', layout}
local fence, deadline, owner, layout = unpack(
  redis.call('HMGET', KEYS[1], 'fence', 'deadline', 'owner', 'layout'))
if not fence or tonumber(deadline) <= now_ms or owner == '' then
  return {'unknown'}
end
if ARGV[3] ~= '' and ARGV[3] ~= fence then
  return {'stale', owner}
end
if layout ~= LAYOUT then
  return {'other layout', layout or '1'}
end
fence = whole(math.max(tonumber(fence) + 1, now_ms))
deadline = whole(now_ms + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'fence', fence, 'deadline', deadline, 'parked', 0)
expire_keys(deadline)
return {'ok', fence}
