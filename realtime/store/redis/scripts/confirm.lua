-- Confirm that a lease still holds.
-- KEYS   1 meta
-- ARGV   1 owner  2 fence
-- reply  {'ok'} | as in check_lease.lua
return {'ok'}
