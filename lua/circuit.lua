-- The rules of one circuit, as state.go, rules.go and window.go have them in
-- Go: the functions have the same names, so that the two can be read side by
-- side. Every other script is appended to this one.
--
-- KEYS[1]  the circuit, a hash
-- KEYS[2]  its history, a list of JSON objects, newest first
-- ARGV[1]  the policy: thirteen numbers joined by commas, as policyArg writes them
-- ARGV[2]  settle (ms) and jitter, joined by a comma
-- ARGV[3]  instance, for transitions and history
-- ARGV[4]  process that speaks
-- ARGV[5]  its evidence: generation, streak, ms since its last success (-1: none)
-- ARGV[6]  its successes not yet counted: "age in ms,calls;" each
-- ARGV[7]  id of this message, unique
--
-- Integers go out as strings: Redis's Lua writes a large number in a reply or
-- with tostring in its own ways.

local clock = redis.pcall('TIME')
if clock.err then return redis.error_reply('ERR breaker decides on the clock of the server, but TIME failed: ' .. clock.err) end
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

local function int(n) return string.format('%.0f', n) end

local function numbers(s)
  local out = {}
  for n in string.gmatch(s, '[^,]+') do out[#out + 1] = tonumber(n) end
  return out
end

local function policy(s)
  local n = numbers(s)
  return {
    consecutive = n[1], window_failures = n[2], failure_rate = n[3], slow_rate = n[4],
    slow_after = n[5], min_calls = n[6], window = n[7], cooldown = n[8], max_cooldown = n[9],
    jitter = n[10], max_probes = n[11], probe_successes = n[12], probe_lease = n[13], rates = n[3] > 0 or n[4] > 0,
  }
end

local p = policy(ARGV[1])
local moment = numbers(ARGV[2])
local settle, jitter = moment[1], moment[2]
local instance, process = ARGV[3], ARGV[4]

-- The record. A field that is missing or unreadable counts as never set.

local c, changed, events = {}, {}, {}

local text_fields = {
  state = true, window = true, window_by = true, failures = true, leases = true, recent = true,
  last_error = true, last_instance = true, override = true, override_reason = true, override_by = true,
  head = true,
}

local function load_circuit()
  local raw = redis.call('HGETALL', KEYS[1])
  for i = 1, #raw, 2 do
    local field, value = raw[i], raw[i + 1]
    if text_fields[field] then
      c[field] = value
    elseif #value <= 15 and string.find(value, '^%d+$') then
      c[field] = tonumber(value)
    end
  end
  c.fresh = #raw == 0
  setmetatable(c, { __index = function(_, field)
    if text_fields[field] then return '' end
    return 0
  end })
  if c.state ~= 'open' and c.state ~= 'half-open' then c.state = 'closed' end
  if c.override ~= 'open' and c.override ~= 'closed' then c.override = '' end
end

local function set(field, value)
  if c[field] ~= value then
    c[field] = value
    changed[field] = true
  end
end

-- Keys outlive all they are needed for by an hour, or a day where the circuit
-- is not simply closed, so that expiry never closes an open circuit.
local function expire(key)
  if c.override ~= '' and c.override_until == 0 then
    redis.call('PERSIST', key)
    return
  end
  local last = math.max(now + p.window, c.retry_at, c.override_until, c.retry_hint, now + p.probe_lease)
  local spare = 3600000
  if c.state ~= 'closed' or c.override ~= '' then spare = 86400000 end
  redis.call('PEXPIRE', key, int(last - now + spare))
end

-- head is what a call on a healthy circuit reads: see headOf.
local function head()
  local verdict = 'ask'
  if c.state == 'closed' and c.override == '' and c.met_at == 0 then verdict = 'run' end
  return verdict .. ' ' .. int(c.generation) .. ' ' .. int(c.streak_since) .. ' ' .. c.leases
end

-- news is what the other processes must know at once: "changed", or "met" where
-- they are asked to tell of their successes.
local was = {} -- as loaded
local function news()
  if c.generation ~= was.generation or c.leases ~= was.leases then return 'changed' end
  if c.asked_at ~= was.asked_at then return 'met' end
  return nil
end

-- announce fails nothing: a server that refuses leaves the others to their
-- reads. The channel is named after the prefix.
local function announce(what)
  redis.pcall('PUBLISH', string.match(KEYS[1], '^[^{]*') .. 'changes', what .. ' ' .. KEYS[1])
end

-- save writes what changed. The HSET comes first: it is the write that a full
-- server refuses, and then nothing has been written.
local function save()
  if c.fresh and next(changed) == nil then return end
  set('head', head())
  if next(changed) == nil then return end
  if c.fresh then set('version', 1) end
  local what = news()
  local args = {}
  for field in pairs(changed) do
    local value = c[field]
    if type(value) == 'number' then value = int(value) end
    args[#args + 1] = field
    args[#args + 1] = value
  end
  redis.call('HSET', KEYS[1], unpack(args))
  expire(KEYS[1])
  if #events > 0 and redis.call('LPUSH', KEYS[2], unpack(events)) > 128 then
    redis.call('LTRIM', KEYS[2], 0, 99)
  end
  expire(KEYS[2])
  if what then announce(what) end
end

local function record(event)
  event.at = int(now)
  events[#events + 1] = cjson.encode(event)
end

local function visible()
  if c.override ~= '' then return c.override end
  return c.state
end

-- The window: failures are thirteen digits each, calls are
-- "start,calls,failures,slow;" each.

local function each_bucket(visit)
  for start, calls, failures, slow in string.gmatch(c.window, '(%d+),(%d+),(%d+),(%d+);') do
    visit(tonumber(start), tonumber(calls), tonumber(failures), tonumber(slow))
  end
end

local function add(at, calls, failures, slow)
  local oldest = now - p.window
  local width = math.max(math.floor(p.window / 20), 1)
  local own = at - at % width
  local kept = {}
  local function put(start, n, f, s)
    kept[#kept + 1] = int(start) .. ',' .. int(n) .. ',' .. int(f) .. ',' .. int(s) .. ';'
  end
  local before, found = 0, false
  each_bucket(function(start, n, f, s)
    if start <= oldest then return end
    before = before + 1
    if start == own then
      n, f, s, found = n + calls, f + failures, s + slow, true
    end
    put(start, n, f, s)
  end)
  if own > oldest then
    if not found then put(own, calls, failures, slow) end
    if before == 0 then
      set('window_by', process)
    elseif c.window_by ~= process then
      set('window_by', '*')
    end
  end
  set('window', table.concat(kept))
end

local function sum(at)
  local calls, failures, slow = 0, 0, 0
  each_bucket(function(start, n, f, s)
    if start > at - p.window then
      calls, failures, slow = calls + n, failures + f, slow + s
    end
  end)
  return calls, failures, slow
end

local function fail_at()
  if p.window_failures == 0 then return set('failures', '') end
  local times = c.failures .. string.format('%013.0f', now)
  set('failures', string.sub(times, -13 * p.window_failures))
end

local function failures_within(at)
  local n = 0
  for t in string.gmatch(c.failures, '%d%d%d%d%d%d%d%d%d%d%d%d%d') do
    if tonumber(t) > at - p.window then n = n + 1 end
  end
  return n
end

local function window_full()
  return #c.failures >= 13 * p.window_failures and failures_within(now) >= p.window_failures
end

-- Leases: "owner,until;" each.

local function each_lease(visit)
  for owner, till in string.gmatch(c.leases, '([^,;]+),(%d+);') do visit(owner, tonumber(till)) end
end

local function drop_lapsed()
  local kept, count, first = {}, 0, nil
  each_lease(function(owner, till)
    if now >= till then return end
    kept[#kept + 1] = owner .. ',' .. int(till) .. ';'
    count = count + 1
    if first == nil or till < first then first = till end
  end)
  set('leases', table.concat(kept))
  return count, first
end

local function holds(owner)
  return owner ~= '' and string.find(';' .. c.leases, ';' .. owner .. ',', 1, true) ~= nil
end

local function release(owner)
  local kept = {}
  each_lease(function(o, till)
    if o ~= owner then kept[#kept + 1] = o .. ',' .. int(till) .. ';' end
  end)
  set('leases', table.concat(kept))
end

-- Transitions.

local function counts()
  local at = now
  if c.state ~= 'closed' then at = c.opened_at end
  local calls, failures, slow = sum(at)
  if not p.rates then failures = failures_within(at) end
  return { int(c.streak), int(calls), int(failures), int(slow), int(c.probe_successes) }
end

local function begin()
  set('generation', c.generation + 1)
  set('changed_at', now)
  set('met_at', 0)
  set('probe_successes', 0)
  set('leases', '')
end

local function transition(from, cause, before)
  local to, retry_at = visible(), 0
  if to == 'open' then
    retry_at = c.override ~= '' and c.override_until or c.retry_at
  end
  local t = table.concat({ from, to, int(c.generation), int(now), cause, int(retry_at),
    table.concat(before, ',') }, ',')
  record({ kind = 'transition', transition = t, instance = instance })
  return t
end

local function shift(to, cause, before)
  local from = c.state
  set('state', to)
  begin()
  return transition(from, cause, before)
end

local function steer(from, cause, before)
  begin()
  if visible() == from then return nil end
  return transition(from, cause, before)
end

local function end_streak()
  set('streak', 0)
  set('streak_since', 0)
  set('retry_hint', 0)
end

local function clear()
  end_streak()
  set('window', '')
  set('window_by', '')
  set('failures', '')
  set('met_at', 0)
  set('opened_at', 0)
  set('retry_at', 0)
  set('reopens', 0)
end

local function cooldown()
  local d, reopens = p.cooldown, c.reopens
  while reopens > 0 and d < p.max_cooldown do
    d = math.min(2 * d, p.max_cooldown)
    reopens = reopens - 1
  end
  return math.floor(d * (1 + p.jitter * (2 * jitter - 1)))
end

local function open(at, cause)
  local before = counts()
  set('opened_at', at)
  set('retry_at', math.max(at + cooldown(), c.retry_hint))
  set('retry_hint', 0)
  return shift('open', cause, before)
end

-- The rules.

local function rate_rule(at, failed, slow)
  if not p.rates then return nil end
  local calls, failures, slows = sum(at)
  if calls < p.min_calls then return nil end
  if failed and p.failure_rate > 0 and failures >= p.failure_rate * calls then return 'failure_rate' end
  if slow and p.slow_rate > 0 and slows >= p.slow_rate * calls then return 'slow_rate' end
  return nil
end

local function run_met() return p.consecutive > 0 and c.streak >= p.consecutive end

local function rule(at, failed, slow)
  if failed and run_met() then return 'consecutive_failures' end
  return rate_rule(at, failed, slow)
end

local function asked(by) return c.streak_since <= c.asked_at and c.asked_at <= by end

local function settled()
  local from = c.met_at
  if run_met() and asked(from) then from = c.asked_at end
  return from + settle
end

local function due() return c.met_at > 0 and now >= settled() end

local function review()
  if c.met_at > 0 and not rule(math.min(now, settled()), true, true) then set('met_at', 0) end
end

-- first_time says whether this message has not been counted before. It remembers the
-- last ones, some sixteen: a network that delivers one twice, or a client that sends it
-- again, must not make it count twice. An id cut short is none, for want of its comma.
local id, known = ARGV[7], nil
local function first_time()
  if known == nil then
    known = string.find(',' .. c.recent, ',' .. id .. ',', 1, true) ~= nil
    if not known then
      set('recent', string.sub(id .. ',' .. c.recent, 1, 320))
    end
  end
  return not known
end

local evidence = numbers(ARGV[5])
local own_streak = evidence[2]

local heard, restarted = false, false

local function hear_success()
  if evidence[1] ~= c.generation or evidence[3] < 0 then return end
  local succeeded = now - evidence[3]
  if c.streak > 0 and c.streak_since <= succeeded and (c.met_at == 0 or succeeded <= settled()) then
    restarted = true
    end_streak()
  end
end

local function hear()
  if heard or evidence[1] ~= c.generation then return end
  heard = true
  hear_success()
  if p.rates and ARGV[6] ~= '' and first_time() then
    for age, calls in string.gmatch(ARGV[6], '(%d+),(%d+);') do
      add(now - tonumber(age), tonumber(calls), 0, 0)
    end
  end
  review()
end

local function end_override()
  set('override', '')
  set('override_until', 0)
  set('override_reason', '')
  set('override_by', '')
end

local function advance()
  if c.override ~= '' and c.override_until > 0 and now >= c.override_until then
    local from, before = visible(), counts()
    end_override()
    return steer(from, 'override_ended', before)
  end
  if due() then
    hear()
    review()
    if due() then return open(c.met_at, rule(settled(), true, true)) end
    hear_success() -- one that came too late for the rule still ends the run
  end
  return nil
end

local function last_failure(kind, text)
  set('last_failure_at', now)
  set('last_error', text)
  set('last_instance', instance)
  record({ kind = kind, error = text, instance = instance, outcome = 'failure' })
end

load_circuit()
was.generation, was.leases, was.asked_at = c.generation, c.leases, c.asked_at
