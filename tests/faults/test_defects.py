"""A defect in the drive of an operation: instances reopen, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from gymckpt.core.events import Triggered
from gymckpt.errors import IllegalTransition
from gymckpt.runtime import driver as driver_module
from gymckpt.runtime import spans as spans_module
from gymckpt.runtime.clock import Timers
from gymckpt.runtime.ledger import Ledger
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import World

SETTINGS: dict[str, Any] = {"control_timeout_s": 30.0, "prepare_timeout_s": 300.0}

PLACES: dict[str, tuple[Any, str]] = {
    "the core": (driver_module, "step"),
    "an effect": (Timers, "start"),
    "the drain": (Ledger, "record"),
}
"""Where a defect may be: what to replace, and under which name."""


class Defect(Exception):
    """What no part of the library expects."""


def plant(patch: pytest.MonkeyPatch, place: str, fails: Callable[[int], bool]) -> list[int]:
    """
    Let something of the drive raise in some of its calls.

    Args:
        patch: What undoes it.
        place: One of `PLACES`.
        fails: Whether the call of that number, from 1, raises.

    Returns:
        The numbers of the calls so far.
    """
    owner, name = PLACES[place]
    whole = getattr(owner, name)
    calls: list[int] = []

    def broken(*args: Any) -> Any:
        calls.append(len(calls) + 1)
        if fails(calls[-1]):
            raise Defect(f"call {calls[-1]}, says the test")
        return whole(*args)

    patch.setattr(owner, name, broken)
    return calls


async def operate(root: Path, kind: str) -> bool:
    """Run one operation, hold what was promised, and say whether a defect left the verb."""
    world = World(2, clock=LoopClock(), root=root, **SETTINGS)
    raised = False
    try:
        await world.operate(kind, "broken")
    except Defect:
        raised = True
    assert running_loop().time() < 60.0
    await asyncio.sleep(1_500)  # beyond the lease horizon and many sweeps
    await world.examine()
    assert world.operation("broken").settled
    return raised


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["checkpoint", "restore", "retire"])
def test_whichever_call_meets_a_defect(place: str, kind: str, tmp_path: Path) -> None:
    """S3, L1, L2: wherever a drain fails once, all is reopened and the verb is told, or ends."""
    with pytest.MonkeyPatch.context() as patch:
        calls = plant(patch, place, lambda _number: False)
        simulate(lambda: operate(tmp_path / "whole", kind))
        total = len(calls)
    assert total >= 1
    told: list[bool] = []
    for which in range(1, total + 1):
        with pytest.MonkeyPatch.context() as patch:
            plant(patch, place, lambda number, which=which: number == which)
            told.append(simulate(lambda which=which: operate(tmp_path / str(which), kind)))
    assert told[0]


def test_a_core_that_takes_no_reply(tmp_path: Path) -> None:
    """S3, L1: where every reply meets a defect, instances are reopened as if all were silent."""

    async def main() -> None:
        world = World(3, clock=LoopClock(), root=tmp_path, **SETTINGS)
        with pytest.raises(Defect):
            await world.operate("checkpoint", "deaf")
        assert all(actor.calls[-1].op == "resume" for actor in world.actors)
        await asyncio.sleep(1_500)
        await world.examine()
        assert world.operation("deaf").state == "discarded"

    whole = driver_module.step

    def deaf(operation: Any, event: Any) -> Any:
        if hasattr(event, "outcome"):
            raise Defect("no reply, says the test")
        return whole(operation, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_module, "step", deaf)
        simulate(main)


def test_a_core_that_cannot_settle(tmp_path: Path) -> None:
    """L1: where not even settling is possible the operation stops, and its caller is told."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, **SETTINGS)
        with pytest.raises(Defect):
            await world.coordinator.prepare("hopeless")
        assert running_loop().time() < 60.0
        assert await world.coordinator.history("hopeless")
        world.coordinator.require_none_open("open another")

    whole = driver_module.step

    def hopeless(operation: Any, event: Any) -> Any:
        if not isinstance(event, Triggered) or event.trigger == "settle":
            raise Defect("nothing goes, says the test")
        return whole(operation, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver_module, "step", hopeless)
        simulate(main)


def test_no_thread_for_the_manifest(tmp_path: Path) -> None:
    """S3: where no thread can be started for the manifest, it is not written and all reopen."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path, **SETTINGS)

        def start_job(name: str, job: Callable[[], Any]) -> Any:
            if "sealed" in name:
                raise RuntimeError("can't start new thread")
            return whole(name, job)

        whole = running_loop().start_job
        running_loop().start_job = start_job
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await world.operate("checkpoint", "cramped")
        await world.examine()
        assert world.operation("cramped").state == "discarded"

    simulate(main)


def test_a_tracer_that_fails_costs_no_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1: an exporter of traces that raises at every state is not worth a checkpoint."""

    class Misconfigured(trace.NoOpTracer):
        def start_span(self, *_args: Any, **_kwargs: Any) -> trace.Span:
            raise Defect("no exporter, says the test")

    monkeypatch.setattr(spans_module, "_tracer", Misconfigured())
    assert simulate(lambda: operate(tmp_path, "checkpoint")) is False


def test_a_refused_event_keeps_those_beside_it_from_nothing(tmp_path: Path) -> None:
    """L1: a verb that comes in one tick with an illegal one is told what came of it."""

    async def main() -> None:
        world = World(1, clock=LoopClock(), root=tmp_path, **SETTINGS)
        await world.coordinator.prepare("one")
        scheduler = driver_of(world)
        illegal = asyncio.ensure_future(scheduler.request("sealed"))
        legal = asyncio.ensure_future(scheduler.request("discard", {"reason": "says the test"}))
        assert await asyncio.wait_for(legal, 5.0) is None
        with pytest.raises(IllegalTransition):
            await illegal
        await world.examine()

    simulate(main)


def test_a_drain_that_is_cut_short_keeps_the_order(tmp_path: Path) -> None:
    """S9: what came first stays the cause, also where a loop that is shut down cut the drain."""

    async def main() -> None:
        world = World(1, clock=LoopClock(), root=tmp_path, **SETTINGS)
        await world.coordinator.prepare("one")
        scheduler = driver_of(world)
        take, cut = scheduler._take, []

        async def cut_once(batch: Any) -> None:
            if not cut:
                cut.append(len(batch))
                raise asyncio.CancelledError
            await take(batch)

        scheduler._take = cut_once
        scheduler.post("discard", {"reason": "first"})
        scheduler.post("cancel", {"reason": "second"})
        await scheduler.until_released()
        assert cut == [2]
        cause = scheduler.operation.cause
        assert (cause.trigger, cause.facts["reason"]) == ("discard", "first")
        await world.examine()

    simulate(main)


def driver_of(world: World) -> Any:
    """Return what drives the open operation."""
    running = world.coordinator._operations.open
    assert running is not None
    return running.scheduler
