-- read returns a circuit as it is stored, and changes nothing.
--
-- KEYS[1]  the circuit, a hash
--
-- Reply: the server's time in seconds and microseconds, then the hash.

local clock = redis.pcall('TIME')
if clock.err then return redis.error_reply('ERR breaker decides on the clock of the server, but TIME failed: ' .. clock.err) end
return { clock, redis.call('HGETALL', KEYS[1]) }
