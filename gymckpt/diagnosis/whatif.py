"""
What would have happened: a history that goes on differently from some entry on.

The real core and the real scheduler run from that entry on a clock that takes no time. The world
around them is told from the history: an ask is answered as it was then and as late as it was, the
controller's body does what it did when the operation was in the same state as long, and file jobs
end as they did. Where the history knows nothing, because things go another way, the closest that it
knows is assumed, and counted. What a body would have done in a state in which it never was is not
guessed: there it ends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import attrs

from gymckpt.core.effects import Effect, SendCall, StartTimer, WithdrawManifest, WriteManifest
from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.diagnosis.explain import explain
from gymckpt.diagnosis.replay import Replay, replay
from gymckpt.diagnosis.retelling import SUPERSEDE, AskKey, Past, Retold, Tale
from gymckpt.diagnosis.upcoming import running_timers
from gymckpt.diagnosis.words import duration
from gymckpt.journal.memory import MemoryJournal
from gymckpt.journal.rules import Opening, RunRow, operation_from
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.virtual import VirtualClock, VirtualLoop, run_virtually
from gymckpt.runtime.worker import Recorder

__all__ = ["Edit", "Phase", "WhatIf", "edit_of", "what_if"]

WHAT_IF_SCHEMA = "gymckpt.whatif/1"

RECOVER_AFTER_S = 35.0
"""How long after a crash another controller takes over, unless the edit says otherwise: as soon as
the one that crashed counts as gone."""

LIMIT_S = 24 * 3600.0
"""How much time of the operation is run through at the most."""

OWNER = "what-if"
RECOVERING = "what-if-recovering"
"""Who holds the run: first, and after a crash."""

JOURNAL_TIMEOUT_S = 10.0


@attrs.frozen(kw_only=True)
class Edit:
    """One thing that is to go differently."""

    kind: Literal["drop", "delay", "crash"]
    """`drop`: the reply that an entry records never comes. `delay`: it comes later. `crash`: the
    controller crashes right after the entry."""
    seq: int
    seconds: float | None = None
    """Of a delay, how much later; of a crash, after how long another controller takes over."""

    def in_words(self, entry: Entry) -> str:
        """Say what it changes."""
        if self.kind == "crash":
            after = duration(RECOVER_AFTER_S if self.seconds is None else self.seconds)
            return (
                f"the controller crashes after entry {self.seq}; {after} later another one goes on"
            )
        reply = f"the reply of {entry.instance} to {entry.call} #{entry.ask} (entry {self.seq})"
        if self.kind == "drop":
            return f"{reply} never comes"
        return f"{reply} comes {duration(self.seconds or 0.0)} later"


@attrs.frozen(kw_only=True)
class Phase:
    """One state that an operation was in, and how long."""

    state: str
    seconds: float | None
    """None for the state in which it ends here."""


@attrs.frozen(kw_only=True)
class WhatIf:
    """A history that goes on differently."""

    edits: tuple[str, ...]
    """What was changed, in words."""
    from_seq: int
    """The last entry that both histories share."""
    entries: tuple[Entry, ...]
    """The other history, from its first entry."""
    ended: Literal["settled", "body", "limit"]
    """`settled`: the operation ended. `body`: it came into a state in which its body never was, and
    what that would have done is not known. `limit`: it went on for too long."""
    assumed: int
    """How many answers the history does not know and were assumed."""
    was: tuple[Phase, ...]
    """The states of the history as it was."""
    becomes: tuple[Phase, ...]
    """The states of the other history."""
    summary_was: str
    summary_becomes: str

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON data; `docs/cli.md` documents the shape."""
        fields = attrs.asdict(self, filter=lambda field, _: field.name != "entries")
        after = [
            attrs.asdict(entry, filter=lambda field, _: field.name not in ("run", "operation_id"))
            for entry in self.entries[self.from_seq :]
        ]
        return {"schema": WHAT_IF_SCHEMA, **fields, "entries_after": after}


_KINDS: Mapping[str, Literal["drop", "delay", "crash"]] = {
    "drop": "drop",
    "delay": "delay",
    "crash": "crash",
}
_EDIT = re.compile(
    rf"(?P<kind>{'|'.join(_KINDS)})=(?P<seq>\d{{1,9}})(:(?P<seconds>\d{{1,5}}(\.\d{{1,6}})?))?"
)


def edit_of(text: str) -> Edit:
    """
    Read an edit: `drop=SEQ`, `delay=SEQ:SECONDS`, `crash=SEQ` or `crash=SEQ:SECONDS`.

    Raises:
        ValueError: It is none of them.
    """
    wrong = (
        f"{text!r:.80} is no edit; give drop=SEQ, delay=SEQ:SECONDS or crash=SEQ[:SECONDS], where "
        "SEQ is an entry that replay --step shows"
    )
    found = _EDIT.fullmatch(text)
    if found is None:
        raise ValueError(wrong)
    kind, seq, seconds = _KINDS[found["kind"]], int(found["seq"]), found["seconds"]
    late_s = None if seconds is None else float(seconds)
    if (kind == "delay" and late_s is None) or (kind == "drop" and late_s is not None):
        raise ValueError(wrong)
    return Edit(kind=kind, seq=seq, seconds=late_s)


def what_if(entries: Sequence[Entry], edits: Iterable[Edit]) -> WhatIf:
    """
    Run a history with some things going differently.

    Must be called from a thread in which no event loop runs.

    Args:
        entries: The history, from its first entry.
        edits: What goes differently.

    Raises:
        ValueError: There is no edit, an entry does not exist or is no reply, or the history does
            not follow its chart up to there.
    """
    edited = tuple(edits)
    history = tuple(entries)
    told = replay(history)
    if told.divergence is not None or not told.entries:
        raise ValueError("the history does not follow its chart, so nothing can go on from it")
    first = _first_difference(told, edited)
    kept = replay(history[:first])
    stage = _Stage(told, kept, edited)
    alternative = run_virtually(stage.play)
    return WhatIf(
        edits=tuple(edit.in_words(history[edit.seq - 1]) for edit in edited),
        from_seq=first,
        entries=alternative,
        ended=stage.ended,
        assumed=stage.assumed,
        was=tuple(_phases(history)),
        becomes=tuple(_phases(alternative)),
        summary_was=explain(history).summary,
        summary_becomes=explain(alternative).summary,
    )


def _first_difference(told: Replay, edits: Sequence[Edit]) -> int:
    """Return how many entries are kept, or say which edit is impossible."""
    if not edits:
        raise ValueError("say what goes differently: drop=SEQ, delay=SEQ:SECONDS or crash=SEQ")
    past = Past(told.entries)
    for edit in edits:
        if not 1 <= edit.seq <= len(told.entries):
            raise ValueError(f"there is no entry {edit.seq}; there are 1 to {len(told.entries)}")
        if edit.kind != "crash" and edit.seq not in past.told_by:
            entry = told.entries[edit.seq - 1]
            raise ValueError(f"entry {edit.seq} records no reply, but {entry.trigger!r}")
    kept = min(edit.seq - (edit.kind != "crash") for edit in edits)
    if told.after(kept).settled:
        raise ValueError(f"the operation had settled by entry {kept}: nothing comes after it")
    return kept


def _phases(entries: Sequence[Entry]) -> Iterator[Phase]:
    moves = [entry for entry in entries if entry.instance is None and entry.dest != entry.source]
    for entry, after in zip(moves, [*moves[1:], None], strict=True):
        left_s = None if after is None else after.at_s - entry.at_s
        yield Phase(state=entry.dest, seconds=left_s)


class _Stage:
    """One operation on a virtual loop, with its past around it."""

    def __init__(self, told: Replay, kept: Replay, edits: Sequence[Edit]) -> None:
        self.ended: Literal["settled", "body", "limit"] = "limit"
        self.assumed = 0
        self._kept = kept
        self._operation = cast("OperationState", kept.state)
        self._past = Past(told.entries)
        self._crash = next((edit for edit in edits if edit.kind == "crash"), None)
        if self._crash is not None and self._crash.seq > len(kept.entries):
            self._crash = None  # another edit comes first, and changes what is there to crash
        self._retold = Retold(self._past, self._operation, self._edited(edits))

    def _edited(self, edits: Sequence[Edit]) -> dict[AskKey, Tale]:
        changed: dict[AskKey, Tale] = {}
        for edit in edits:
            key = self._past.told_by.get(edit.seq)
            if key is None or edit.kind == "crash":
                continue
            tale = self._past.tales[key]
            later_s = None if tale.after_s is None else tale.after_s + (edit.seconds or 0.0)
            changed[key] = attrs.evolve(tale, after_s=None if edit.kind == "drop" else later_s)
        return changed

    async def play(self, loop: VirtualLoop) -> tuple[Entry, ...]:
        """Let the operation go on, and return its whole history."""
        loop.job_s = self._retold.job_s
        journal, operation = MemoryJournal(), self._operation
        self._record(journal)
        over: asyncio.Future[None] = loop.create_future()
        clock = VirtualClock(loop, wall_ts=self._kept.entries[-1].ts)
        recorder = Recorder(journal, owner=OWNER, timeout_s=JOURNAL_TIMEOUT_S)
        if self._crash is not None:
            after_s = RECOVER_AFTER_S if self._crash.seconds is None else self._crash.seconds
            await asyncio.sleep(after_s)
            operation = attrs.evolve(operation, at_s=operation.at_s + after_s)
        scheduler = Scheduler(
            operation,
            recorder=recorder,
            handles=self._retold.handles,
            wire=self._retold,
            clock=clock,
            cancel_reference=lambda _reference: None,
        )
        body = _Body(self._past, scheduler, loop, over, driven=self._crash is None)
        scheduler.on_moved = body.look
        if self._crash is not None:
            epoch = journal.claim(operation.run, holder=RECOVERING, force=True)
            scheduler.take_over(epoch, RECOVERING)
        else:
            scheduler.pick_up(self._under_way())
            body.look()
        await asyncio.wait({over}, timeout=LIMIT_S)
        self.ended = body.ended
        self.assumed = self._retold.assumed
        return journal.read(operation.run, operation.operation_id)

    def _record(self, journal: MemoryJournal) -> None:
        """Put the entries that are kept into a journal of their own."""
        operation, entries = self._operation, self._kept.entries
        opening = Opening(
            run=operation.run,
            operation_id=operation.operation_id,
            chart=operation.chart,
            chart_version=operation.chart_version,
        )
        row = operation_from(
            opening, entries, epoch=operation.epoch, owner=OWNER, settled=operation.settled
        )
        journal.insert_operation(row, entries)
        last_ts = entries[-1].ts
        journal.store.runs[operation.run] = RunRow(
            run=operation.run,
            epoch=operation.epoch,
            holder=OWNER,
            since_ts=last_ts,
            beats=1,
            beat_ts=last_ts,
        )

    def _under_way(self) -> Iterator[Effect]:
        """Yield what the controller had under way after the last entry that is kept."""
        operation = self._operation
        for call in operation.calls_of(operation.state):
            for instance, asked in operation.in_state(call, "asked"):
                besides = call == operation.also_call
                yield SendCall(instance, call, asked.ask, asked.deadline_ts, besides=besides)
        timers = running_timers(self._kept.entries, self._kept.states)
        for timer, at_s in timers.items():
            yield StartTimer(timer, max(0.0, at_s - operation.at_s))
        if operation.file == "pending":
            withdraws = operation.row.effect == "withdraw_manifest"
            yield WithdrawManifest(str(operation.root)) if withdraws else WriteManifest()


class _Body:
    """The controller's body: it does in a state what it did there, as long after entering it."""

    def __init__(
        self,
        past: Past,
        scheduler: Scheduler,
        loop: VirtualLoop,
        over: asyncio.Future[None],
        *,
        driven: bool,
    ) -> None:
        self.ended: Literal["settled", "body", "limit"] = "limit"
        self._past = past
        self._scheduler = scheduler
        self._loop = loop
        self._over = over
        self._driven = driven
        self._state = ""

    def look(self) -> None:
        """Take notice of where the operation is; called after each change."""
        operation = self._scheduler.operation
        if operation.settled or self._scheduler.stopped:
            self._end("settled")
        elif self._driven and operation.state != self._state:
            self._state = operation.state
            self._act(operation)

    def _act(self, operation: OperationState) -> None:
        since_s = operation.at_s - operation.entered_at_s
        verbs = [verb for verb in self._past.verbs if verb.state == operation.state]
        ahead = [verb for verb in verbs if verb.after_s >= since_s - 1e-9]
        for verb in ahead:
            delay_s = max(0.0, verb.after_s - since_s)
            self._loop.call_later(delay_s, self._do, verb.state, verb.trigger, verb.facts)
        sends = operation.phase_call or operation.also_call
        waits_for_body = sends is None and operation.row.effect is None
        if waits_for_body and all(verb.trigger == SUPERSEDE for verb in ahead):
            self._end("body")

    def _do(self, state: str, trigger: str, facts: Any) -> None:
        if self._scheduler.operation.state == state:
            self._scheduler.post(trigger, facts)

    def _end(self, how: Literal["settled", "body"]) -> None:
        if not self._over.done():
            self.ended = how
            self._over.set_result(None)
