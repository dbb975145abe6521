-- Remove a session, or the tombstone of one, if its deadline is over.
-- KEYS   1 meta, and all others
-- ARGV   -
-- reply  {'gone'} no session was removed | {'expired'} | {'later', deadline ms}
local owner, deadline, tenant = unpack(
  redis.call('HMGET', KEYS[1], 'owner', 'deadline', 'tenant'))
if not deadline then
  return {'gone'}
end
if tonumber(deadline) > now_ms then
  return {'later', deadline}
end
remove_from_tenant(tenant)
redis.call('DEL', unpack(KEYS))
return {owner == '' and 'gone' or 'expired'}
