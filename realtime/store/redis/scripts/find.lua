-- Read the metadata of a session.
-- KEYS   1 meta  2 log
-- ARGV   -
-- reply  {'ok', {tenant, secret, owner, fence, epoch, parked, created, deadline},
--        number of entries} | {'unknown'}
local card = redis.call('HMGET', KEYS[1],
  'tenant', 'secret', 'owner', 'fence', 'epoch', 'parked', 'created', 'deadline')
if not card[8] or tonumber(card[8]) <= now_ms or card[3] == '' then
  return {'unknown'}
end
return {'ok', card, redis.call('LLEN', KEYS[2])}
