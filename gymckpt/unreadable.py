"""
Operations whose log cannot be replayed are fenced where their opening can be read (DESIGN, 7).

Nothing is known of how far such an operation came, so nothing of it is gone on with. A lone resume
of its id reopens whatever it may have closed, and lets instances refuse every call of it that is
still on its way. Of a restore the same resume would mean that its attempts stand: whether they
should is for an operator to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs

from gymckpt.calls import SweepCalls
from gymckpt.core.events import Moment
from gymckpt.core.settings import RESUME, RetryPolicy, Settings
from gymckpt.core.step import open_operation
from gymckpt.episodes import new_operation_id, require_instance_id, require_operation_id
from gymckpt.errors import JournalCorrupt
from gymckpt.runtime.clock import Clock
from gymckpt.runtime.instances import actors_of, as_then
from gymckpt.runtime.scheduler import Scheduler
from gymckpt.runtime.worker import Recorder

__all__ = ["Fencing", "fence_unreadable"]

_FENCED_CHARTS = frozenset({"checkpoint", "sweep"})

_SETTINGS = Settings(
    control_timeout_s=30.0,
    prepare_timeout_s=30.0,
    reply_grace_s=5.0,
    retries={RESUME: RetryPolicy(attempts=2, pause_s=1.0)},
)
"""What bounds the resume: the operation's own settings may be damaged like the rest of it."""


@attrs.frozen(kw_only=True)
class Fencing:
    """What came of fencing an operation."""

    fenced: tuple[str, ...] = ()
    """Instances that have confirmed the resume."""
    unconfirmed: tuple[str, ...] = ()
    """Instances that have not."""
    missing: tuple[str, ...] = ()
    """Those of them for which there is no handle."""
    advice: str = ""
    """What is left to an operator."""


async def fence_unreadable(
    recorder: Recorder,
    run: str,
    operation_id: str,
    handles: Mapping[str, Any],
    *,
    clock: Clock,
    cancel_reference: Callable[[Any], None],
) -> Fencing:
    """
    Send each instance of an operation a lone resume of its id, as far as there are handles.

    Args:
        recorder: The journal, through which the run is held.
        run: The run.
        operation_id: The operation.
        handles: Instance id to handle.
        clock: The clocks.
        cancel_reference: Told of every reference that is no longer waited for.

    Raises:
        JournalError: Its opening cannot be read, or the journal cannot be written.
        TypeError: Its opening names something else than instances.
        ValueError: Likewise.
    """
    journal = recorder.journal
    opening = await recorder.read(lambda: journal.opening(run, operation_id))
    facts = opening.facts
    chart = facts.get("chart")
    wire_id = require_operation_id(facts.get("wire_id", operation_id), "wire_id")
    listed = facts.get("instances")
    if not isinstance(listed, list) or not listed:
        raise JournalCorrupt(f"operation {operation_id!r}: its opening names no instances")
    instances = tuple(require_instance_id(name) for name in cast("list[object]", listed))
    if chart == "restore":
        return Fencing(
            unconfirmed=instances,
            advice=f"; whether what it has restored stands is for an operator to say: resume "
            f"{wire_id!r} keeps it, and instances that are left alone reopen when their lease ends",
        )
    if chart not in _FENCED_CHARTS:
        raise JournalCorrupt(f"operation {operation_id!r}: its opening names the chart {chart!r}")
    reached = {name: found for name, found in as_then(handles, facts).items() if name in instances}
    missing = tuple(name for name in instances if name not in reached)
    if not reached:
        return Fencing(unconfirmed=missing, missing=missing)
    failures = await _resumed(
        recorder, run, wire_id, reached, clock=clock, cancel_reference=cancel_reference
    )
    return Fencing(
        fenced=tuple(name for name in instances if name in reached and name not in failures),
        unconfirmed=tuple(name for name in instances if name in failures or name in missing),
        missing=missing,
    )


async def _resumed(
    recorder: Recorder,
    run: str,
    wire_id: str,
    handles: Mapping[str, Any],
    *,
    clock: Clock,
    cancel_reference: Callable[[Any], None],
) -> Mapping[str, BaseException]:
    """Send a resume to each, and return the failures of those that have not confirmed it."""
    hold = await recorder.hold(run)
    begun = open_operation(
        moment=Moment(clock.wall_ts(), 0.0),
        run=run,
        operation_id=new_operation_id(RESUME),
        chart="sweep",
        instances=tuple(handles),
        settings=_SETTINGS,
        epoch=hold.epoch,
        facts={"call": RESUME, "wire_id": wire_id, **actors_of(handles)},
    )
    scheduler = Scheduler(
        begun.operation,
        recorder=recorder,
        handles=handles,
        wire=SweepCalls(wire_id, None),
        clock=clock,
        cancel_reference=cancel_reference,
    )
    await scheduler.open(begun.entries)
    scheduler.post("run")
    await scheduler.until_released()
    if scheduler.fault is not None:
        raise scheduler.fault
    return scheduler.unconfirmed(RESUME)
