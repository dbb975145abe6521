-- Apply one write batch.
-- KEYS   1 meta  2 state  3 log  4 running  5 idempotency keys  6 events
-- ARGV   1 owner  2 fence  3 the batch, a map in MessagePack: see `_encode_batch` in store.py
-- reply  {'ok', number of entries, next event, fence} | {'repeated', result} | {'conflict'}
--        | {'behind', what} | as in check_lease.lua
local meta, state, log, running, idempotency_keys, events = unpack(KEYS)
local batch = cmsgpack.unpack(ARGV[3])
local entry_count = redis.call('LLEN', log)
local next_event = tonumber(redis.call('HGET', meta, 'events'))

local function find_duplicate(request)
  for _, key in ipairs(batch.revoked_keys) do
    if key == request.key then
      return nil
    end
  end
  local record = redis.call('HGET', idempotency_keys, request.key)
  if not record then
    return nil
  end
  local _, content, result = unpack(cmsgpack.unpack(record))
  return content == request.content and {'repeated', result} or {'conflict'}
end

local function find_gap()
  if batch.kept_entries and batch.kept_entries > entry_count then
    return {'behind', entry_count .. ' entries, not ' .. batch.kept_entries}
  end
  if batch.first_event and batch.first_event > next_event then
    return {'behind', next_event .. ' events, not ' .. batch.first_event}
  end
end

local function put_entries()
  if batch.kept_entries == 0 then
    redis.call('DEL', log)
  elseif batch.kept_entries < entry_count then
    redis.call('LTRIM', log, 0, batch.kept_entries - 1)
  end
  for _, entry in ipairs(batch.entries) do
    redis.call('RPUSH', log, entry)
  end
  entry_count = batch.kept_entries + #batch.entries
end

local function put_events()
  local bytes = tonumber(redis.call('HGET', meta, 'weight'))
  for _ = batch.first_event + 1, next_event do
    bytes = bytes - #(redis.call('RPOP', events) or '')
  end
  for _, event in ipairs(batch.events) do
    redis.call('RPUSH', events, event)
    bytes = bytes + #event
  end
  local count = redis.call('LLEN', events)
  while count > batch.events_max or bytes > batch.events_bytes_max do
    bytes = bytes - #redis.call('LPOP', events)
    count = count - 1
  end
  next_event = batch.first_event + #batch.events
  redis.call('HSET', meta, 'events', next_event, 'weight', bytes)
end

-- Idempotency records count 17 bytes and their result, as in SQLite.
local function record_bytes(record)
  local _, _, result = unpack(cmsgpack.unpack(record))
  return 17 + #result
end

local function evict_requests(bytes, bound)
  local records = redis.call('HGETALL', idempotency_keys)
  local oldest_first = {}
  for n = 1, #records, 2 do
    local number = cmsgpack.unpack(records[n + 1])[1]
    oldest_first[#oldest_first + 1] = {number, records[n], record_bytes(records[n + 1])}
  end
  table.sort(oldest_first, function(a, b) return a[1] < b[1] end)
  for _, record in ipairs(oldest_first) do
    if bytes <= bound then
      break
    end
    redis.call('HDEL', idempotency_keys, record[2])
    bytes = bytes - record[3]
  end
  return bytes
end

local function put_requests()
  local number, bytes = unpack(redis.call('HMGET', meta, 'requests', 'request_bytes'))
  number, bytes = tonumber(number or 0), tonumber(bytes or 0)
  for _, key in ipairs(batch.revoked_keys) do
    local record = redis.call('HGET', idempotency_keys, key)
    if record then
      redis.call('HDEL', idempotency_keys, key)
      bytes = bytes - record_bytes(record)
    end
  end
  for _, request in ipairs(batch.requests) do
    local record = cmsgpack.pack({number, request.content, request.result})
    redis.call('HSET', idempotency_keys, request.key, record)
    number, bytes = number + 1, bytes + record_bytes(record)
  end
  if bytes > batch.request_bytes_max then
    bytes = evict_requests(bytes, math.floor(batch.request_bytes_max * 7 / 8))
  end
  redis.call('HSET', meta, 'requests', number, 'request_bytes', bytes)
end

local function delete_response(id)
  for _, field in ipairs(redis.call('HKEYS', running)) do
    local rest = string.sub(field, #id + 1)
    local is_own = string.sub(field, 1, #id) == id
    if is_own and (rest == '' or string.find(rest, '^[#:]')) then
      redis.call('HDEL', running, field)
    end
  end
end

local function start_response(id, checkpoint)
  delete_response(id)
  redis.call('HSET', running, id, checkpoint, id .. '#', 0)
end

local refusal = batch.request and find_duplicate(batch.request) or find_gap()
if refusal then
  return refusal
end
if batch.kept_entries then
  put_entries()
end
if batch.first_event then
  put_events()
end
if #batch.revoked_keys > 0 or #batch.requests > 0 then
  put_requests()
end
for _, id in ipairs(batch.ended_responses) do
  delete_response(id)
end
for _, started in ipairs(batch.started_responses) do
  start_response(started[1], started[2])
end
if batch.epoch then
  redis.call('HSET', meta, 'epoch', whole(batch.epoch))
end
if batch.state then
  redis.call('SET', state, batch.state)
end
local held, until_ms = unpack(redis.call('HMGET', meta, 'fence', 'deadline'))
expire_keys(until_ms)
return {'ok', entry_count, next_event, held}
