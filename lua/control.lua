-- control is an operator's word on a circuit.
--
-- ARGV[8]   force, clear or reset
-- ARGV[9]   who
-- ARGV[10]   state to force
-- ARGV[11]  for how long, in ms; 0: until cleared
-- ARGV[12]  why
--
-- Reply: the transition made, if any.

local verb, by = ARGV[8], ARGV[9]

if verb == 'clear' then
  local made = advance()
  if not made and c.override ~= '' then
    local from, before = visible(), counts()
    end_override()
    record({ kind = 'cleared', by = by })
    made = steer(from, 'override_cleared', before)
  end
  save()
  return { made }
end

local from, before = visible(), counts()
advance()
local cause = 'reset'
if verb == 'force' then
  cause = 'forced'
  local length = tonumber(ARGV[11])
  set('override', ARGV[10])
  set('override_until', length > 0 and now + length or 0)
  set('override_reason', ARGV[12])
  set('override_by', by)
  record({ kind = 'override', state = ARGV[10], till = int(c.override_until), reason = ARGV[12], by = by })
else
  end_override()
  set('state', 'closed')
  clear()
  record({ kind = 'reset', by = by })
end
local made = steer(from, cause, before)
save()
return { made }
