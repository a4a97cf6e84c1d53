"""The file effects of one operation: its manifest is written or withdrawn, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from gymckpt.core.effects import WithdrawManifest, WriteManifest
from gymckpt.core.entry import JsonFacts
from gymckpt.errors import tame
from gymckpt.runtime.asks import record_of
from gymckpt.runtime.wire import Again, Wire
from gymckpt.runtime.worker import run_detached

__all__ = ["FileJobs"]

DOUBLINGS_MAX = 16
"""How often the pause before the next withdrawal is doubled: three weeks for one of 30 s."""


class FileJobs:
    """Begin file effects, each on a thread of its own, and bring in how they end."""

    def __init__(self, wire: Wire, post: Callable[[str, JsonFacts], None]) -> None:
        """
        Begin without any.

        Args:
            wire: Plans the jobs.
            post: Takes the trigger that says how one ended, with its facts.
        """
        self.errors: dict[str, BaseException] = {}
        """`seal_failed` and `withdraw_failed` to what the latest such effect ended with."""
        self.withdrawing = 0
        """How many withdrawals have not ended; all of them where the file system hangs."""
        self._wire = wire
        self._post = post

    def begin(self, effect: WriteManifest | WithdrawManifest) -> None:
        """Perform a file effect; one that cannot even begin has failed."""
        if isinstance(effect, WriteManifest):
            self._run(self._wire.publish, "sealed", "seal_failed")
            return
        root = effect.root
        self.withdrawing += 1
        self._run(lambda: self._wire.withdraw(root), "withdrawn", "withdraw_failed")

    def pause_s(self, interval_s: float) -> float:
        """
        Return when to withdraw once more, so that a file system that hangs holds few threads.

        Args:
            interval_s: The pause, in seconds, while no more than one withdrawal hangs.
        """
        return interval_s * 2.0 ** min(max(0, self.withdrawing - 1), DOUBLINGS_MAX)

    def _run(
        self, plan: Callable[[], Callable[[], Mapping[str, Any] | Again]], done: str, failed: str
    ) -> None:
        def take(facts: Mapping[str, Any] | Again | None, error: BaseException | None) -> None:
            if isinstance(facts, Again):
                asyncio.get_running_loop().call_later(facts.pause_s, begin)
                return
            if done == "withdrawn":
                self.withdrawing -= 1
            if error is None:
                self._post(done, facts or {})
                return
            self.errors[failed] = tame(error)
            self._post(failed, {"failure": attrs.asdict(record_of(self.errors[failed]))})

        def begin() -> None:
            try:
                run_detached(job, f"gymckpt-{done}", take)
            except Exception as error:  # also where no thread can be started
                take(None, error)

        try:
            job = plan()
        except Exception as error:
            take(None, error)
        else:
            begin()
