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

from gymckpt.core.entry import Entry
from gymckpt.core.operation import NO_CALLS, OperationState
from gymckpt.core.settings import RENEW, RESUME
from gymckpt.errors import InvariantViolated

__all__ = ["CHECKS", "require_invariants"]

Check = Callable[[OperationState, Entry, OperationState], str | None]

_DRIVING_CALLS = frozenset({"prepare", RENEW, "commit", "restore"})
_NEEDS_PARKED = frozenset({"committing", "sealing", "committed"})
_NEEDS_COMMITS = frozenset({"sealing", "committed"})
_CLOSING_CALLS = ("prepare", "restore")


def check_seq(before: OperationState, entry: Entry, _after: OperationState) -> str | None:
    """S6: entries of one operation are gapless and its epochs never fall."""
    if entry.seq != before.seq + 1:
        return f"entry {entry.seq} follows entry {before.seq}"
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


def check_park_before_commit(
    _before: OperationState, entry: Entry, after: OperationState
) -> str | None:
    """S1: no commit unless every instance answered prepare as parked, and a renewal after it."""
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
    if entry.instance is not None or after.state not in _NEEDS_COMMITS:
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


def check_manifest_settled(
    _before: OperationState, entry: Entry, after: OperationState
) -> str | None:
    """S2: a discarded checkpoint that was asked to write ends only when its manifest is gone."""
    if entry.instance is not None or after.state != "discarded" or entry.source != "discarding":
        return None
    if after.chart != "checkpoint" or after.root is None or _before.file == "done":
        return None
    return f"discarded while the withdrawal of the manifest is {_before.file}"


CHECKS: tuple[tuple[str, Check], ...] = (
    ("S6-seq", check_seq),
    ("S6-source", check_source),
    ("S1-park-before-commit", check_park_before_commit),
    ("S2-manifest-last", check_manifest_last),
    ("S2-manifest-settled", check_manifest_settled),
    ("S3-everything-reopens", check_everything_reopens),
    ("S4-no-act-after-end", check_no_act_after_end),
    ("S5-retired-before-reopened", check_retired_before_reopened),
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
