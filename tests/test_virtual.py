"""Time that takes no time: order, jumps, blocking jobs and clocks of the virtual loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.runtime.virtual import NothingLeft, VirtualClock, VirtualLoop, run_virtually
from gymckpt.runtime.worker import run_detached


@given(delays=st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=20))
def test_timers_run_in_order_each_at_its_time(delays: list[float]) -> None:
    """Whatever the delays, each timer runs once, when it is due, and none before an earlier one."""

    async def main(loop: VirtualLoop) -> list[tuple[float, float]]:
        seen: list[tuple[float, float]] = []
        for delay_s in delays:
            loop.call_later(delay_s, lambda due=delay_s: seen.append((due, loop.time())))
        await asyncio.sleep(max(delays) + 1.0)
        return seen

    seen = run_virtually(main)
    assert sorted(due for due, _ in seen) == sorted(delays)
    assert [at_s for _, at_s in seen] == sorted(at_s for _, at_s in seen)
    assert all(at_s == pytest.approx(due, abs=1e-5) for due, at_s in seen)


def test_a_day_takes_no_time() -> None:
    """Waiting is skipped, not shortened: the loop sees all of it, the process none."""
    began_s = time.monotonic()

    async def main(loop: VirtualLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86_400.0):
                await asyncio.Event().wait()
        return loop.time()

    assert run_virtually(main) == pytest.approx(86_400.0)
    assert time.monotonic() - began_s < 10.0


def test_waiting_for_nothing_is_an_error_not_a_hang() -> None:
    """Where neither work nor a timer is left, that is said at once."""

    async def main(_loop: VirtualLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(NothingLeft):
        run_virtually(main)


@pytest.mark.parametrize("takes_s", [0.0, 7.5])
@pytest.mark.parametrize("fails", [False, True])
def test_blocking_jobs_take_the_time_that_they_are_given(takes_s: float, fails: bool) -> None:
    """A job ends after its time, with its result or its error, and no thread is started."""

    def job() -> str:
        if fails:
            raise OSError("full")
        return "done"

    async def main(loop: VirtualLoop) -> tuple[Any, Any, float]:
        loop.job_s = lambda _name: takes_s
        ended: asyncio.Future[tuple[Any, Any, float]] = loop.create_future()
        run_detached(job, "job", lambda found, error: ended.set_result((found, error, loop.time())))
        return await ended

    found, error, at_s = run_virtually(main)
    assert (found, type(error)) == ((None, OSError) if fails else ("done", type(None)))
    assert at_s == pytest.approx(takes_s, abs=1e-5)


def test_a_job_that_hangs_is_waited_for_as_long_as_its_caller_likes() -> None:
    """A job without an end never comes back, and nobody is held up by it."""

    async def main(loop: VirtualLoop) -> int:
        loop.job_s = lambda _name: None
        done, waiting = await asyncio.wait({loop.start_job("hangs", list)}, timeout=30.0)
        return len(waiting) - len(done)

    assert run_virtually(main) == 1


def test_the_wall_clock_steps_and_the_other_does_not() -> None:
    """A step of the wall clock is seen by it alone."""

    async def main(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop, wall_ts=1_000.0)
        await asyncio.sleep(5.0)
        clock.step_wall(-3_600.0)
        await asyncio.sleep(5.0)
        assert clock.monotonic_s() == pytest.approx(10.0)
        assert clock.wall_ts() == pytest.approx(1_010.0 - 3_600.0)

    run_virtually(main)


def test_what_is_left_is_cancelled() -> None:
    """Tasks that are still waiting at the end do not outlive their loop."""
    ended: list[str] = []

    async def stay() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("cancelled")

    async def main(loop: VirtualLoop) -> None:
        kept.append(loop.create_task(stay()))
        await asyncio.sleep(1.0)

    kept: list[asyncio.Task[None]] = []
    run_virtually(main)
    assert ended == ["cancelled"]
    assert kept[0].cancelled()
