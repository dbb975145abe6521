-- Add to the usage of a tenant.
-- KEYS   1 usage
-- ARGV   1 expires after ms  2 field  3 amount  4 field  5 amount ...
-- reply  {'ok'}
for n = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[n], ARGV[n + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {'ok'}
