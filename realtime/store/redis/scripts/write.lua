-- Apply one write batch.
-- KEYS   1 meta  2 state  3 log  4 running  5 once  6 events
-- ARGV   1 owner  2 fence
--        3 record of an idempotent request, or ''  4 restored records, joined
--        5 keys that are removed before, joined  6 bytes of the idempotency window at most
--        7 entries that are kept, or ''   8 number of new entries
--        9 epoch, or ''  10 state, or ''
--        11 number of started responses  12 ids of ended ones, spaces between
--        13 first event, or ''  14 events kept at most  15 their bytes at most
--        16... entries, then id and checkpoint of each started response, then events
-- reply  {'ok', number of entries, next event} | {'repeated', result} | {'conflict'}
--        | {'behind', what} | as in check_lease.lua
local HEAD = 17 -- bytes of a record before its result: key (8), digest (8), size of the result (1)

local record = ARGV[3]
local window = ''
if record ~= '' or ARGV[5] ~= '' then
  window = redis.call('GET', KEYS[5]) or ''
end
if ARGV[5] ~= '' then
  local forgotten = {}
  for n = 1, #ARGV[5], 8 do
    forgotten[string.sub(ARGV[5], n, n + 7)] = true
  end
  local kept, from = {}, 1
  while from <= #window do
    local length = HEAD + string.byte(window, from + 16)
    if not forgotten[string.sub(window, from, from + 7)] then
      kept[#kept + 1] = string.sub(window, from, from + length - 1)
    end
    from = from + length
  end
  window = table.concat(kept) .. ARGV[4]
end
if record ~= '' then
  local from = string.find(window, string.sub(record, 1, 8), 1, true)
  if from then
    if string.sub(window, from + 8, from + 15) ~= string.sub(record, 9, 16) then
      return {'conflict'}
    end
    local length = string.byte(window, from + 16)
    return {'repeated', string.sub(window, from + HEAD, from + HEAD + length - 1)}
  end
end

local position = redis.call('LLEN', KEYS[3])
local next_event = tonumber(redis.call('HGET', KEYS[1], 'events'))
if ARGV[7] ~= '' and tonumber(ARGV[7]) > position then
  return {'behind', position .. ' entries, not ' .. ARGV[7]}
end
if ARGV[13] ~= '' and tonumber(ARGV[13]) > next_event then
  return {'behind', next_event .. ' events, not ' .. ARGV[13]}
end

local entries_end = 15 + tonumber(ARGV[8])
local begun_end = entries_end + 2 * tonumber(ARGV[11])
if ARGV[7] ~= '' then
  local at = tonumber(ARGV[7])
  if at == 0 then
    redis.call('DEL', KEYS[3])
  elseif at < position then
    redis.call('LTRIM', KEYS[3], 0, at - 1)
  end
  for n = 16, entries_end do
    redis.call('RPUSH', KEYS[3], ARGV[n])
  end
  position = at + tonumber(ARGV[8])
end

if ARGV[13] ~= '' then
  local first = tonumber(ARGV[13])
  local weight = tonumber(redis.call('HGET', KEYS[1], 'weight'))
  for _ = first + 1, next_event do
    weight = weight - #(redis.call('RPOP', KEYS[6]) or '')
  end
  for n = begun_end + 1, #ARGV do
    redis.call('RPUSH', KEYS[6], ARGV[n])
    weight = weight + #ARGV[n]
  end
  next_event = first + #ARGV - begun_end
  local kept = redis.call('LLEN', KEYS[6])
  while kept > tonumber(ARGV[14]) or weight > tonumber(ARGV[15]) do
    weight = weight - #redis.call('LPOP', KEYS[6])
    kept = kept - 1
  end
  redis.call('HSET', KEYS[1], 'events', next_event, 'weight', weight)
end

local size, bound = #window + #record, tonumber(ARGV[6])
if size > bound then
  local from = 1
  while size > math.floor(bound * 7 / 8) and from <= #window do
    local length = HEAD + string.byte(window, from + 16)
    from, size = from + length, size - length
  end
  redis.call('SET', KEYS[5], string.sub(window, from) .. record)
elseif ARGV[5] ~= '' then
  redis.call('SET', KEYS[5], window .. record)
elseif record ~= '' then
  redis.call('APPEND', KEYS[5], record)
end

local function forget(answer)
  for _, field in ipairs(redis.call('HKEYS', KEYS[4])) do
    local rest = string.sub(field, #answer + 1)
    local own = string.sub(field, 1, #answer) == answer
    if own and (rest == '' or string.find(rest, '^[#:]')) then
      redis.call('HDEL', KEYS[4], field)
    end
  end
end
for ended in string.gmatch(ARGV[12], '[^ ]+') do
  forget(ended)
end
for n = entries_end + 1, begun_end, 2 do
  forget(ARGV[n])
  redis.call('HSET', KEYS[4], ARGV[n], ARGV[n + 1], ARGV[n] .. '#', 0)
end
if ARGV[9] ~= '' then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[9])
end
if ARGV[10] ~= '' then
  redis.call('SET', KEYS[2], ARGV[10])
end
return {'ok', position, next_event}
