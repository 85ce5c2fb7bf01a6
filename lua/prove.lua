-- prove writes, and leaves nothing: a server that does it can write the circuit
-- too, which is in the same slot.
--
-- KEYS[1]  a key of its own

redis.call('HSET', KEYS[1], 'proof', '1')
redis.call('PEXPIRE', KEYS[1], '1')
return 1
