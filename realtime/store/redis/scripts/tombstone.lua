-- Prefix of the scripts that delete a session: replace it by a tombstone, whose owner is ''.
-- KEYS   1 meta, and all others
local function over(fence, remembered_ms)
  local deadline = whole(now_ms + tonumber(remembered_ms))
  remove_from_tenant(redis.call('HGET', KEYS[1], 'tenant'))
  redis.call('DEL', unpack(KEYS))
  redis.call('HSET', KEYS[1], 'owner', '', 'fence', fence, 'deadline', deadline)
  expire_keys(deadline)
  return {'ok', fence, deadline}
end
