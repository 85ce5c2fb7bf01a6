-- names keeps the names of circuits in use, so that they can be listed without
-- a scan of the server.
--
-- KEYS[1]  the names, a sorted set by the time each was last said
-- ARGV[1]  how many are kept at the most
-- ARGV[2]  after how many ms unsaid one is dropped
-- ARGV[3..] names
--
-- Reply: how many were not known.

local clock = redis.pcall('TIME')
if clock.err then return redis.error_reply('ERR breaker decides on the clock of the server, but TIME failed: ' .. clock.err) end
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local args = {}
for i = 3, #ARGV do
  args[#args + 1] = string.format('%.0f', now)
  args[#args + 1] = ARGV[i]
end
local new = redis.call('ZADD', KEYS[1], unpack(args))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[2])))
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[1]))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return new
