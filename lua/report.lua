-- report takes in the result of a permitted call.
--
-- ARGV[8]   generation of the permit
-- ARGV[9]   owner token of the probe's lease; empty for other calls
-- ARGV[10]  outcome: success, failure or ignored
-- ARGV[11]  1 if the call was slow, else 0
-- ARGV[12]  Retry-After honoured, in ms; 0: none
-- ARGV[13]  text of the failure
--
-- Reply: ms until a rule that this report met has settled (-1: it met none),
-- whether the circuit has a record (had: already, new, none), its head, then the
-- transition made.

local generation, owner, outcome = tonumber(ARGV[8]), ARGV[9], ARGV[10]
local slow, retry_after, text = ARGV[11] == '1', tonumber(ARGV[12]), ARGV[13]

local function answer(made, settles_in)
  local record = 'had'
  if c.fresh then record = next(changed) and 'new' or 'none' end
  save()
  return { int(settles_in or -1), record, head(), made }
end

local function ask(cause)
  local since = now - c.asked_at
  if since < 0 then since = now end
  local due
  if not cause then
    due = p.consecutive > 0 and c.streak >= 2 and now - c.streak_since <= 500 and since >= 60000
  else
    due = since >= 500 and not (cause == 'consecutive_failures' and asked(now))
  end
  if due then set('asked_at', now) end
end

local function begin_to_settle(cause)
  local begins = cause and c.met_at == 0
  if c.met_at == 0 then ask(cause) end
  if begins then set('met_at', now) end
  if due() then return open(now, cause) end
  return nil, begins and settled() - now
end

local function count()
  local failed = outcome == 'failure'
  if p.rates then add(now, 1, failed and 1 or 0, slow and 1 or 0) end
  if failed then
    if c.streak == 0 then set('streak_since', now) end
    set('streak', c.streak + 1)
    if restarted then set('streak', math.max(c.streak, own_streak)) end
    fail_at()
    if retry_after > 0 then set('retry_hint', math.max(c.retry_hint, now + retry_after)) end
    last_failure('failure', text)
  else
    end_streak()
    review()
    if not slow then return nil end
  end

  if failed and p.window_failures > 0 and window_full() then return open(now, 'window_failures') end
  if settle <= 0 then
    local cause = rule(now, failed, slow)
    if cause then return open(now, cause) end
    return nil
  end
  if failed and p.consecutive > 0 and own_streak >= p.consecutive then
    set('streak', math.max(c.streak, own_streak))
    return open(now, 'consecutive_failures')
  end
  if c.window_by == process then
    local cause = rate_rule(now, failed, slow)
    if cause then return open(now, cause) end
  end
  return begin_to_settle(rule(now, failed, slow))
end

local function settle_probe()
  drop_lapsed()
  if not holds(owner) then return nil end
  release(owner)
  if outcome == 'success' then
    record({ kind = 'probe', outcome = outcome, instance = instance })
    set('probe_successes', c.probe_successes + 1)
    if c.probe_successes < p.probe_successes then return nil end
    local before = counts()
    clear()
    return shift('closed', 'probes_succeeded', before)
  end
  if outcome == 'failure' then
    set('streak', c.streak + 1)
    last_failure('probe', text)
    set('reopens', c.reopens + 1)
    if retry_after > 0 then set('retry_hint', now + retry_after) end
    return open(now, 'probe_failed')
  end
  record({ kind = 'probe', outcome = 'ignored', instance = instance })
  return nil
end

local made = advance()
if made then first_time() end -- it has had its effect, whatever generation a second one finds
if made or c.override ~= '' or generation ~= c.generation then return answer(made) end
if c.state == 'closed' then
  if outcome == 'ignored' then return answer(nil) end
  if (outcome == 'failure' or p.rates) and not first_time() then return answer(nil) end
  hear()
  return answer(count())
end
if c.state == 'half-open' then return answer(settle_probe()) end
return answer(nil)
