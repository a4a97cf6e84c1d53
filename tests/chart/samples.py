"""Small sound charts, one of each scope, that tests break in one place at a time."""

OPERATION = """\
name = "mini"
version = 1
scope = "operation"
means = "Ask every instance once and let it go on."
initial = "open"

[triggers]
run = "the caller begins"
all_answered = "every instance has answered"
refuse = "it cannot succeed"
sealed = "the file is durable"
seal_failed = "the file is not durable"
lose_lease = "a lease is lost"
finish = "the caller is done"
all_settled = "every instance has reopened"
discard = "it is given up"
cancel = "the caller was cancelled"
settle = "it is brought to its end"

[states.open]
means = "nothing was sent"
on.run = "asking"
on.discard = "over"
on.cancel = "over"
on.settle = "over"

[states.asking]
means = "every instance was asked"
call = "prepare"
budget = "prepare"
when.all_answered = "all_answered"
when.cannot_succeed = "refuse"
on.all_answered = "writing"
on.refuse = "reopening"
on.discard = "reopening"
on.cancel = "reopening"
on.settle = "reopening"

[states.writing]
means = "the file is being written"
effect = "write_manifest"
budget = "control"
on.sealed = "holding"
on.seal_failed = "reopening"
on.discard = "reopening"
on.cancel = "reopening"
on.settle = "reopening"

[states.holding]
means = "the body runs"
renews = true
when.lease_lost = "lose_lease"
on.finish = "reopening"
on.lose_lease = "reopening"
on.discard = "reopening"
on.cancel = "reopening"
on.settle = "reopening"

[states.reopening]
means = "instances are being reopened"
call = "resume"
budget = "control"
reopens = true
when.all_settled = "all_settled"
on.all_settled = "over"
ignore.discard = "it is over already"
ignore.cancel = "it is over already"
ignore.settle = "it is over already"

[states.over]
means = "it has ended"
final = true
ignore.discard = "it has ended"
ignore.cancel = "it has ended"
ignore.settle = "it has ended"
"""

PARTICIPANT = """\
name = "door"
version = 1
scope = "participant"
means = "Let one in at a time."
initial = "shut"

[triggers]
knock = "somebody knocks"
leave = "whoever is in leaves"

[guards]
known = "the visitor is known"
paid = "the visitor has paid"

[states.shut]
means = "nobody is in"
on.knock = [{ to = "taken", guard = "known" }, { to = "taken", guard = "paid" }]
ignore.leave = "nobody is in"

[states.taken]
means = "somebody is in"
on.leave = "shut"
on.knock = [{ to = "taken", guard = "known" }, { to = "shut" }]
"""

CALL = """\
name = "ring"
version = 1
scope = "call"
means = "Ring once."
initial = "idle"

[triggers]
dial = "it is dialled"
hang_up = "it ends"

[states.idle]
means = "not dialled"
on.dial = "ringing"

[states.ringing]
means = "it rings"
on.hang_up = "over"

[states.over]
means = "it has ended"
final = true
ignore.hang_up = "it has ended"
"""


def broken(text: str, old: str, new: str) -> str:
    """Return a sample with one passage replaced, which must be there exactly once."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the sample"
    return text.replace(old, new)
