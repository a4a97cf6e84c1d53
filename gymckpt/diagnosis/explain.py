"""
Explain one operation: what it is doing, who blocks it and why, what comes next, what may be done.

Everything is read from the entries; the journal's row and earlier operations make it richer where
they are given. Nothing here raises about a history, however short or wrong it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.diagnosis.advice import advice_for
from gymckpt.diagnosis.blocking import blocking_of, blocking_stories, groups_of, progress_of
from gymckpt.diagnosis.case import Case, case_of
from gymckpt.diagnosis.causes import culprits_of, why
from gymckpt.diagnosis.explanation import Controller, Explanation, Finding, Why
from gymckpt.diagnosis.lanes import StateSpan
from gymckpt.diagnosis.outlook import moves_of, next_of, waits_for
from gymckpt.diagnosis.picture import parked_s
from gymckpt.diagnosis.replay import replay
from gymckpt.diagnosis.signs import controller_of, findings_of, lease_of
from gymckpt.diagnosis.stories import Story
from gymckpt.diagnosis.words import count_of, duration
from gymckpt.wording import clipped, sample, text_of

__all__ = ["explain"]

SUMMARY_MAX = 600
"""How many characters a summary has at most."""

HISTORY_MAX = 10
"""How many earlier operations are looked at."""


def explain(
    entries: Iterable[Entry],
    *,
    now_ts: float | None = None,
    history: Iterable[Sequence[Entry]] = (),
    owner: str = "",
    epoch: int | None = None,
    silent_s: float | None = None,
    undriven: str = "",
    cut: str = "",
) -> Explanation:
    """
    Explain an operation from its journal.

    Args:
        entries: Its entries from the first, in order; may end anywhere.
        now_ts: The moment to explain it for, in epoch seconds; None for that of the last entry.
        history: Earlier operations of the same run, the latest first, for how instances behaved;
            all entries of each, or only those of the instances that matter.
        owner: Who drives it, as the journal's row says.
        epoch: Which epoch drives it, as the journal's row says.
        silent_s: How old the last heartbeat of the run's holder is, as `Journal.silent_s` says.
        undriven: Why nobody drives it, where that is certain; empty where somebody may.
        cut: What is missing, where the entries come from a file that was cut off.
    """
    given = tuple(entries)
    past = [one for one, _ in zip(history, range(HISTORY_MAX), strict=False)]
    case = case_of(
        given,
        now_ts=now_ts,
        history=past,
        owner=owner,
        epoch=epoch,
        silent_s=silent_s,
        undriven=undriven,
    )
    return _unopened(given, now_ts, cut) if case is None else _explained(case, cut)


def _explained(case: Case, cut: str) -> Explanation:
    operation = case.operation
    controller, cause = controller_of(case), why(case)
    stories = blocking_stories(case)
    findings = findings_of(case, cut)
    ahead = next_of(case, controller)
    problem = _is_problem(case, controller, cause, stories, findings)
    return Explanation(
        run=operation.run,
        operation_id=operation.operation_id,
        chart=operation.chart,
        title=title_of(operation),
        as_of_ts=case.now_ts,
        opened_ts=operation.opened_ts,
        state=operation.state,
        means=operation.row.means,
        since_ts=operation.entered_ts,
        for_s=case.now_at_s - operation.entered_at_s,
        settled=operation.settled,
        problem=problem,
        summary=_summary(case, controller, cause, stories, findings),
        advice=advice_for(
            case,
            controller=controller,
            cause=cause,
            culprits=culprits_of(case),
            blocking=stories,
            ahead=ahead,
        ),
        waits_for=waits_for(case, controller),
        progress=progress_of(case),
        blocking=blocking_of(case, stories),
        blocking_total=len(stories),
        groups=groups_of(stories),
        next=ahead,
        moves=moves_of(case, controller),
        cause=cause,
        controller=controller,
        lease=lease_of(case),
        parked_s=_parked_s(case),
        findings=findings,
    )


def title_of(operation: OperationState) -> str:
    """Return what to call an operation in a sentence."""
    what = operation.chart
    if what == "sweep":
        what = text_of(operation.opening.get("call", "sweep"), 40)
    return f"{what} {operation.operation_id!r}"


def _parked_s(case: Case) -> float:
    """Return how long instances were parked, or asked to park."""
    moves = [
        entry for entry in case.entries if entry.instance is None and entry.dest != entry.source
    ]
    left = [*(entry.at_s for entry in moves[1:]), None]
    spans = [
        StateSpan(
            state=entry.dest,
            trigger=entry.trigger,
            entered_at_s=entry.at_s,
            left_at_s=left_at_s,
            facts=entry.facts,
            seq=entry.seq,
        )
        for entry, left_at_s in zip(moves, left, strict=True)
    ]
    return parked_s(case.operation.declared, spans, case.now_at_s) or 0.0


def _is_problem(
    case: Case,
    controller: Controller,
    cause: Why | None,
    stories: Sequence[Story],
    findings: Sequence[Finding],
) -> bool:
    if cause is not None and not cause.expected:
        return True
    if controller.status == "silent" or any(finding.problem for finding in findings):
        return True
    if case.operation.settled:
        return case.operation.state == "failed"
    return any(story.state != "asked" or story.failure is not None for story in stories)


# --- one line -----------------------------------------------------------------------------------


def _summary(
    case: Case,
    controller: Controller,
    cause: Why | None,
    stories: Sequence[Story],
    findings: Sequence[Finding],
) -> str:
    operation = case.operation
    state = f"{title_of(operation)} {_IN_WORDS.get(operation.state, 'is ' + operation.state)}"
    if not operation.settled:
        state += f" since {duration(case.now_at_s - operation.entered_at_s)}"
    parts = [state]
    if cause is not None:
        parts.append(f"it was given up while {cause.in_state}: {cause.words}")
    elif operation.settled:
        parts.append(_ended_well(case))
    if not operation.settled:
        parts.append(_now(case, controller, stories))
    stepped = [finding.words for finding in findings if finding.code == "clock_step"]
    return clipped(text_of("; ".join([*parts, *stepped]), SUMMARY_MAX * 2), SUMMARY_MAX)


_IN_WORDS = {
    "resumed": "is done",
    "discarded": "was discarded",
    "done": "is done",
    "failed": "failed",
}


def _ended_well(case: Case) -> str:
    total = len(case.operation.instances)
    progress = progress_of(case)
    if progress is None:
        return "nothing was sent"
    other = {state: count for state, count in progress.tally.items() if state != "answered"}
    tail = "".join(f", {count} {state}" for state, count in other.items())
    return f"{progress.done} of {count_of(total, 'instance')} confirmed{tail}"


def _now(case: Case, controller: Controller, stories: Sequence[Story]) -> str:
    """Say what it waits for at this moment, and who is in the way."""
    if controller.status == "silent":
        return controller.words
    waits = f"it waits for {waits_for(case, controller)}"
    if not stories:
        return waits
    worst = stories[0]
    named = sample([story.instance for story in stories], width=60)
    said = f" ({worst.reason})" if worst.state != "asked" or worst.failure else ""
    return f"{waits}: {named}{said}"


# --- a history without a beginning --------------------------------------------------------------


def _unopened(given: Sequence[Entry], now_ts: float | None, cut: str) -> Explanation:
    """Explain a history of which not even the first entry is there or legal."""
    first = given[0] if given else None
    ts = first.ts if first else now_ts or 0.0
    diverged = replay(given[:1]).divergence
    words = cut or (
        f"its first entry is no opening for this release (entry {first.seq}, {diverged.found})"
        if first and diverged
        else "there is no entry"
    )
    state = text_of(first.dest, 60) if first else ""
    name = first.operation_id if first else ""
    return Explanation(
        run=first.run if first else "",
        operation_id=name,
        chart="",
        title=f"operation {name!r}",
        as_of_ts=ts if now_ts is None else now_ts,
        opened_ts=ts,
        state=state,
        means="",
        since_ts=ts,
        for_s=0.0,
        settled=False,
        problem=True,
        summary=clipped(f"operation {name!r} cannot be explained: {words}", SUMMARY_MAX),
        advice="read the operation from its journal, or take another copy of the file",
        waits_for="",
        progress=None,
        blocking=(),
        blocking_total=0,
        groups=(),
        next=(),
        moves=(),
        cause=None,
        controller=Controller(
            owner="", epoch=0, status="unknown", seen_ts=ts, due_ts=None, takeovers=0, words=""
        ),
        lease=None,
        parked_s=0.0,
        findings=(Finding(code="unopened", problem=True, words=text_of(words, 300)),),
    )
