"""
One line about an operation, for a list of many.

It is worked out from the journal's row and an outline (`Journal.outline`), without replaying and
without the facts of calls, so that a list stays quick however many instances each has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import attrs

from gymckpt.chart import AT_OPENING, Chart
from gymckpt.core.entry import Entry, JsonFacts
from gymckpt.core.operation import FAILING_TRIGGERS
from gymckpt.core.settings import RENEW
from gymckpt.diagnosis.facts import chart_of, note_of, strings_of
from gymckpt.diagnosis.stories import Story, stories_of
from gymckpt.diagnosis.words import ORDINARY_END, count_of
from gymckpt.journal.rules import OperationRow
from gymckpt.wording import sample, text_of

__all__ = ["FAILED_STATES", "OverviewLine", "overview_of"]

FAILED_STATES = ("discarded", "failed", "discarding", "retiring")
"""States in which an operation has failed, or been given up."""

REASON_MAX = 300

Status = Literal["done", "failed", "given_up", "ordinary", "going_on"]


@attrs.frozen(kw_only=True)
class Worst:
    """The instance that matters most in an operation."""

    instance: str
    call: str
    state: str
    for_s: float
    """How long its call took, or how long it has been out."""


@attrs.frozen(kw_only=True)
class OverviewLine:
    """One operation in a list."""

    run: str
    operation_id: str
    kind: str
    """Its chart; of a sweep, the call that it sends."""
    state: str
    settled: bool
    status: Status
    """`done`: it ended well. `failed`: it ended otherwise. `given_up`: it is being undone.
    `ordinary`: it was given up in the ordinary way, with nothing to save. `going_on`."""
    opened_ts: float
    since_ts: float
    """When it entered its state."""
    updated_ts: float
    """When its last entry was made."""
    duration_s: float
    """From its opening to its end, or until now."""
    call: str
    """The call that matters: that of the state, or the one that failed."""
    answered: int
    instances: int
    worst: Worst | None
    reason: str
    """Why it was given up, where it was."""
    owner: str
    epoch: int
    alive: bool | None
    """Whether its controller gives heartbeats; None where that is not known or needless."""
    imported: bool
    """Whether it came from an exported file, so that nobody drives it here."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON data; `docs/cli.md` documents the shape."""
        return attrs.asdict(self)


def overview_of(
    row: OperationRow, outline: Sequence[Entry], *, now_ts: float, alive: bool | None = None
) -> OverviewLine:
    """
    Return one line about an operation.

    Args:
        row: The journal's row.
        outline: Its entries, as `Journal.outline` gives them; may be any beginning of them.
        now_ts: This moment.
        alive: Whether its controller gives heartbeats, where that is known.
    """
    chart = chart_of(outline[0]) if outline else None
    opening: JsonFacts = outline[0].facts if outline else {}
    moves = [entry for entry in outline if entry.instance is None and entry.dest != entry.source]
    cause = next((entry for entry in moves if _gives_up(entry)), None)
    call = _call_of(chart, cause.source if cause else row.state, opening) or _latest_call(outline)
    failing = cause is not None and _call_of(chart, cause.source, opening)
    told = stories_of(outline[: cause.seq] if cause is not None and failing else outline).values()
    stories = [one for one in told if one.call == call]
    now_at_s = outline[-1].at_s + max(0.0, now_ts - row.updated_ts) if outline else 0.0
    ended_at_s = outline[-1].at_s if row.settled and outline else now_at_s
    return OverviewLine(
        run=row.run,
        operation_id=row.operation_id,
        kind=text_of(opening.get("call", row.chart), 40) if row.chart == "sweep" else row.chart,
        state=row.state,
        settled=row.settled,
        status=_status(row, cause),
        opened_ts=row.opened_ts,
        since_ts=moves[-1].ts if moves else row.opened_ts,
        updated_ts=row.updated_ts,
        duration_s=ended_at_s,
        call=call,
        answered=sum(one.state == "answered" for one in stories),
        instances=len(strings_of(opening.get("instances"))),
        worst=_worst(
            stories if cause is not None or not row.settled else _but_renewals(told),
            cause.at_s if cause is not None and failing else ended_at_s,
        ),
        reason=_reason(cause),
        owner=row.owner,
        epoch=row.epoch,
        alive=None if row.settled else alive,
        imported=row.imported,
    )


def _gives_up(entry: Entry) -> bool:
    return entry.trigger in FAILING_TRIGGERS and entry.dest in FAILED_STATES


def _status(row: OperationRow, cause: Entry | None) -> Status:
    if cause is not None and cause.facts.get("reason") == ORDINARY_END:
        return "ordinary"
    if not row.settled:
        return "given_up" if cause is not None else "going_on"
    return "failed" if row.state in FAILED_STATES else "done"


def _call_of(chart: Chart | None, state: str, opening: JsonFacts) -> str:
    """Return the call that a state sends to every instance; empty where it sends none."""
    row = chart.states.get(state) if chart is not None else None
    call = row.call if row is not None else None
    return text_of(opening.get("call", ""), 40) if call == AT_OPENING else call or ""


def _latest_call(outline: Sequence[Entry]) -> str:
    calls = (entry.call for entry in reversed(outline) if entry.call not in (None, RENEW))
    return next(calls, None) or ""


def _but_renewals(told: Iterable[Story]) -> list[Story]:
    return [one for one in told if one.call != RENEW]


def _worst(stories: Sequence[Story], now_at_s: float) -> Worst | None:
    """Return the first instance that went wrong, else the slowest of all."""
    if not stories:
        return None

    def badness(story: Story) -> tuple[bool, float]:
        if story.failed_at_s is not None:
            return True, -story.failed_at_s
        return False, _out_s(story, now_at_s)

    worst = max(stories, key=badness)
    return Worst(
        instance=worst.instance,
        call=worst.call,
        state=worst.state,
        for_s=_out_s(worst, now_at_s),
    )


def _out_s(story: Story, now_at_s: float) -> float:
    return now_at_s - story.asked_at_s if story.took_s is None else story.took_s


def _reason(cause: Entry | None) -> str:
    """Say in a few words why an operation was given up, as its own entry has it."""
    if cause is None:
        return ""
    facts = cause.facts
    if facts.get("operator"):
        return text_of(f"by {facts['operator']}: {facts.get('reason', '')}", REASON_MAX)
    if "call" in facts:
        failed, sampled = facts.get("failed"), facts.get("sample")
        named = [
            text_of(cast("JsonFacts", one).get("instance"), 80)
            for one in cast("list[object]", sampled if isinstance(sampled, list) else [])
            if isinstance(one, dict)
        ]
        count = failed if type(failed) is int else len(named)
        what = f"{text_of(facts['call'], 40)} failed on {count_of(count, 'instance')}"
        return f"{what}: {sample(named, count, width=60)}" if named else what
    said = facts.get("reason") or note_of(facts) or cause.trigger
    return text_of(said, REASON_MAX)
