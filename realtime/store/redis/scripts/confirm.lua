-- Whether the owner still is.
-- KEYS   1 meta
-- ARGV   1 owner  2 fence
-- reply  {'ok'} | as in fenced.lua
return {'ok'}
