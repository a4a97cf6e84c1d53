"""Processes on one virtual loop: stopped ones wait, woken ones go on, killed ones are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gymckpt.testing.processes import Process, ProcessLoop, process_loop


@pytest.fixture
def loop() -> Iterator[ProcessLoop]:
    """Give a loop."""
    with process_loop() as found:
        yield found


def pass_time(loop: ProcessLoop, seconds: float) -> None:
    loop.run_until_complete(loop.start_outside(asyncio.sleep(seconds)))


async def tick(loop: ProcessLoop, seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        seen.append(loop.time())


def begin(loop: ProcessLoop, name: str) -> tuple[Process, list[float]]:
    """Let a process tick in a task that a task of it has begun."""
    process, seen = Process(loop, name), list[float]()

    async def main() -> None:
        await asyncio.get_running_loop().create_task(tick(loop, seen))

    process.start(main())
    return process, seen


def test_a_stopped_process_goes_on_where_it_was(loop: ProcessLoop) -> None:
    """A timer that has run out meanwhile comes when it is woken, and others tick on."""
    one, ticks = begin(loop, "one")
    _, others = begin(loop, "other")
    pass_time(loop, 2.5)
    one.stop()
    pass_time(loop, 3.0)
    one.wake()
    pass_time(loop, 1.2)
    assert ticks == pytest.approx([1, 2, 5.5, 6.5], abs=1e-3)
    assert others == pytest.approx([1, 2, 3, 4, 5, 6], abs=1e-3)


def test_a_killed_process_does_nothing_any_more(loop: ProcessLoop) -> None:
    """Neither its timers nor what comes for it are seen by it."""
    one, ticks = begin(loop, "one")
    pass_time(loop, 1.5)
    one.kill()
    pass_time(loop, 5.0)
    assert ticks == pytest.approx([1], abs=1e-3)


def test_what_was_cancelled_meanwhile_does_not_come(loop: ProcessLoop) -> None:
    """A timer that ran out in a stopped process and is cancelled before it is woken is gone."""
    one, fired = Process(loop, "one"), list[int]()
    timers: list[asyncio.TimerHandle] = []

    async def main() -> None:
        timers.extend(loop.call_later(1.0, fired.append, number) for number in range(2))

    one.start(main())
    pass_time(loop, 0.5)
    one.stop()
    pass_time(loop, 1.0)
    timers[0].cancel()
    one.wake()
    pass_time(loop, 0.1)
    assert fired == [1]


def test_what_belongs_to_no_process_goes_on(loop: ProcessLoop) -> None:
    """A call that a process has sent outside is carried out though the process was killed."""
    one, done = Process(loop, "one"), list[str]()

    async def outside() -> None:
        await asyncio.sleep(1.0)
        done.append("outside")

    async def main() -> None:
        sent = loop.start_outside(outside())
        await sent
        done.append("main")

    one.start(main())
    pass_time(loop, 0.5)
    one.kill()
    pass_time(loop, 1.0)
    assert done == ["outside"]


def test_blocking_work_is_done_by_the_loop(loop: ProcessLoop) -> None:
    """A function for a thread runs in its process, and not at all where that was killed."""
    one, done = Process(loop, "one"), list[str]()

    async def main() -> None:
        await asyncio.to_thread(done.append, "in time")
        one.kill()
        await asyncio.to_thread(done.append, "too late")

    one.start(main())
    pass_time(loop, 1.0)
    assert done == ["in time"]
