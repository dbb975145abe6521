-- Prefix of the scripts that create or remove a session: add it to the set of its tenant's sessions, or
-- remove it, in the same step. The set is in no KEYS, because its tenant may be known from `meta` alone.
-- KEYS   1 meta
-- ARGV   -
-- reply  none
local indexed_session = string.match(KEYS[1], '{(.*)}')

local function add_to_tenant(tenant)
  local sessions = tenant_sessions(tenant)
  redis.call('SADD', sessions, indexed_session)
  redis.call('PEXPIREAT', sessions, whole(now_ms + TENANT_EXPIRY_MS))
end

local function remove_from_tenant(tenant)
  if tenant then
    redis.call('SREM', tenant_sessions(tenant), indexed_session)
  end
end
