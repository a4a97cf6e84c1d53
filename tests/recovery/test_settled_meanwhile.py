"""A recovery or a move that comes to an operation which somebody else has just ended."""

from __future__ import annotations

import asyncio
from typing import Any

from gymckpt import GymCheckpointCoordinator
from gymckpt.core.entry import Entry
from gymckpt.journal import Damaged, MemoryJournal, OperationRow
from gymckpt.moves import By, mark_gone
from gymckpt.recovery import recover
from gymckpt.runtime.virtual import VirtualLoop, run_virtually
from gymckpt.testing.fakes import FakeInstance, FakeShardSet

RUN = "run"


class LateJournal(MemoryJournal):
    """Lists operations as they were a moment ago, when none of them had ended."""

    def unfinished(self, run: str) -> tuple[OperationRow | Damaged, ...]:
        """Return the rows of all operations."""
        return self.operations(run)


async def _ended(journal: MemoryJournal, shards: FakeShardSet) -> None:
    """Let a checkpoint end."""
    coordinator = GymCheckpointCoordinator(
        shards, control_timeout_s=5.0, prepare_timeout_s=5.0, journal=journal, run=RUN
    )
    async with coordinator.prepared("op"):
        pass


def test_a_recovery_does_not_wait_for_what_has_ended_meanwhile() -> None:
    """Where an operation ends between the listing and the claim, recovery says that it settled."""

    async def main(_loop: VirtualLoop) -> None:
        journal, shards = LateJournal(), FakeShardSet(FakeInstance())
        await _ended(journal, shards)
        async with asyncio.timeout(60.0):
            [found] = await recover(journal, shards.checkpoint_handles, run=RUN, force=True)
        assert (found.outcome, found.state) == ("settled", "discarded")

    run_virtually(main)


def test_a_move_does_not_wait_for_what_has_ended_meanwhile() -> None:
    """Where an operation ends between the check of a move and its claim, the move has no effect."""

    async def main(_loop: VirtualLoop) -> None:
        class Late(MemoryJournal):
            """Shows to the check of a move what it held before the end."""

            checked = False

            def read(self, run: str, operation_id: str, **span: Any) -> tuple[Entry, ...]:
                """Return all but the end, the first time."""
                entries = super().read(run, operation_id, **span)
                known, self.checked = self.checked, True
                return entries if known else entries[:3]

        journal, shards = Late(), FakeShardSet(FakeInstance())
        await _ended(journal, shards)
        [instance] = shards.checkpoint_handles
        async with asyncio.timeout(60.0):
            moved = await mark_gone(
                journal,
                RUN,
                "op",
                instance,
                by=By(operator="me@here", reason="it is gone"),
                handles=shards.checkpoint_handles,
                force=True,
            )
        assert (moved.state, moved.settled, moved.unconfirmed) == ("discarded", True, ())

    run_virtually(main)
