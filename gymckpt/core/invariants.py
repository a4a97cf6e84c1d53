"""
The promises of DESIGN section 3 that one operation's history can show, as named checks.

Each check looks at one entry with the states before and after it and returns what is wrong, or
None. They run in `step` before an entry is made durable and in `replay` after it was read, in
production too: a violation is a defect, and going on would make it worse. The promises that need
more than one history (S6 record then act, S7 one driver, S8, S9) are held by the scheduler and
the journal.
"""

from __future__ import annotations

from collections.abc import Callable

from gymckpt.core import timing
from gymckpt.core.entry import Entry
from gymckpt.core.events import Moment
from gymckpt.core.operation import NO_CALLS, OperationState
from gymckpt.core.settings import RENEW, RESUME, RETIRE
from gymckpt.errors import InvariantViolated

__all__ = ["CHECKS", "require_invariants"]

Check = Callable[[OperationState, Entry, OperationState], str | None]

_DRIVING_CALLS = frozenset({"prepare", RENEW, "commit", "restore"})
_NEEDS_PARKED = frozenset({"committing", "sealing", "committed"})
_NEEDS_COMMITS = frozenset({"sealing", "committed"})
_CLOSING_CALLS = ("prepare", "restore")
_OF_ANY_ASK = frozenset({"stale", "die", "confirm"})
"""The triggers of a call that may come of an ask before the latest one."""
_BEGUN = ("pending", "failed", "done")
_WITHDRAWAL = {"withdraw": ("pending", "failed"), "withdrawn": _BEGUN, "withdraw_failed": _BEGUN}
"""Trigger to how far the withdrawal of the manifest may be when it comes."""


def check_seq(before: OperationState, entry: Entry, _after: OperationState) -> str | None:
    """S6: entries of one operation are gapless, and its epochs and its clock never go back."""
    if (entry.run, entry.operation_id) != (before.run, before.operation_id):
        return f"it is an entry of {before.operation_id!r} of run {before.run!r}"
    if entry.seq != before.seq + 1:
        return f"entry {entry.seq} follows entry {before.seq}"
    if entry.at_s < before.at_s:
        return f"entry {entry.seq} of {entry.at_s!r} s follows one of {before.at_s!r} s"
    if entry.epoch < before.epoch:
        return f"entry {entry.seq} of epoch {entry.epoch} follows one of epoch {before.epoch}"
    return None


def check_source(before: OperationState, entry: Entry, _after: OperationState) -> str | None:
    """S6: an entry starts where the machine that it moves stands."""
    if entry.instance is None:
        stands = before.state
    else:
        stands = before.call_state(str(entry.call), entry.instance).state
    return None if entry.source == stands else f"it starts in {entry.source!r}, not in {stands!r}"


def check_ask(before: OperationState, entry: Entry, _after: OperationState) -> str | None:
    """S6: asks count from 1 and are made where the state makes them; the latest is answered."""
    if entry.instance is None:
        return None
    call, ask = str(entry.call), entry.ask or 0
    latest = before.call_state(call, entry.instance).ask
    if entry.trigger == "confirm" and call != RESUME:
        return f"an answer to an earlier {call} proves nothing"
    if entry.trigger not in ("ask", "retry"):
        first = 1 if entry.trigger in _OF_ANY_ASK else latest
        counts = 0 < first <= ask <= latest
        return None if counts else f"{entry.trigger} is of ask {ask} of {latest}"
    if call not in before.calls_of(before.state):
        return f"{before.state!r} sends no {call}"
    return None if ask == latest + 1 else f"ask {ask} follows ask {latest}"


def check_condition(before: OperationState, entry: Entry, _after: OperationState) -> str | None:
    """S6: what fires by itself once a condition holds has not fired before it held."""
    if entry.instance is not None:
        return None
    for condition, trigger in before.row.when.items():
        if trigger == entry.trigger:
            now = Moment(entry.ts, entry.at_s)
            holds = timing.HOLDING[condition](before, now)
            return None if holds else f"{condition} does not hold"
    return None


def check_park_before_commit(
    before: OperationState, entry: Entry, after: OperationState
) -> str | None:
    """S1: no commit unless every instance is parked and was renewed since, and no lease is lost."""
    if entry.call == "commit" and entry.trigger in ("ask", "retry"):
        lost = timing.is_lease_lost(before, Moment(entry.ts, entry.at_s))
        return "a lease must be presumed lost" if lost else None
    if entry.instance is not None or after.state not in _NEEDS_PARKED:
        return None
    total = len(after.instances)
    parked = after.calls.get("prepare", NO_CALLS).count("answered")
    renewed = len(after.calls.get(RENEW, NO_CALLS).by_instance)
    if parked != total or renewed != total:
        return f"{after.state} with {parked} of {total} parked and {renewed} of {total} renewed"
    return None


def check_manifest_last(_before: OperationState, entry: Entry, after: OperationState) -> str | None:
    """S2: the manifest is written only after every instance's commit reply was validated."""
    if entry.instance is not None or after.state not in _NEEDS_PARKED:
        return None
    if after.root is None:
        return f"{after.state} without a directory for the manifest"
    if after.state not in _NEEDS_COMMITS:
        return None
    total = len(after.instances)
    committed = after.calls.get("commit", NO_CALLS).count("answered")
    return None if committed == total else f"{after.state} with {committed} of {total} committed"


def check_no_act_after_end(
    before: OperationState, entry: Entry, _after: OperationState
) -> str | None:
    """S4: after a resume was sent, no prepare, renewal, commit or restore of the same id."""
    if entry.call not in _DRIVING_CALLS or entry.trigger not in ("ask", "retry"):
        return None
    if before.calls.get(RESUME, NO_CALLS).tally:
        return f"{entry.call} is sent to {entry.instance} after resume"
    return None


def check_everything_reopens(
    before: OperationState, entry: Entry, after: OperationState
) -> str | None:
    """S3: an operation that closed instances ends only when each is reopened, gone or lapsed."""
    if entry.instance is not None or not after.settled or before.settled:
        return None
    if not any(call in after.calls for call in _CLOSING_CALLS):
        return None
    total = len(after.instances)
    reopened = after.calls.get(RESUME, NO_CALLS).count("answered", "gone", "lapsed")
    return None if reopened == total else f"{after.state} with {reopened} of {total} reopened"


def check_retired_before_reopened(
    _before: OperationState, entry: Entry, after: OperationState
) -> str | None:
    """S5: a restore that is discarded asks every instance to retire before it reopens any."""
    if entry.instance is not None or after.state != "discarding" or "restore" not in after.calls:
        return None
    total = len(after.instances)
    asked = len(after.calls.get("retire", NO_CALLS).by_instance)
    return None if asked == total else f"reopening with {asked} of {total} asked to retire"


def check_kept_after_renewal(
    before: OperationState, entry: Entry, after: OperationState
) -> str | None:
    """S5: a restore stands only once every instance has answered a renewal sent after the body."""
    if entry.instance is not None or before.state != "keeping" or after.state != "resuming":
        return None
    earlier, renewals = before.calls_before, before.phase
    stale = [name for name in before.instances if renewals.get(name).ask <= earlier.get(name).ask]
    return f"{len(stale)} instance(s) were renewed before the body ended only" if stale else None


def check_retired_when_open(
    before: OperationState, entry: Entry, _after: OperationState
) -> str | None:
    """S5: what is unconfirmed is retired anew only where the instance has reopened."""
    call = before.also_call
    if entry.instance is None or entry.call != call or entry.trigger not in ("ask", "retry"):
        return None
    if before.phase_call == RESUME:
        resume = before.call_state(RESUME, entry.instance).state
        if resume not in ("answered", "lapsed"):
            return f"{call} is sent to {entry.instance}, whose resume is {resume}"
    if call == RETIRE and not before.to_retire(entry.instance):
        return f"nothing of {entry.instance} is left to {call}"
    free_s = timing.free_at_s(before, str(call), entry.instance)
    if free_s > entry.at_s + timing.RESOLUTION_S:
        return f"{call} is sent to {entry.instance} while an earlier one may be on its way"
    return None


def check_manifest_settled(
    before: OperationState, entry: Entry, after: OperationState
) -> str | None:
    """S2: a discarded checkpoint that was asked to write ends only when its manifest is gone."""
    if entry.instance is not None or after.state != "discarded" or entry.source != "discarding":
        return None
    if after.chart != "checkpoint" or after.root is None or before.file == "done":
        return None
    return f"discarded while the withdrawal of the manifest is {before.file}"


def check_withdrawal(before: OperationState, entry: Entry, _after: OperationState) -> str | None:
    """S2: a manifest is withdrawn only where one was to be written, and again only if need be."""
    if entry.instance is not None or entry.trigger not in _WITHDRAWAL:
        return None
    if before.file in _WITHDRAWAL[entry.trigger]:
        return None
    return f"{entry.trigger} while the withdrawal of the manifest is {before.file!r}"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("S6-seq", check_seq),
    ("S6-source", check_source),
    ("S6-ask", check_ask),
    ("S6-condition", check_condition),
    ("S1-park-before-commit", check_park_before_commit),
    ("S2-manifest-last", check_manifest_last),
    ("S2-manifest-settled", check_manifest_settled),
    ("S2-withdrawal", check_withdrawal),
    ("S3-everything-reopens", check_everything_reopens),
    ("S4-no-act-after-end", check_no_act_after_end),
    ("S5-retired-before-reopened", check_retired_before_reopened),
    ("S5-kept-after-renewal", check_kept_after_renewal),
    ("S5-retired-when-open", check_retired_when_open),
)
"""Every check with the name that its violation carries."""


def require_invariants(before: OperationState, entry: Entry, after: OperationState) -> None:
    """
    Hold one entry against every check.

    Args:
        before: The operation before the entry.
        entry: The entry.
        after: The operation after it.

    Raises:
        InvariantViolated: A check fails; the message names it, the operation and the entry.
    """
    for name, check in CHECKS:
        problem = check(before, entry, after)
        if problem is not None:
            what = (
                f"operation {entry.operation_id!r}, entry {entry.seq} ({entry.trigger}): {problem}"
            )
            raise InvariantViolated(name, what)
