"""
What a history gives away besides its states.

Clocks that stepped, a controller or a journal that was slow, replies that came too late, takeovers,
an operator's hand, a history that does not fit its chart or is cut off; and who drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, cast

import attrs

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import (
    COMMAND,
    HEARTBEATS_PER_TIMEOUT,
    OWNER_TIMEOUT_S,
    RENEW,
    RESUME,
    gone_after_s,
)
from gymckpt.diagnosis.case import Case
from gymckpt.diagnosis.causes import SILENT_AFTER_S
from gymckpt.diagnosis.explanation import Controller, Finding, Lease
from gymckpt.diagnosis.facts import unsavable_words
from gymckpt.diagnosis.words import count_of, duration
from gymckpt.journal.records import IMPORTED
from gymckpt.wording import sample, text_of

__all__ = ["controller_of", "findings_of", "lease_of", "operator_moves", "standing_of"]

STEP_MIN_S = 1.0
"""By how much the two clocks must disagree between two entries to be called a step."""

LATE_MIN_S = 1.0
"""How late a timer must run, or how slow every instance must be, to be called slow."""

QUICK_CALLS = (RENEW, RESUME)
"""Calls with which an instance has nothing to do but answer."""


BEATS_MISSED_MAX = 2
"""Of how many heartbeats a controller may be late and still be called alive."""

ALIVE_MIN_S = 1.0
"""For how long after a heartbeat it is called so in any case: a journal takes its time."""


def standing_of(owner: str, silent_s: float) -> Literal["alive", "silent", "unknown"]:
    """
    Return what its silence tells of a controller.

    Args:
        owner: Its token, which tells how often it gives a heartbeat; if not, the slowest pace
            that there is is assumed.
        silent_s: How long ago it gave the last.

    Returns:
        `silent` where it counts as gone, `alive` where hardly a heartbeat is late; between the
        two nothing is known.
    """
    if silent_s > gone_after_s(owner):
        return "silent"
    pace_s = pace_of(owner) or OWNER_TIMEOUT_S / HEARTBEATS_PER_TIMEOUT
    return "alive" if silent_s <= max(ALIVE_MIN_S, BEATS_MISSED_MAX * pace_s) else "unknown"


def pace_of(owner: str) -> float | None:
    """Return how often a controller gives a heartbeat, in seconds; None where it tells none."""
    told_s = gone_after_s(owner, 0.0)
    return told_s / HEARTBEATS_PER_TIMEOUT if told_s else None


_IMPORTED = "it was imported, for reading: nobody drives it in this journal"


def controller_of(case: Case) -> Controller:
    """Say who drives the operation and whether it gives heartbeats."""
    last, epochs = case.last, len({entry.epoch for entry in case.entries})
    claimed = case.epoch > last.epoch
    due_at_s = min((one.at_s for one in case.upcoming if not one.may_wait), default=None)
    due_ts = None if due_at_s is None else case.ts_of(due_at_s)
    silent_s = case.now_ts - last.ts if case.silent_s is None else case.silent_s
    status: Literal["ended", "alive", "silent", "unknown"]
    if case.operation.settled:
        status = "ended"
    elif case.undriven:
        status = "silent"
    elif case.silent_s is not None:
        status = standing_of(case.owner, silent_s)
    elif due_at_s is None:
        status = "unknown"
    else:
        status = "silent" if case.now_at_s > due_at_s + SILENT_AFTER_S else "unknown"
    owner = text_of(case.owner, 100)
    who, silent = f"controller {owner}" if owner else "its controller", "is silent"
    if owner.endswith(COMMAND):
        who, silent = f"an operator's command, {owner},", "which is over"
    ago = duration(max(0.0, silent_s))
    words = {
        "ended": "nobody need drive it any more",
        "alive": f"{who} is alive, its last heartbeat is {ago} old",
        "silent": f"{who} {silent}: its last heartbeat is {ago} old",
        "unknown": f"{who} made its last entry {ago} ago, and none has been due since"
        if case.silent_s is None
        else f"{who} may have ended: its last heartbeat is {ago} old{_pace_words(case)}",
    }[status]
    if case.undriven and status != "ended":
        words = f"nobody: {case.undriven}"
    if owner.startswith(IMPORTED):
        status, words = "ended", _IMPORTED
    if claimed and status != "ended" and not case.undriven:
        words += f"; it has claimed the operation as epoch {case.epoch} and recorded nothing yet"
    return Controller(
        owner=owner,
        epoch=case.epoch,
        status=status,
        seen_ts=case.now_ts - silent_s,
        due_ts=due_ts,
        takeovers=epochs - 1 + claimed,
        words=words,
    )


def _pace_words(case: Case) -> str:
    pace_s, gone_s = pace_of(case.owner), gone_after_s(case.owner)
    every = "" if pace_s is None else f", though it gives one every {duration(pace_s)}"
    return f"{every}; it counts as gone when that is {duration(gone_s)} old"


def lease_of(case: Case) -> Lease | None:
    """Return which lease ends first; None where no instance is parked by the operation."""
    operation = case.operation
    if operation.settled or not case.closed:
        return None
    known = operation.acknowledged_at_s
    held = [
        (known[name], name)
        for name in operation.instances
        if name in known and operation.call_state(RESUME, name).state not in _OPEN
    ]
    if not held:
        return None
    deadline_s, instance = min(held)
    return Lease(
        instance=instance,
        deadline_ts=case.ts_of(deadline_s),
        left_s=case.in_s(deadline_s),
        horizon_ts=case.ts_of(operation.lease_horizon_at_s),
    )


_OPEN = ("answered", "gone", "lapsed")


def findings_of(case: Case, cut: str) -> tuple[Finding, ...]:
    """Return what else was noticed, what needs attention first."""
    found = [finding for look in _LOOKS for finding in look(case)]
    if case.owner.startswith(IMPORTED):
        found.append(Finding(code="imported", problem=False, words=_IMPORTED))
    if cut:
        found.append(Finding(code="cut_off", problem=True, words=text_of(cut, 300)))
    return tuple(sorted(found, key=lambda finding: not finding.problem))


# --- does it fit --------------------------------------------------------------------------------


def _divergence(case: Case) -> Iterator[Finding]:
    diverged = case.replayed.divergence
    if diverged is None:
        return
    words = (
        f"entry {diverged.seq} does not follow {diverged.rule}: it gives {diverged.expected}, the "
        f"journal has {diverged.found}; everything here is about the entries before it"
    )
    yield Finding(code="diverged", problem=True, words=words)


def _reader(case: Case) -> Iterator[Finding]:
    behind_s = case.last.ts - case.now_ts
    if behind_s > STEP_MIN_S:
        words = (
            f"the last entry is {duration(behind_s)} ahead of this reader's clock; one of the two "
            "clocks is wrong, so ages are counted from the last entry"
        )
        yield Finding(code="reader_clock", problem=False, words=words)


# --- clocks -------------------------------------------------------------------------------------


def _overdue(case: Case) -> Iterator[Finding]:
    """A controller that lives, or did a moment ago, and does not do what was due."""
    due = [one.at_s for one in case.upcoming if not one.may_wait]
    if case.silent_s is None or not due:
        return
    standing, overdue_s = standing_of(case.owner, case.silent_s), -case.in_s(due[0])
    if standing == "silent" or overdue_s <= SILENT_AFTER_S:
        return
    late = f"what it had to do by itself is {duration(overdue_s)} overdue"
    words = {
        "alive": f"its controller is alive, but {late}: its journal may hang or be full; look into "
        "the controller's log",
        "unknown": f"its controller has given no heartbeat for {duration(case.silent_s)}, and "
        f"{late}: it has ended, or it or its journal hangs",
    }[standing]
    yield Finding(code="overdue", problem=True, words=words)


def _quiet(case: Case) -> Iterator[Finding]:
    """A controller that is gone by its own measure, which is shorter than that of the others."""
    silent_s, own_s = case.silent_s, gone_after_s(case.owner, 0.0)
    if silent_s is None or not own_s or case.operation.settled or any(_overdue(case)):
        return
    if own_s < silent_s <= gone_after_s(case.owner):
        words = (
            f"its controller must give a heartbeat within {duration(own_s)} and gave none for "
            f"{duration(silent_s)}: see whether it still runs"
        )
        yield Finding(code="quiet", problem=True, words=words)


def _clock_steps(case: Case) -> Iterator[Finding]:
    steps = [
        (after, (after.ts - before.ts) - (after.at_s - before.at_s))
        for before, after in pairwise(case.entries)
        if before.epoch == after.epoch
    ]
    big = [(entry, by_s) for entry, by_s in steps if abs(by_s) >= STEP_MIN_S]
    if not big:
        return
    entry, by_s = max(big, key=lambda step: abs(step[1]))
    where = "forward" if by_s > 0 else "back"
    effect = (
        "deadlines on the wire lie that much too far ahead, and leases last that much longer"
        if by_s > 0
        else "deadlines on the wire lie that much too early: instances may refuse calls as too late"
    )
    more = f" ({len(big)} steps in all)" if len(big) > 1 else ""
    words = (
        f"the controller's wall clock stepped {where} by {duration(abs(by_s))} before entry "
        f"{entry.seq}{more}; {effect}"
    )
    yield Finding(code="clock_step", problem=True, words=words)


# --- slowness -----------------------------------------------------------------------------------


@attrs.define
class _Round:
    """One renewal round, or one sending of a quick call to every instance."""

    call: str
    began_s: float
    asked: int = 0
    answered_s: list[float] = attrs.field(factory=list[float])

    @property
    def floor_s(self) -> float | None:
        """How long even the quickest answer took, where more than one instance answered."""
        quick = len(self.answered_s) == self.asked > 0
        return min(self.answered_s) - self.began_s if quick else None


def _slowness(case: Case) -> Iterator[Finding]:
    rounds = list(_rounds(case.entries))
    late_s = max([*_late_budgets(case), *_late_rounds(case.operation, rounds)], default=0.0)
    floors = [floor for one in rounds if (floor := one.floor_s) is not None]
    floor_s = min(floors, default=0.0)
    evidence: list[str] = []
    if late_s >= LATE_MIN_S:
        evidence.append(f"timers ran up to {duration(late_s)} late")
    if floor_s >= LATE_MIN_S:
        count = count_of(len(floors), "round")
        evidence.append(
            f"no answer to a renew or resume came in less than {duration(floor_s)} ({count})"
        )
    if evidence:
        words = (
            f"the controller was slow: {', and '.join(evidence)}; either its journal takes that "
            "long to make entries durable, which comes before every call, or its event loop is "
            "blocked"
        )
        yield Finding(code="slow_controller", problem=True, words=words)


def _rounds(entries: Sequence[Entry]) -> Iterator[_Round]:
    """Yield every sending of a quick call with its answers."""
    current: dict[str, _Round] = {}
    for entry in entries:
        call = entry.call
        if call not in QUICK_CALLS:
            continue
        begun = current.get(call)
        if entry.trigger == "ask":
            if begun is None or begun.began_s != entry.at_s:
                if begun is not None:
                    yield begun
                begun = current[call] = _Round(call, entry.at_s)
            begun.asked += 1
        elif entry.trigger == "answer" and begun is not None:
            begun.answered_s.append(entry.at_s)
    yield from current.values()


def _late_budgets(case: Case) -> Iterator[float]:
    """Yield how late asks were found to have run out of their budgets."""
    grace_s = case.operation.settings.reply_grace_s
    states = case.replayed.states
    for before, entry in zip(states, case.entries[1:], strict=False):
        if entry.trigger == "expire" and entry.instance and not entry.facts.get("abandoned"):
            asked = before.call_state(str(entry.call), entry.instance)
            yield entry.at_s - (asked.deadline_at_s + grace_s)


def _late_rounds(operation: OperationState, rounds: Sequence[_Round]) -> Iterator[float]:
    """Yield how much later than its interval each renewal round followed the one before."""
    interval_s = operation.settings.renew_interval_s
    renewals = [one for one in rounds if one.call == RENEW]
    for before, after in pairwise(renewals[1:]):  # the first is the one that follows a prepare
        done_s = max(before.answered_s, default=None)
        if done_s is not None and done_s < before.began_s + interval_s:
            yield after.began_s - before.began_s - interval_s


# --- others -------------------------------------------------------------------------------------


def _late_replies(case: Case) -> Iterator[Finding]:
    given_up = {
        (entry.call, entry.instance, entry.ask)
        for entry in case.entries
        if entry.facts.get("abandoned")
    }
    late = [
        entry
        for entry in case.entries
        if entry.trigger in ("stale", "confirm")
        and (entry.call, entry.instance, entry.ask) not in given_up
    ]
    answered = [entry for entry in late if entry.facts.get("outcome", "answered") == "answered"]
    if not answered:
        return
    named = sample(dict.fromkeys(f"{entry.call} from {entry.instance}" for entry in answered))
    words = (
        f"{count_of(len(answered), 'answer')} came after the wait for it was over: {named}; those "
        "calls did run, only slowly"
    )
    yield Finding(code="late_answers", problem=False, words=words)


def _unsavable(case: Case) -> Iterator[Finding]:
    if words := unsavable_words(case.entries):
        yield Finding(code="unsavable", problem=False, words=words)


def _takeovers(case: Case) -> Iterator[Finding]:
    by_hand = {entry.epoch for entry in operator_moves(case.entries)}
    firsts = [
        after
        for before, after in pairwise(case.entries)
        if after.epoch != before.epoch and after.epoch not in by_hand
    ]
    if len(firsts) < 2:
        return
    span_s = firsts[-1].at_s - firsts[0].at_s
    words = (
        f"it was taken over {len(firsts)} times, within {duration(span_s)}: more than one "
        "controller may believe that this run is its own; see to it that only one does"
    )
    yield Finding(code="takeovers", problem=True, words=words)


def operator_moves(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that record what an operator did by hand."""
    return [entry for entry in entries if entry.facts.get("operator")]


def _superseded(case: Case) -> Iterator[Finding]:
    """Attempts that a later restore has taken over."""
    taken: dict[str, list[str]] = {}
    for entry in case.entries:
        attempts = entry.facts.get("attempts") if entry.trigger == "supersede" else None
        if isinstance(attempts, dict):
            by = text_of(entry.facts.get("by"), 150)
            taken.setdefault(by, []).extend(cast("dict[str, object]", attempts))
    for by, instances in taken.items():
        named = list(dict.fromkeys(instances))
        words = (
            f"restore {by!r} installs the same attempts on {count_of(len(named), 'instance')}: "
            f"{sample(named)}; to retire them is left to it, should it fail, and is not waited for "
            "here"
        )
        yield Finding(code="superseded", problem=False, words=words)


def _by_hand(case: Case) -> Iterator[Finding]:
    moved = operator_moves(case.entries)
    if not moved:
        return
    last = moved[-1]
    reason = last.facts.get("why") or last.facts.get("reason") or ""
    about = f" of {last.instance}" if last.instance else ""
    words = (
        f"an operator took a hand: {text_of(last.facts['operator'], 100)}, entry {last.seq} "
        f"({last.trigger}{about}): {text_of(reason, 200)}"
    )
    yield Finding(code="by_hand", problem=False, words=words)


_LOOKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _divergence,
    _reader,
    _overdue,
    _quiet,
    _clock_steps,
    _slowness,
    _late_replies,
    _unsavable,
    _takeovers,
    _superseded,
    _by_hand,
)
