-- Prefix of every script that writes as a session's owner: refuse a lease that does not hold.
-- KEYS   1 meta
-- ARGV   1 owner  2 fence
-- reply  {'unknown'} | {'ended'} | {'stale', owner now} | {'behind', what} | none if it holds
local held = redis.call('HMGET', KEYS[1], 'owner', 'fence')
if not held[1] then
  return {'unknown'}
end
if held[1] == '' then
  return {'ended'}
end
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
  if tonumber(held[2]) < tonumber(ARGV[2]) then
    return {'behind', 'fence ' .. held[2] .. ', not ' .. ARGV[2]}
  end
  return {'stale', held[1]}
end
