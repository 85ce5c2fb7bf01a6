-- read returns a circuit as it is stored, and changes nothing.
--
-- KEYS[1]  the circuit, a hash
--
-- Reply: the server's time in seconds and microseconds, then the hash.

return { redis.call('TIME'), redis.call('HGETALL', KEYS[1]) }
