-- The owner ends the session.
-- KEYS   1 meta, and all others
-- ARGV   1 owner  2 fence  3 remembered for ms
-- reply  {'ok', fence, deadline ms} | as in fenced.lua
return over(ARGV[2], ARGV[3])
