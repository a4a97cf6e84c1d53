"""Every call that is repeated while its first is under way answers like it, and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from tests.participant.support import (
    E0,
    E1,
    N0,
    CountingBody,
    CountingDeployment,
    Door,
    Make,
    ManualTime,
    Saved,
    commit,
    files_below,
    idle,
    prepared,
    restore,
    start,
    until,
)


class Tidy(CountingBody):
    """A body that cleans up when it is stopped, for as long as a test says."""

    cut_short = 0
    """How often its cleaning up was interrupted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tidied = asyncio.Event()
        self.cleaning = False

    async def turn(self) -> bool:
        try:
            return await super().turn()
        except asyncio.CancelledError:
            self.cleaning = True
            try:
                await self.tidied.wait()
            except asyncio.CancelledError:
                self.cut_short += 1
                raise
            raise


async def tidy(deployment: CountingDeployment, episode: EnvironmentEpisode) -> Tidy:
    """Run an episode that cleans up, and return its body inside its first turn."""
    body = Tidy(episode)
    deployment.bodies[episode] = body
    start(deployment.begin(episode, body))
    await until(lambda: body.entered == 1)
    return body


# --- retire ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", ["s1", "s2"])
async def test_a_second_retire_waits_for_the_same_clean_up(
    deployment: CountingDeployment, time: ManualTime, second: str
) -> None:
    """Under its id or another, it neither cuts the clean-up short nor answers before its end."""
    body = await tidy(deployment, E0)
    first = start(deployment.checkpoint_retire("s1", [E0], deadline_ts=time.now_ts() + 5))
    await idle()
    assert body.cleaning
    again = start(deployment.checkpoint_retire(second, [E0], deadline_ts=time.now_ts() + 9))
    await idle()
    assert not first.done()
    assert not again.done()
    body.tidied.set()
    assert await first is await again is None
    assert (body.cut_short, body.closed) == (0, 1)


async def test_a_retire_of_a_later_attempt_waits_as_well(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """One that names a later attempt, or that comes after the first gave up, joins the clean-up."""
    body = await tidy(deployment, E0)
    reply = start(deployment.attach("r0", 0))
    await idle()
    first = start(deployment.checkpoint_retire("s1", [E0], deadline_ts=time.now_ts() + 5))
    await idle()
    time.advance(5.0)
    with pytest.raises(GymCheckpointUnavailable, match="deadline_exceeded"):
        await first
    again = start(deployment.checkpoint_retire("s2", [N0], deadline_ts=time.now_ts() + 5))
    await idle()
    assert not again.done()
    body.tidied.set()
    await again
    assert body.cut_short == 0
    with pytest.raises(GymCheckpointUnavailable, match="was retired by 's1'"):
        await reply


async def test_an_attempt_that_takes_over_does_not_cut_a_clean_up_short(
    deployment: CountingDeployment, time: ManualTime
) -> None:
    """A later attempt begins while the retired one cleans up, and leaves it to it."""
    body = await tidy(deployment, E0)
    retire = start(deployment.checkpoint_retire("s1", [E0], deadline_ts=time.now_ts() + 5))
    await idle()
    start(deployment.run("r0", 1))
    await until(lambda: deployment.entered(N0) == 1)
    assert not retire.done()
    body.tidied.set()
    await retire
    assert body.cut_short == 0


async def test_closing_waits_for_a_clean_up_and_then_for_no_longer(
    make: Make, time: ManualTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A close leaves a clean-up its time, ends one that hangs, and is repeated to the same end."""
    deployment = make()
    body, hanging = await tidy(deployment, E0), await tidy(deployment, E1)
    start(deployment.checkpoint_retire("s1", [E0, E1], deadline_ts=time.now_ts() + 5))
    await idle()
    monkeypatch.setattr("gymckpt.participant.hosting.CLOSE_S", 0.05)
    both = [start(deployment.close()) for _ in range(2)]
    await idle()
    assert not any(one.done() for one in both)
    body.tidied.set()
    await asyncio.gather(*both)
    assert (body.cut_short, hanging.cut_short) == (0, 1)
    assert not list(deployment._table)


# --- prepare --------------------------------------------------------------------------------------


async def test_two_prepares_fail_alike(deployment: CountingDeployment, time: ManualTime) -> None:
    """Where parking raises, both are told the error; a third begins anew."""
    start(deployment.run("r0"))
    await until(lambda: deployment.entered(E0) == 1)
    both = [
        start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + by_s))
        for by_s in (5, 50)
    ]
    await idle()
    deployment.parking_error = LookupError("the server cannot say who blocks it")
    deployment.changed()
    for preparing in both:
        with pytest.raises(LookupError, match="cannot say who blocks it"):
            await preparing
    deployment.parking_error = None
    third = start(deployment.checkpoint_prepare("c1", deadline_ts=time.now_ts() + 5))
    await idle()
    assert not third.done()
    await deployment.checkpoint_resume("c1", deadline_ts=0)
    assert await third == type(await third)(False, {})


@pytest.mark.parametrize("call", ["commit", "restore"])
async def test_work_that_fails_fails_alike(
    deployment: CountingDeployment, time: ManualTime, saved: Saved, tmp_path: Path, call: str
) -> None:
    """Where a write or a restore raises, each of two equal calls is told the same error."""
    door = Door()

    def fail() -> None:
        door()
        raise OSError(5, "input/output error")

    deployment.before_record = deployment.before_rebuild = fail
    if call == "commit":
        await prepared(deployment, time)
        deployment.before_record = fail
    both = [
        start(
            commit(deployment, time, tmp_path / "new", E0)
            if call == "commit"
            else restore(deployment, time, saved)
        )
        for _ in range(2)
    ]
    await until(door.reached.is_set)
    door.open.set()
    for one in both:
        with pytest.raises(OSError, match="input/output error"):
            await one


# --- every call -----------------------------------------------------------------------------------


@attrs.define
class Stage:
    """One deployment, and what a call under way waits for."""

    deployment: CountingDeployment
    time: ManualTime
    root: Path
    go_on: Callable[[], None] = lambda: None
    """Lets the call under way come to its end."""

    def deadline_ts(self, by_s: float = 50.0) -> float:
        return self.time.now_ts() + by_s


async def _prepare(stage: Stage) -> Callable[[], Awaitable[Any]]:
    deployment = stage.deployment
    start(deployment.run("r0", turns_max=9))
    await until(lambda: deployment.entered(E0) == 1)
    stage.go_on = deployment.bodies[E0].allow
    return lambda: deployment.checkpoint_prepare("c1", deadline_ts=stage.deadline_ts())


async def _renew(stage: Stage) -> Callable[[], Awaitable[Any]]:
    await prepared(stage.deployment, stage.time)
    return lambda: stage.deployment.checkpoint_renew("c1", deadline_ts=stage.deadline_ts())


async def _commit(stage: Stage) -> Callable[[], Awaitable[Any]]:
    await prepared(stage.deployment, stage.time)
    stage.deployment.before_record = door = Door()
    stage.go_on = door.open.set
    return lambda: commit(stage.deployment, stage.time, stage.root, E0, in_s=50.0)


async def _resume(stage: Stage) -> Callable[[], Awaitable[Any]]:
    await prepared(stage.deployment, stage.time)
    stage.deployment.before_record = door = Door()
    stage.go_on = door.open.set
    start(commit(stage.deployment, stage.time, stage.root, E0, in_s=50.0))
    await until(door.reached.is_set)
    return lambda: stage.deployment.checkpoint_resume("c1", deadline_ts=0)


async def _restore(stage: Stage) -> Callable[[], Awaitable[Any]]:
    stage.deployment.before_rebuild = door = Door()
    stage.go_on = door.open.set
    saved = Saved(stage.root.parent / "saved")
    return lambda: restore(stage.deployment, stage.time, saved, deadline_ts=stage.deadline_ts())


async def _retire(stage: Stage) -> Callable[[], Awaitable[Any]]:
    body = await tidy(stage.deployment, E0)
    stage.go_on = body.tidied.set
    return lambda: stage.deployment.checkpoint_retire("s1", [E0], deadline_ts=stage.deadline_ts())


async def _forget(stage: Stage) -> Callable[[], Awaitable[Any]]:
    await stage.deployment.checkpoint_retire("s1", [E0], deadline_ts=stage.deadline_ts())
    return lambda: stage.deployment.checkpoint_forget("s2", ["r0"], deadline_ts=stage.deadline_ts())


CALLS = {
    "prepare": _prepare,
    "renew": _renew,
    "commit": _commit,
    "resume": _resume,
    "restore": _restore,
    "retire": _retire,
    "forget": _forget,
}
AT_ONCE = {"renew", "forget"}
"""Calls that wait for nothing, so that none is ever under way."""


def remembered(stage: Stage) -> Any:
    """All that a call may have changed: what servers remember, what runs, how often, the files."""
    deployment = stage.deployment
    bodies = {one: (body.entered, body.closed) for one, body in deployment.bodies.items()}
    cut_short = sum(getattr(body, "cut_short", 0) for body in deployment.bodies.values())
    states = [
        attrs.evolve(state, answers=sorted(state.answers), requests=sorted(state.requests))
        for state in (server.control.state for server in deployment._servers.all)
    ]
    live = sorted(live.episode for live in deployment._table)
    return states, bodies, cut_short, live, deployment.exports, sorted(files_below(stage.root))


async def played(call: str, again_after: list[int], given_up: set[int], base: Path) -> Any:
    """Make a call, repeat it while it is under way, and return what is remembered and answered."""
    time = ManualTime()
    if call == "restore":
        source = CountingDeployment(time)
        async with source:
            await prepared(source, time, "r0", "r1")
            await commit(source, time, base / "saved", E0, E1)
    deployment = CountingDeployment(time)
    async with deployment:
        stage = Stage(deployment, time, base / "root")
        make = await CALLS[call](stage)
        made = [start(make())]
        for steps in again_after:
            for _ in range(steps):
                await asyncio.sleep(0)
            made.append(start(make()))
        await idle()
        waiting = [one for one in made if not one.done()]
        assert waiting == ([] if call in AT_ONCE else made), "one was answered before the others"
        for number in sorted(given_up)[: len(again_after)]:  # who waits to the end is one at least
            made[number % len(made)].cancel()
        await idle()
        stage.go_on()
        answers = await asyncio.gather(*made, return_exceptions=True)
        await deployment._workshop.quiet(10)
        await idle()
        kept = [one for one in answers if not isinstance(one, asyncio.CancelledError)]
        return remembered(stage), kept


@pytest.mark.parametrize("call", sorted(CALLS))
@settings(max_examples=8)
@given(
    again_after=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    given_up=st.sets(st.integers(0, 4), max_size=2),
)
def test_a_call_that_is_repeated_is_one_call(
    tmp_path_factory: pytest.TempPathFactory,
    call: str,
    again_after: list[int],
    given_up: set[int],
) -> None:
    """However often and whenever it comes again, and whoever gives up, it is as if it came once."""
    bases = [tmp_path_factory.mktemp(call) for _ in range(2)]
    once, [answer] = asyncio.run(played(call, [], set(), bases[0]))
    repeated, answers = asyncio.run(played(call, again_after, given_up, bases[1]))
    assert repeated == once
    assert all(one == answer for one in answers)
    assert not isinstance(answer, Exception)


def test_every_call_of_the_protocol_is_tried() -> None:
    """No call that changes a deployment is left out of the table."""
    offered = {
        name.removeprefix("checkpoint_")
        for name in dir(CountingDeployment)
        if name.startswith("checkpoint_")
    }
    assert offered == {*CALLS, "status", "restart_only_servers"}
