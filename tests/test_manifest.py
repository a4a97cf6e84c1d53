"""What the outer manifest may say, and its forms."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import manifest_schema
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.manifest import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GYM_CHECKPOINT_SCHEMA_VERSION,
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from tests.test_episodes import INSTANCES, ROLLOUT_IDS

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
ATTEMPTS = st.integers(0, 10**9 - 1)


@st.composite
def manifests(draw: st.DrawFn) -> GymCheckpointManifest:
    """Any manifest: each rollout goes to one instance, continued or restarted."""
    instances = draw(st.lists(INSTANCES, unique=True, min_size=1, max_size=4))
    episodes: dict[str, dict[str, list[EnvironmentEpisode]]] = {
        field: {instance: [] for instance in instances} for field in ("instances", "restarts")
    }
    for rollout in draw(st.lists(ROLLOUT_IDS, unique=True, max_size=8)):
        field = draw(st.sampled_from(sorted(episodes)))
        instance = draw(st.sampled_from(instances))
        episodes[field][instance].append(EnvironmentEpisode(rollout, draw(ATTEMPTS)))

    def names(min_size: int) -> dict[str, list[str]]:
        lists = st.lists(NAMES, unique=True, min_size=min_size, max_size=3)
        return {instance: draw(lists) for instance in instances}

    return GymCheckpointManifest(
        GYM_CHECKPOINT_SCHEMA_VERSION,
        draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)),
        episodes["instances"],
        names(0),
        episodes["restarts"],
        names(1),
    )


def a_manifest(checkpoint_id: str = "step-1", **changes: Any) -> GymCheckpointManifest:
    fields: dict[str, Any] = {
        "schema_version": 2,
        "checkpoint_id": checkpoint_id,
        "instances": {
            "a/replica-0": (EnvironmentEpisode("r0", 0), EnvironmentEpisode("r1", 2)),
            "a/replica-1": (),
        },
        "staging_keys": {"a/replica-0": ("r0/c0", "__cut__/ü"), "a/replica-1": ()},
        "restarts": {"a/replica-1": (EnvironmentEpisode("r9", 1),), "a/replica-0": ()},
        "participants": {"a/replica-0": ("model", "agent"), "a/replica-1": ("agent",)},
    }
    return GymCheckpointManifest(**fields | changes)


def path_in(root: Path) -> Path:
    return root / GYM_CHECKPOINT_MANIFEST_FILENAME


def names_in(root: Path) -> list[str]:
    return sorted(os.listdir(root))


def digest_of(root: Path) -> str:
    return hashlib.sha256(path_in(root).read_bytes()).hexdigest()


@contextlib.contextmanager
def file_with(data: bytes) -> Iterator[Path]:
    """Yield a directory in which a manifest file holds just this."""
    with TemporaryDirectory() as name:
        path_in(Path(name)).write_bytes(data)
        yield Path(name)


# --- what a manifest says ------------------------------------------------------------------------


def test_the_json_form_is_the_documented_one(tmp_path: Path) -> None:
    """Six fields in order, instances sorted, episodes with two fields, indent 2, a last newline."""
    write_gym_checkpoint_manifest(tmp_path, a_manifest())

    text = path_in(tmp_path).read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"
    assert list(json.loads(text)) == [
        "schema_version",
        "checkpoint_id",
        "instances",
        "staging_keys",
        "restarts",
        "participants",
    ]
    assert json.loads(text)["instances"] == {
        "a/replica-0": [{"rollout_id": "r0", "attempt": 0}, {"rollout_id": "r1", "attempt": 2}],
        "a/replica-1": [],
    }
    assert list(json.loads(text)["restarts"]) == ["a/replica-0", "a/replica-1"]


@given(manifests())
def test_any_manifest_survives_every_form(manifest: GymCheckpointManifest) -> None:
    """Dict, file and pickle lead back to an equal manifest with every list in its order."""
    with file_with(manifest.encode()) as root:
        loaded = load_gym_checkpoint_manifest(root, sha256=digest_of(root))

    assert loaded == manifest
    assert loaded.encode() == manifest.encode()
    assert GymCheckpointManifest.from_mapping(manifest.to_dict()) == manifest
    assert (
        GymCheckpointManifest.from_mapping(json.loads(json.dumps(manifest.to_dict()))) == manifest
    )
    assert pickle.loads(pickle.dumps(manifest)) == manifest
    assert manifest.instance_ids == tuple(sorted(manifest.instances))


def test_a_manifest_does_not_follow_its_callers_collections() -> None:
    """B28: changing what was passed, at any depth, changes nothing in the manifest."""
    given_: dict[str, dict[str, list[Any]]] = {
        "instances": {"a/replica-0": [EnvironmentEpisode("r0", 0)]},
        "staging_keys": {"a/replica-0": ["r0/c0"]},
        "restarts": {"a/replica-0": []},
        "participants": {"a/replica-0": ["agent"]},
    }
    manifest = GymCheckpointManifest(schema_version=2, checkpoint_id="step-1", **given_)
    before = manifest.encode()

    for rows in given_.values():
        rows["a/replica-0"].append("later")
        rows["b/replica-0"] = []

    assert manifest.encode() == before


def test_a_restore_continues_the_next_attempts() -> None:
    """The replacements are one attempt higher, by instance, and restarts are not among them."""
    assert a_manifest().next_attempts() == {
        "a/replica-0": (EnvironmentEpisode("r0", 1), EnvironmentEpisode("r1", 3)),
        "a/replica-1": (),
    }


E0, E0_AGAIN = EnvironmentEpisode("r0", 0), EnvironmentEpisode("r0", 1)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        *(
            ({"schema_version": version}, "schema_version must be the int 2")
            for version in (1, 3, 2.0, "2", True, None)
        ),
        *(({"checkpoint_id": it}, "checkpoint_id") for it in ("", "a/b", "x" * 129, "x\n")),
        ({field: {} for field in manifest_schema._MAPS}, "at least one instance"),
        ({"restarts": {"a/replica-0": ()}}, r"restarts .* lacks 1 \(a/replica-1\)"),
        (
            {"participants": {f"a/replica-{it}": ("x",) for it in range(9)}},
            r"participants .* has 7 more \(.* and 2 more\)",
        ),
        ({"staging_keys": {}}, "staging_keys must name the same instances"),
        *(
            (
                {
                    "instances": {instance: ()},
                    "staging_keys": {instance: ()},
                    "restarts": {instance: ()},
                    "participants": {instance: ("agent",)},
                },
                "instance id|shard name",
            )
            for instance in (
                "",
                "a",
                "../replica-0",
                "a/replica--1",
                "a/b/replica-0",
                "a/replica-0\n",
            )
        ),
        ({"instances": {"a/replica-0": (E0, E0), "a/replica-1": ()}}, "r0 in .*a/replica-0"),
        ({"instances": {"a/replica-0": (E0, E0_AGAIN), "a/replica-1": ()}}, "r0 in"),
        (
            {"instances": {"a/replica-0": (E0,), "a/replica-1": (E0_AGAIN,)}},
            r'r0 in instances\["a/replica-0"\] and instances\["a/replica-1"\]',
        ),
        (
            {"restarts": {"a/replica-0": (), "a/replica-1": (E0_AGAIN,)}},
            r'r0 in instances\["a/replica-0"\] and restarts\["a/replica-1"\]',
        ),
        ({"restarts": {"a/replica-0": (), "a/replica-1": (E0, E0)}}, "r0 in"),
        (
            {"staging_keys": {"a/replica-0": ("x", ""), "a/replica-1": ()}},
            r'staging_keys\["a/replica-0"\]\[1\] must not be empty',
        ),
        (
            {"staging_keys": {"a/replica-0": ("x", "x"), "a/replica-1": ()}},
            r'staging_keys\["a/replica-0"\] must not name anything twice: x',
        ),
        ({"staging_keys": {"a/replica-0": ("\udc00",), "a/replica-1": ()}}, "half a character"),
        (
            {"participants": {"a/replica-0": (), "a/replica-1": ("agent",)}},
            r'participants\["a/replica-0"\] must not be empty',
        ),
        (
            {"participants": {"a/replica-0": ("x", "x"), "a/replica-1": ("agent",)}},
            r'participants\["a/replica-0"\] must not name anything twice: x',
        ),
    ],
)
def test_a_manifest_of_wrong_meaning_is_refused(changes: dict[str, Any], fault: str) -> None:
    """B44, B46: a manifest that contradicts itself is a `ValueError` with the place."""
    with pytest.raises(ValueError, match=fault) as caught:
        a_manifest(**changes)

    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint_id": 1},
        {"instances": []},
        {"instances": {"a/replica-0": "r0", "a/replica-1": ()}},
        {"instances": {"a/replica-0": ("r0",), "a/replica-1": ()}},
        {"instances": {0: (), "a/replica-1": ()}},
        {"restarts": None},
        {"staging_keys": {"a/replica-0": "key", "a/replica-1": ()}},
        {"participants": {"a/replica-0": ({"server_name": "x"},), "a/replica-1": ("agent",)}},
    ],
)
def test_a_manifest_of_wrong_types_is_refused(changes: dict[str, Any]) -> None:
    """What is made with another type is a `TypeError`."""
    with pytest.raises(TypeError):
        a_manifest(**changes)


def test_an_error_about_a_huge_manifest_is_short() -> None:
    """B17: a hundred thousand rollouts that occur twice make a short message with a total."""
    episodes = [EnvironmentEpisode(f"r{index}", 0) for index in range(100_000)]

    with pytest.raises(ValueError, match="and 99995 more") as caught:
        a_manifest(
            instances={"a/replica-0": episodes, "a/replica-1": ()},
            restarts={"a/replica-0": (), "a/replica-1": episodes},
        )

    assert len(str(caught.value)) < 2_000


def test_a_manifest_is_a_value() -> None:
    """A manifest's fields cannot be set again."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        a_manifest().checkpoint_id = "step-2"  # type: ignore[misc]
