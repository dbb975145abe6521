-- Record the layout of this version, unless a newer one is recorded. A Redis that accepts no writes
-- for now gets it from the next gateway that starts.
-- KEYS   1 layout
-- ARGV   -
-- reply  the newest layout
local newest = tonumber(redis.call('GET', KEYS[1]) or 0)
if newest < tonumber(LAYOUT) then
  redis.pcall('SET', KEYS[1], LAYOUT)
end
return math.max(newest, tonumber(LAYOUT))
