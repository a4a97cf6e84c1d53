"""What the shipped strategies make is legal, and the odd cases are among it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from gymckpt.episodes import EnvironmentEpisode, require_instance_id, require_operation_id
from gymckpt.manifest import (
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from gymckpt.replies import GymCheckpointCommitSummary, require_commit_summary
from gymckpt.testing import strategies


@given(strategies.operation_ids(), strategies.instance_ids(), strategies.episodes())
def test_ids_are_legal(operation_id: str, instance_id: str, episode: EnvironmentEpisode) -> None:
    """Every id is taken by the rules, and every episode is named by its capture key."""
    assert require_operation_id(operation_id, "id") == operation_id
    assert require_instance_id(instance_id) == instance_id
    assert EnvironmentEpisode.from_capture_key(episode.capture_key) == episode


@given(st.data())
def test_a_commit_exports_only_what_was_offered(data: st.DataObject) -> None:
    """An answer that was made for an offer is accepted for it."""
    offered = tuple(data.draw(strategies.inventories()))
    summary = data.draw(strategies.commit_summaries(offered))
    assert require_commit_summary(summary, offered) is summary


@settings(max_examples=20, deadline=None)
@given(manifest=strategies.manifests())
def test_a_manifest_can_be_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, manifest: GymCheckpointManifest
) -> None:
    """Every manifest comes back from the disk as it was."""
    root: Path = tmp_path_factory.mktemp("manifest")
    write_gym_checkpoint_manifest(root, manifest)
    assert load_gym_checkpoint_manifest(root) == manifest


FIRST = settings(phases=[Phase.generate], database=None)
"""The first example that is found will do, however large."""


def test_odd_cases_are_made() -> None:
    """Not parked and no blocker, an export that is left out, a continued and a restarted one."""

    def left_out(summary: GymCheckpointCommitSummary) -> bool:
        return set(summary.staging_keys_by_episode) > set(summary.exported_episodes)

    assert not find(
        strategies.prepare_summaries(),
        lambda one: not one.prepared and not one.blockers,
        settings=FIRST,
    ).prepared
    assert find(strategies.commit_summaries(), left_out, settings=FIRST).participants
    both = find(
        strategies.manifests(),
        lambda one: any(one.instances.values()) and any(one.restarts.values()),
        settings=FIRST,
    )
    assert both.checkpoint_id
