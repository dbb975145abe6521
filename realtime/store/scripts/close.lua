-- The owner ends the session.
-- KEYS   1 meta, and all others
-- ARGV   1 owner  2 fence
-- reply  {'ok'} | as in fenced.lua
redis.call('DEL', unpack(KEYS))
return {'ok'}
