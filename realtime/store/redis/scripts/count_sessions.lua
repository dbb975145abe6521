-- Count the sessions of a tenant, after checking some of them, at random. One that neither exists nor
-- has a deadline is removed from the set: Redis itself deleted it, when no gateway was left to do so,
-- or an older version was cut short between deleting a session and removing it from the set.
-- KEYS   1 sessions of the tenant  2 deadlines
-- ARGV   1 maximum number of sessions to check
-- reply  the number of sessions
for _, session in ipairs(redis.call('SRANDMEMBER', KEYS[1], ARGV[1])) do
  if redis.call('EXISTS', session_meta(session)) == 0
      and not redis.call('ZSCORE', KEYS[2], session) then
    redis.call('SREM', KEYS[1], session)
  end
end
return redis.call('SCARD', KEYS[1])
