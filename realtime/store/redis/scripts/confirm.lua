-- Confirm that a lease still holds, and that the session ends where its owner has written it to.
-- KEYS   1 meta  2 log
-- ARGV   1 owner  2 fence  3 number of entries, or ''  4 next event
-- reply  {'ok'} | {'behind', what} | as in check_lease.lua
if ARGV[3] ~= '' then
  local entries, next_event = redis.call('LLEN', KEYS[2]), redis.call('HGET', KEYS[1], 'events')
  if entries ~= tonumber(ARGV[3]) or next_event ~= ARGV[4] then
    return {'behind', entries .. ' entries and ' .. next_event .. ' events, not ' .. ARGV[3]
      .. ' and ' .. ARGV[4]}
  end
end
return {'ok'}
