-- Prefix of every script that writes as a session's owner: refuse a lease that does not hold. A claim
-- migrates a session of an older layout, so that one under a lease has lost data.
-- KEYS   1 meta
-- ARGV   1 owner  2 fence
-- reply  {'unknown'} | {'ended'} | {'stale', owner now} | {'behind', what} | none if it holds
local held = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'layout')
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
if held[3] ~= LAYOUT then
  return {'behind', 'layout ' .. (held[3] or '1') .. ', not ' .. LAYOUT}
end
