-- Prefix of the scripts that write a session: let Redis delete its keys some time after `deadline`, in
-- case no gateway is left to remove the session.
-- KEYS   1 and all others
-- ARGV   -
-- reply  none
local function expire_keys(deadline)
  local at = whole(tonumber(deadline) + EXPIRY_NET_MS)
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIREAT', key, at)
  end
end
