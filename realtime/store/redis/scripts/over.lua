-- Stands in front of what ends a session: all that is left of it is that it was ended, by an owner
-- who is nobody.
-- KEYS   1 meta, and all others
local function over(fence, remembered_ms)
  local deadline = whole(now_ms + tonumber(remembered_ms))
  redis.call('DEL', unpack(KEYS))
  redis.call('HSET', KEYS[1], 'owner', '', 'fence', fence, 'deadline', deadline)
  return {'ok', fence, deadline}
end
