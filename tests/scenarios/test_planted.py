"""Each fault that is planted in the core or the control plane changes what some scenario says."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.core.planted import PLANTS, planted
from tests.scenarios.scripts import parsed, played, written

HERE = Path(__file__).parent

CAUGHT_BY = {
    "edge_missing": "checkpoint_lease_lost_in_the_body",
    "wrong_dest": "checkpoint_withdrawal_fails",
    "resume_skipped": "checkpoint_cancelled",
    "retried_too_often": "checkpoint_body_raises",
    "late_answer_counts": "late_answer_moves_nothing",
    "deadline_ignored": "checkpoint_prepare_hangs",
    "failures_not_gathered": "checkpoint_not_ready",
    "epoch_not_raised": "another_controller_takes_over",
    "discard_not_recorded": "checkpoint_body_raises",
    "manifest_left": "checkpoint_commit_fails",
    "lease_never_lost": "restore_lease_lost",
    "retire_skipped": "restore_body_raises",
    "sweep_forgotten": "resume_goes_on_in_the_background",
    "fence_forgotten": "late_prepare_after_resume",
    "lease_never_expires": "participant_reopens_by_itself",
}
"""Fault to the scenario that shows it most plainly."""


@pytest.mark.parametrize("fault", PLANTS)
def test_planted_fault_is_caught(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, fault: str
) -> None:
    """A scenario tells what a planted fault does, in lines that its file does not have."""
    caplog.set_level(logging.CRITICAL + 1, "gymckpt")
    text = (HERE / f"{CAUGHT_BY[fault]}.txt").read_text()
    with planted(fault):
        try:
            found = written(played(parsed(text), tmp_path, look=lambda _: None))
        except AssertionError:  # what it waits for never happens
            return
    assert found != text
