-- acquire decides whether one call may run.
--
-- The id of the message owns the lease, should the call be a probe.
--
-- Reply: verdict (run, probe, forced, open, busy), generation, ms left until a
-- rejected call may come back, the last failure's text, when the streak began,
-- the leases, 1 if the verdict ends when that time is over, else 0, then each
-- transition.

local made = {}

local function answer(verdict, left)
  save()
  local ends = c.override == '' or c.override_until > 0
  local reply = { verdict, int(c.generation), int(math.max(left or 0, 0)), c.last_error,
    int(c.streak_since), c.leases, ends and '1' or '0' }
  for i = 1, #made do reply[#reply + 1] = made[i] end
  return reply
end

made[1] = advance()
if not c.fresh and c.override == '' and c.state == 'closed' then hear() end
if c.override == '' and c.state == 'open' and now >= c.retry_at then
  made[#made + 1] = shift('half-open', 'cooldown_over', counts())
end

if c.override == 'closed' then return answer('forced', c.override_until - now) end
if c.override ~= '' then
  if c.override_until == 0 then return answer('open', p.cooldown) end
  return answer('open', c.override_until - now)
end
if c.state == 'closed' then return answer('run') end
if c.state == 'open' then return answer('open', c.retry_at - now) end

local taken, first_lapse = drop_lapsed()
if holds(id) then return answer('probe') end -- delivered twice
if taken >= math.max(p.max_probes, 1) then return answer('busy', first_lapse - now) end
set('leases', c.leases .. id .. ',' .. int(now + p.probe_lease) .. ';')
return answer('probe')
