"""
The faults that happen once, at a point of a verb: what each of them does to a world.

Those that last end by themselves after their time; all end when `heal` of the ending says so.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from typing import TYPE_CHECKING, Any

from gymckpt import moves
from gymckpt.errors import IllegalTransition, JournalError, TransitionRefused, text_of
from gymckpt.runtime.virtual import VirtualClock
from gymckpt.testing.simulation.controllers import Controller
from gymckpt.testing.simulation.loop import Process
from gymckpt.testing.simulation.plan import Fault
from gymckpt.testing.simulation.stage import EPOCH_TS, RUN

if TYPE_CHECKING:
    from gymckpt.testing.simulation.world import World

__all__ = ["Mishaps"]


class Mishaps:
    """
    The faults of one run.

    Attributes:
        happened: Those of the plan that have happened.
    """

    def __init__(self, world: World) -> None:
        """Begin without any."""
        self.happened: list[Fault] = []
        self._world = world
        self._context = contextvars.Context()
        self._others = 0

    def happen(self, fault: Fault, controller: Controller, what: str) -> None:
        """
        Let a fault happen.

        Args:
            fault: Which.
            controller: In whose verb.
            what: The point that was passed.
        """
        target = self._world.instances[fault.target].instance_id
        self._world.fired(fault.kind)
        self.happened.append(fault)
        self._world.timeline.note(
            "fault",
            f"{fault.kind} at {what} ({controller.process.name}, {target}, {fault.seconds}s)",
        )
        getattr(self, f"_{fault.kind.replace('-', '_')}")(fault, controller)

    def _later(self, seconds: float, act: Any, *args: Any) -> None:
        self._world.loop.call_later(seconds, act, *args, context=self._context)

    def _partition(self, fault: Fault, _controller: Controller) -> None:
        name = self._world.instances[fault.target].instance_id
        self._world.network.cut_off.add(name)
        self._later(fault.seconds, self._world.network.cut_off.discard, name)

    def _isolate(self, fault: Fault, controller: Controller) -> None:
        self._world.network.cut_off.add(controller.process.name)
        self._later(fault.seconds, self._world.network.cut_off.discard, controller.process.name)

    def _die(self, fault: Fault, _controller: Controller) -> None:
        instance = self._world.instances[fault.target]
        instance.process.kill()
        self._world.network.died(instance)

    def _restart(self, fault: Fault, _controller: Controller) -> None:
        self._world.renew(self._world.instances[fault.target])
        self._later(0.5, self._world.ledger.dispatch)

    def _hang(self, fault: Fault, _controller: Controller) -> None:
        process = self._world.instances[fault.target].process
        process.pause()
        self._later(fault.seconds, self._world.loop.go_on, process)

    def _block(self, fault: Fault, _controller: Controller) -> None:
        deployment = self._world.instances[fault.target].deployment
        deployment.block(("stuck",))
        self._later(fault.seconds, deployment.block, ())

    def _disk_fail(self, fault: Fault, _controller: Controller) -> None:
        disk = self._world.disk_of(self._world.instances[fault.target].process)
        disk.files, disk.skip = fault.kind.partition("-")[2], fault.choice % 12

    _disk_full = _disk_torn = _disk_fail

    def _disk_hang(self, fault: Fault, _controller: Controller) -> None:
        disk = self._world.disk_of(self._world.instances[fault.target].process)
        forever = fault.choice % 4 == 0
        disk.hangs_until_s = math.inf if forever else self._world.loop.time() + fault.seconds

    def _disk_slow(self, fault: Fault, _controller: Controller) -> None:
        disk = self._world.disk_of(self._world.instances[fault.target].process)
        disk.slow_s = (0.05, 0.4, 1.5)[fault.choice % 3]
        disk.slow_until_s = self._world.loop.time() + fault.seconds

    def _disk_apart(self, fault: Fault, _controller: Controller) -> None:
        disk = self._world.disk_of(self._world.instances[fault.target].process)
        disk.apart = True
        self._later(fault.seconds, disk.share)

    def _manifest_fail(self, fault: Fault, controller: Controller) -> None:
        controller.disk.files = fault.kind.partition("-")[2]
        controller.disk.skip = fault.choice % 6

    _manifest_full = _manifest_fail

    def _manifest_hang(self, fault: Fault, controller: Controller) -> None:
        forever = fault.choice % 4 == 0
        controller.disk.hangs_until_s = (
            math.inf if forever else self._world.loop.time() + fault.seconds
        )

    def _journal_fail(self, fault: Fault, controller: Controller) -> None:
        controller.disk.journal = fault.kind.partition("-")[2]
        controller.disk.journal_count = 1 + fault.choice % 4
        controller.disk.skip = fault.choice // 4

    _journal_lost = _journal_hang = _journal_fail

    def _clock_step(self, fault: Fault, controller: Controller) -> None:
        controller.clock.step_wall(fault.seconds if fault.choice % 2 else -fault.seconds)

    def _clock_skew(self, fault: Fault, _controller: Controller) -> None:
        clock = self._world.instances[fault.target].clock
        clock.step_wall(fault.seconds if fault.choice % 2 else -fault.seconds)

    def _crash(self, _fault: Fault, controller: Controller) -> None:
        controller.process.kill()
        self._world.alarm.set()

    def _pause(self, fault: Fault, controller: Controller) -> None:
        controller.process.pause()
        controller.paused_s += fault.seconds
        self._later(fault.seconds, self._world.loop.go_on, controller.process)
        if fault.choice % 3:
            self._world.alarm.set()

    def _operator(self, fault: Fault, _controller: Controller) -> None:
        self._others += 1
        process = Process(f"operator-{self._others}")
        process.start(self._operate(fault, process))

    def _cancel(self, _fault: Fault, controller: Controller) -> None:
        if controller.verb_task is not None:
            controller.cancelled = True
            controller.verb_task.cancel()

    def _raise(self, _fault: Fault, controller: Controller) -> None:
        controller.body_fails = True

    def _beside(self, _fault: Fault, controller: Controller) -> None:
        self._others += 1
        controller.process.start(controller.beside(f"beside-{self._others}"))

    async def _operate(self, fault: Fault, process: Process) -> None:
        """Make one move of an operator on some unfinished operation."""
        await asyncio.sleep(0.001 * (fault.choice % 50))
        journal = self._world.journal(process)
        rows = journal.operations(RUN, unfinished=True)
        if not rows:
            return
        row = rows[fault.choice % len(rows)]
        move = ("discard", "sweep", "mark_gone")[fault.choice % 3]
        handles = self._world.handles(process) if fault.choice % 5 else {}
        if not handles:
            self._world.watch.without_handles.add(process.name)
        settings: dict[str, Any] = {
            "by": moves.By(operator="op@sim", reason="the simulation says so"),
            "handles": handles,
            "force": fault.choice % 2 == 0,
            "clock": VirtualClock(self._world.loop, wall_ts=EPOCH_TS + self._world.loop.time()),
        }
        named = (self._world.instances[fault.target].instance_id,) if move == "mark_gone" else ()
        self._world.timeline.note(process.name, f"{move} {row.operation_id} {' '.join(named)}")
        try:
            moved = await getattr(moves, move)(journal, RUN, row.operation_id, *named, **settings)
        except (TransitionRefused, IllegalTransition, JournalError, TimeoutError) as error:
            name = type(error).__name__
            self._world.timeline.note(process.name, f"{move} failed: {name}: {text_of(error, 200)}")
        except ValueError as error:
            if "has no instance" not in text_of(error):
                raise
        else:
            self._world.timeline.note(process.name, f"{move} has left it {moved.state}")
