-- Measure the memory of a session, or of a stored response.
-- KEYS   its keys
-- ARGV   -
-- reply  bytes, 0 if Redis does not permit MEMORY USAGE; none if none of the keys exists
local bytes
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then  -- MEMORY USAGE also measures keys that have expired
    local size = redis.pcall('MEMORY', 'USAGE', key)
    bytes = (bytes or 0) + (type(size) == 'number' and size or 0)
  end
end
return bytes
