"""Any series of operations under any schedule of faults: the promises hold, and all of it ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
from hypothesis import event, given
from hypothesis import strategies as st

from gymckpt.coordinator import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointPrepareSummary,
)
from gymckpt.errors import (
    GymCheckpointUnavailable,
    IllegalTransition,
    JournalError,
    OperationDiscarded,
    OperationOpen,
)
from tests.fakes import HANG, ActorDiedError, Apply, Call, FakeActor, Ghost, Immediate, Late
from tests.faults.journals import EntryRefused, Trouble, TroubledJournal
from tests.faults.virtual import LoopClock, running_loop, simulate
from tests.faults.world import World, new_id

CONTROL_S, PREPARE_S = 5.0, 20.0
SETTINGS = {"control_timeout_s": CONTROL_S, "prepare_timeout_s": PREPARE_S}
HORIZON_S = 700.0
CALLS = ("prepare", "renew", "commit", "restore", "retire", "resume", "forget")

delays = st.sampled_from([0.0, 0.001, 0.5, 1.0, 4.0, 9.9, 10.1, 26.0, 300.0])
errors = st.sampled_from(
    [
        GymCheckpointUnavailable("HTTP 503"),
        TimeoutError("inside"),
        TypeError("broken"),
        asyncio.CancelledError("by the actor"),
        ExceptionGroup("many", [ValueError()]),
    ]
)
troubles: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    delays.map(Late),
    st.builds(Late, delays, errors),
    st.just(HANG),
    st.just(Apply(HANG)),
    errors.map(Apply),
    errors.map(Immediate),
    delays.map(Ghost),
    errors,
    st.just(Apply({"no": "summary"})),
)
prepare_troubles = troubles | st.builds(
    GymCheckpointPrepareSummary, st.just(False), st.just({"agent": ("r",)})
)


@attrs.frozen
class ActorPlan:
    """What goes wrong on one instance."""

    scripts: dict[str, list[Any]]
    dies_at: int | None
    """The number of the call from which it is dead."""
    gives_futures: bool


plans = st.builds(
    ActorPlan,
    st.fixed_dictionaries(
        {},
        optional={
            call: st.lists(prepare_troubles if call == "prepare" else troubles, max_size=4)
            for call in CALLS
        },
    ),
    st.none() | st.none() | st.integers(1, 25),
    st.booleans(),
)


@attrs.frozen
class Deed:
    """One operation of the caller."""

    kind: str
    body_s: float
    raises: bool
    cancel_s: float | None
    again_s: float | None
    """When it is cancelled a second time, after the first."""
    rival_s: float | None
    """When another task tries to begin another operation."""


KINDS = (
    "checkpoint",
    "checkpoint",
    "no commit",
    "restore",
    "restore",
    "retire inside",
    "retire",
    "forget",
    "resume",
)
deeds = st.builds(
    Deed,
    st.sampled_from(KINDS),
    st.sampled_from([0.0, 1.0, 7.0, 40.0]),
    st.booleans(),
    st.none() | st.none() | st.sampled_from([0.0, 0.0005, 0.4, 3.0, 9.0, 15.0]),
    st.none() | st.sampled_from([0.0, 0.001, 2.0]),
    st.none() | st.sampled_from([0.0, 0.3, 5.0]),
)

EXPECTED = (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    IllegalTransition,
    OperationDiscarded,
    OperationOpen,
    JournalError,
    EntryRefused,
)


class TrainingError(Exception):
    """What a body raises."""


async def body(deed: Deed) -> None:
    """Do what a caller does meanwhile."""
    await asyncio.sleep(deed.body_s)
    if deed.raises:
        raise TrainingError


async def perform(world: World, deed: Deed, name: str) -> None:
    """Do one operation as its plan says."""
    coordinator, manifest = world.coordinator, world.manifest("source", each=2)
    if deed.kind == "checkpoint":
        async with world.committed(name, world.root(name)):
            await body(deed)
    elif deed.kind == "no commit":
        async with coordinator.prepared(name):
            await coordinator.renew(name)
            await body(deed)
    elif deed.kind == "restore":
        async with coordinator.restored(name, "/nowhere", manifest):
            await body(deed)
    elif deed.kind == "retire inside":
        async with coordinator.restored(name, "/nowhere", manifest):
            await coordinator.retire_restored(name, manifest)
            await body(deed)
    else:
        await world.operate(deed.kind, name)


async def live_through(world: World, deed: Deed, *, journal_s: float = 0.0) -> str:
    """Perform a deed with its cancellations and rival; return how it ended."""
    loop, name = running_loop(), new_id()
    task = asyncio.ensure_future(perform(world, deed, name))
    if deed.cancel_s is not None:
        loop.call_later(deed.cancel_s, task.cancel)
        if deed.again_s is not None:
            loop.call_later(deed.cancel_s + deed.again_s, task.cancel)
    rival = None
    if deed.rival_s is not None:
        await asyncio.sleep(deed.rival_s)
        rival = asyncio.ensure_future(perform(world, attrs.evolve(deed, kind="resume"), new_id()))
    began_s = loop.time()
    await asyncio.wait({task, *([rival] if rival else [])})
    budgets_s = PREPARE_S + 8 * (CONTROL_S + 5.0) + deed.body_s + 20.0 + journal_s
    assert loop.time() - began_s <= budgets_s, "L1: a verb took longer than its budgets"
    for ended in (task, rival):
        if ended is None or ended.cancelled():
            continue
        error = ended.exception()
        assert error is None or isinstance(error, (*EXPECTED, TrainingError)), repr(error)
    if task.cancelled():
        return "cancelled"
    return type(task.exception()).__name__ if task.exception() else "good"


def arrange(actor: FakeActor, plan: ActorPlan) -> None:
    """Let an instance do as its plan says."""
    for call, scripts in plan.scripts.items():
        actor.scripts[call] = list(scripts)
    actor.gives_futures = plan.gives_futures
    if plan.dies_at is not None:
        normal: Callable[[str], Any] = actor.next_script
        dead, dies_at = ActorDiedError("dead"), plan.dies_at
        actor.next_script = lambda op: dead if len(actor.calls) >= dies_at else normal(op)  # type: ignore[method-assign]


def require_recorded(world: World) -> Callable[[str], Callable[[Call], None]]:
    """Return a check that an ask is in the journal before its call leaves (S6)."""
    sent: Counter[tuple[str, str, str]] = Counter()
    wire_ids: dict[str, str] = {}

    def recorded(instance: str, call: Call) -> int:
        for row in world.journal.operations(world.run):
            if row.operation_id not in wire_ids:
                wire_ids[row.operation_id] = world.operation(row.operation_id).wire_id
        return sum(
            entry.instance == instance and entry.call == call.op
            for operation_id, wire_id in wire_ids.items()
            if wire_id == call.wire_id
            for entry in world.journal.read(world.run, operation_id)
            if entry.trigger in ("ask", "retry")
        )

    def of(instance: str) -> Callable[[Call], None]:
        def check(call: Call) -> None:
            key = (instance, call.op, call.wire_id)
            sent[key] += 1
            assert recorded(instance, call) >= sent[key], f"S6: {key} was sent unrecorded"

        return check

    return of


@given(
    actors=st.lists(plans, min_size=1, max_size=3),
    series=st.lists(deeds, min_size=1, max_size=4),
)
def test_any_schedule_of_faults(
    actors: list[ActorPlan], series: list[Deed], tmp_path_factory: Any
) -> None:
    """Whatever fails, hangs, dies, comes late or is cancelled, S1 to S6 and L1, L2 hold."""
    root: Path = tmp_path_factory.mktemp("schedule")

    async def main() -> None:
        world = World(len(actors), clock=LoopClock(), root=root, fenced=True, **SETTINGS)
        recorded = require_recorded(world)
        for instance, actor, plan in zip(world.ids, world.actors, actors, strict=True):
            arrange(actor, plan)
            actor.on_call = recorded(instance)
        for deed in series:
            event(f"{deed.kind}: {await live_through(world, deed)}")
        await asyncio.sleep(2 * HORIZON_S)
        await world.examine()
        unfinished = world.journal.operations(world.run, unfinished=True)
        assert unfinished == (), [(row.operation_id, row.state) for row in unfinished]
        for actor, plan in zip(world.actors, actors, strict=True):
            if plan.dies_at is None and not actor.scripts["resume"]:
                assert actor.holder is None

    simulate(main)


@given(
    actors=st.lists(plans, min_size=1, max_size=2),
    series=st.lists(deeds, min_size=1, max_size=3),
    writes=st.lists(st.sampled_from(["none", "none", "fail", "lose", "refuse"]), max_size=40),
    takes_s=st.none() | st.lists(st.sampled_from([0.001, 0.001, 0.001, 3.0, 30.0]), max_size=30),
    steps=st.lists(st.tuples(st.floats(0.0, 60.0), st.floats(-1e5, 1e5)), max_size=3),
)
def test_any_schedule_with_a_failing_journal(
    actors: list[ActorPlan],
    series: list[Deed],
    writes: list[Trouble],
    takes_s: list[float] | None,
    steps: list[tuple[float, float]],
    tmp_path_factory: Any,
) -> None:
    """Also with a journal that fails, is slow or loses answers, and a wall clock that steps."""
    root: Path = tmp_path_factory.mktemp("schedule")

    async def main() -> None:
        clock, journal = LoopClock(), TroubledJournal(blocks=takes_s is not None)
        journal.trouble = lambda number: writes[number - 1] if number <= len(writes) else "none"
        world = World(len(actors), clock=clock, root=root, fenced=True, journal=journal, **SETTINGS)
        slow = iter(takes_s or ())
        running_loop().job_s = lambda name: next(slow, 0.001) if "journal" in name else 0.02
        for actor, plan in zip(world.actors, actors, strict=True):
            arrange(actor, plan)
        for at_s, by_s in steps:
            running_loop().call_later(at_s, clock.step_wall, by_s)
        for deed in series:
            ended = await live_through(world, deed, journal_s=10.0 * len(takes_s or ()))
            event(f"{deed.kind}: {ended}")
        await asyncio.sleep(2 * HORIZON_S)
        await world.examine()
        unfinished = journal.operations(world.run, unfinished=True)
        assert all(row.state == "open" for row in unfinished)

    simulate(main)
