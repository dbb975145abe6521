-- Prefix of every script: the time in ms, by the clock of this Redis.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function whole(number)
  return string.format('%.0f', number)
end
