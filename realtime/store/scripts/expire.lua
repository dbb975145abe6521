-- Removes a session whose time is over.
-- KEYS   1 meta, and all others
-- ARGV   -
-- reply  {'gone'} there was none | {'expired'} | {'later', deadline ms}
local deadline = redis.call('HGET', KEYS[1], 'deadline')
if not deadline then
  return {'gone'}
end
if tonumber(deadline) > now_ms then
  return {'later', deadline}
end
redis.call('DEL', unpack(KEYS))
return {'expired'}
