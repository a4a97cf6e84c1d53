"""
How each golden history was made: which scenario was played how far, and which operation it is of.

A recipe is used once, by the release that adds the history. What it would give today does not
matter any more afterwards: the file that it gave is kept as it was written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from gymckpt.journal.memory import MemoryJournal
from gymckpt.journal.portable import export_operation
from tests.scenarios.scripts import parsed, played
from tests.scenarios.stage import RUN, Stage

__all__ = ["RECIPES", "Recipe", "made"]

SCENARIOS = Path(__file__).parents[1] / "scenarios"

BASE = Path("/var/tmp/gymckpt-golden")
"""Where the snapshots are that histories tell of; the same for all, so that it says nothing."""


@attrs.frozen
class Recipe:
    """One history."""

    scenario: str
    operation_id: str
    blocks: int | None = None
    """How many blocks of the scenario are played; all where None."""
    cut: float = 1.0
    """How much of the file is kept, as where writing it broke off."""


RECIPES: dict[str, Recipe] = {
    "checkpoint-well": Recipe("checkpoint_goes_well", "ckpt-1"),
    "checkpoint-eight-instances": Recipe("eight_instances", "ckpt-1"),
    "checkpoint-commit-retried": Recipe("checkpoint_commit_retried", "ckpt-1"),
    "checkpoint-commit-under-way": Recipe("checkpoint_goes_well", "ckpt-1", blocks=2),
    "checkpoint-parked": Recipe("checkpoint_goes_well", "ckpt-1", blocks=1),
    "checkpoint-cut-off": Recipe("eight_instances", "ckpt-1", cut=0.6),
    "checkpoint-clock-stepped": Recipe("clock_steps", "ckpt-1"),
    "checkpoint-not-ready": Recipe("checkpoint_not_ready", "ckpt-1"),
    "checkpoint-prepare-hung": Recipe("checkpoint_prepare_hangs", "ckpt-1"),
    "checkpoint-prepare-retried-in-vain": Recipe("checkpoint_prepare_retried", "ckpt-2"),
    "checkpoint-actor-died": Recipe("checkpoint_instance_dies", "ckpt-1"),
    "checkpoint-renewal-failed": Recipe("checkpoint_renewal_fails_before_the_body", "ckpt-1"),
    "checkpoint-lease-lost": Recipe("checkpoint_lease_lost_in_the_body", "ckpt-1"),
    "checkpoint-lease-presumed-lost": Recipe("checkpoint_lease_presumed_lost", "ckpt-1"),
    "checkpoint-lease-lost-writing": Recipe("checkpoint_lease_lost_while_writing", "ckpt-1"),
    "checkpoint-lease-lost-sealing": Recipe("checkpoint_lease_lost_while_sealing", "ckpt-1"),
    "checkpoint-lease-lost-late": Recipe("checkpoint_lease_lost_after_the_commit", "ckpt-1"),
    "checkpoint-commit-failed": Recipe("checkpoint_commit_fails", "ckpt-1"),
    "checkpoint-disk-full": Recipe("checkpoint_manifest_cannot_be_written", "ckpt-1"),
    "checkpoint-write-hung": Recipe("checkpoint_write_hangs", "ckpt-1"),
    "checkpoint-withdrawn-late": Recipe("checkpoint_withdrawal_fails", "ckpt-1"),
    "checkpoint-withdrawal-pending": Recipe("checkpoint_withdrawal_fails", "ckpt-1", blocks=2),
    "checkpoint-body-raised": Recipe("checkpoint_body_raises", "ckpt-1"),
    "checkpoint-nothing-committed": Recipe("checkpoint_nothing_committed", "ckpt-1"),
    "checkpoint-cancelled": Recipe("checkpoint_cancelled", "in-committing"),
    "checkpoint-cancelled-early": Recipe("checkpoint_cancelled_before_it_began", "ckpt-1"),
    "checkpoint-stale-answer": Recipe("late_answer_moves_nothing", "ckpt-1"),
    "checkpoint-resume-confirmed": Recipe("resume_answered_while_recording", "ckpt-1"),
    "checkpoint-resume-died": Recipe("resume_answered_while_recording", "ckpt-2"),
    "checkpoint-resume-lapsed": Recipe("resume_never_confirmed", "ckpt-1"),
    "checkpoint-recorded-afterwards": Recipe("journal_fails_in_the_middle", "ckpt-1"),
    "checkpoint-taken-over": Recipe("another_controller_takes_over", "ckpt-1"),
    "checkpoint-recovered": Recipe("recovery_of_checkpoints", "in-sealing"),
    "checkpoint-recovered-standing": Recipe("recovery_of_checkpoints", "in-committed"),
    "checkpoint-recovered-twice": Recipe("recovery_crashes_too", "ckpt-1"),
    "checkpoint-operator-discarded": Recipe("operator_discards_checkpoints", "in-committed"),
    "checkpoint-marked-gone": Recipe("operator_marks_an_instance_gone", "ckpt-1"),
    "restore-well": Recipe("restore_goes_well", "re-1"),
    "restore-failed": Recipe("restore_fails_on_one_instance", "re-1"),
    "restore-body-raised": Recipe("restore_body_raises", "re-1"),
    "restore-lease-lost": Recipe("restore_lease_lost", "re-1"),
    "restore-cancelled": Recipe("restore_cancelled", "in-restored"),
    "restore-retire-unconfirmed": Recipe("restore_retire_unconfirmed", "re-1"),
    "restore-kept-no-longer": Recipe("restore_instance_restarts_empty", "re-1"),
    "restore-superseded": Recipe("restore_superseded", "re-1"),
    "restore-superseded-cut-off": Recipe("restore_superseded", "cut-restored"),
    "restore-recovered": Recipe("recovery_of_restores", "in-retiring"),
    "restore-operator-discarded": Recipe("operator_discards_restores", "in-restored"),
    "retire-well": Recipe("sweeps_go_well", "s-1"),
    "forget-well": Recipe("sweeps_go_well", "s-2"),
    "resume-well": Recipe("sweeps_go_well", "ckpt-9"),
    "resume-failed": Recipe("sweep_fails", "s-2"),
    "retire-cancelled": Recipe("sweep_cancelled", "in-calling"),
    "retire-insisted": Recipe("retire_unwanted", "retire-new-1"),
    "retire-insisted-no-longer": Recipe("retire_unwanted", "retire-new-4"),
    "retire-taken-over": Recipe("sweep_taken_over", "in-calling"),
}
"""Name of the file, without its ending, to how it is made."""


def made(recipe: Recipe) -> bytes:
    """Play a recipe and return the export that it gives."""
    scenario = parsed((SCENARIOS / f"{recipe.scenario}.txt").read_text())
    scenario = attrs.evolve(scenario, blocks=scenario.blocks[: recipe.blocks])
    exported: list[bytes] = []

    def look(stage: Stage) -> None:
        journal = MemoryJournal(stage.store)
        exported.extend(export_operation(journal, RUN, recipe.operation_id))

    with _base() as base:
        played(scenario, base, look)
    whole = b"".join(exported)
    return whole[: int(len(whole) * recipe.cut)]


@contextmanager
def _base() -> Iterator[Path]:
    BASE.mkdir()
    try:
        yield BASE
    finally:
        shutil.rmtree(BASE)
