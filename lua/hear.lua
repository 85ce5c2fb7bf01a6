-- hear takes in what a process knows, and settles what is due. It makes no record
-- of a circuit that has none.
--
-- Reply: its head, empty if it has no record, then the transition made, if any.

local made = advance()
if not c.fresh and c.override == '' and c.state == 'closed' then hear() end
save()
return { c.fresh and '' or head(), made }
