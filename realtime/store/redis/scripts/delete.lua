-- Delete a session for its owner; a tombstone remains.
-- KEYS   1 meta, and all others
-- ARGV   1 owner  2 fence  3 ms that the tombstone is kept
-- reply  {'ok', fence, deadline ms} | as in check_lease.lua
return over(ARGV[2], ARGV[3])
