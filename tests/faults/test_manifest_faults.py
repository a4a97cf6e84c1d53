"""Manifests that are torn, edited, raced for or half written: refused before any call."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.coordinator import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    load_gym_checkpoint_manifest,
)
from tests.faults.conftest import NewWorld
from tests.faults.virtual import LoopClock, simulate
from tests.faults.world import World, episode, new_id

MANIFEST = GYM_CHECKPOINT_MANIFEST_FILENAME


async def restore_from(world: World, root: Path) -> None:
    """Restore whatever a directory holds, as a trainer does."""
    manifest = load_gym_checkpoint_manifest(root)
    async with world.coordinator.restored(new_id(), root, manifest):
        pass


async def saved(world: World, root: Path) -> bytes:
    """Save a checkpoint and return the bytes of its manifest."""
    async with world.committed(new_id(), root):
        pass
    for actor in world.actors:
        actor.calls.clear()
    return (root / MANIFEST).read_bytes()


def test_b32_truncated_at_every_byte(tmp_path: Path) -> None:
    """B32: cut off after any byte it is a ValueError and no actor is called; whole it loads."""

    async def main() -> None:
        world = World(2, clock=LoopClock(), root=tmp_path)
        whole = await saved(world, tmp_path)
        for size in range(len(whole)):
            (tmp_path / MANIFEST).write_bytes(whole[:size])
            if whole[:size].rstrip() == whole.rstrip():
                continue  # only the line break at the end is missing
            with pytest.raises(ValueError, match=MANIFEST):
                await restore_from(world, tmp_path)
        assert world.story() == []
        (tmp_path / MANIFEST).write_bytes(whole)
        await restore_from(world, tmp_path)
        await world.examine()

    simulate(main)


def test_b32_any_byte_changed(tmp_path: Path) -> None:
    """B32: with any byte changed it is a ValueError, or names something else that is as valid."""

    async def main() -> None:
        world = World(1, clock=LoopClock(), root=tmp_path)
        whole = await saved(world, tmp_path)
        original = load_gym_checkpoint_manifest(tmp_path)
        refused = 0
        for offset in range(len(whole)):
            for flip in (0x01, 0x80):
                changed = bytearray(whole)
                changed[offset] ^= flip
                (tmp_path / MANIFEST).write_bytes(changed)
                try:
                    loaded = load_gym_checkpoint_manifest(tmp_path)
                except ValueError:
                    refused += 1
                else:
                    assert loaded != original or whole[offset : offset + 1].isspace()
        assert refused > len(whole)
        (tmp_path / MANIFEST).unlink()

    simulate(main)


WHOLE: dict[str, Any] = {
    "schema_version": 2,
    "checkpoint_id": "source",
    "instances": {"tools/replica-0": [{"rollout_id": "r0", "attempt": 0}], "tools/replica-1": []},
    "staging_keys": {"tools/replica-0": ["r0/c0"], "tools/replica-1": []},
    "restarts": {"tools/replica-0": [], "tools/replica-1": []},
    "participants": {"tools/replica-0": ["agent"], "tools/replica-1": ["agent", "env"]},
}


def edited(**fields: Any) -> dict[str, Any]:
    """Return the whole manifest with fields replaced, or removed where they are None."""
    form = copy.deepcopy(WHOLE) | fields
    return {key: value for key, value in form.items() if value is not None}


ONE, TWO = "tools/replica-0", "tools/replica-1"
EDITS: dict[str, Any] = {
    "no participants": edited(participants=None),
    "no restarts": edited(restarts=None),
    "no staging keys": edited(staging_keys=None),
    "no instances": edited(instances=None),
    "no id": edited(checkpoint_id=None),
    "no version": edited(schema_version=None),
    "participants {}": edited(participants={}),
    "participants []": edited(participants=[]),
    "participants twice": edited(participants={ONE: ["a", "a"], TWO: ["a"]}),
    "participants of another": edited(participants={"other/replica-0": [], ONE: ["a"]}),
    "participants only of another": edited(participants={"other": []}),
    "participants of one": edited(participants={ONE: ["a"]}),
    "participants with none": edited(participants={ONE: ["a"], TWO: []}),
    "participants with ''": edited(participants={ONE: ["a"], TWO: [""]}),
    "participants as text": edited(participants={ONE: "agent", TWO: ["a"]}),
    "participants as records": edited(participants={ONE: [{"kind": "agent"}], TWO: ["a"]}),
    "an unknown field": edited(extra=1),
    "version 1": edited(schema_version=1),
    "version 3": edited(schema_version=3),
    "version '2'": edited(schema_version="2"),
    "version 2.0": edited(schema_version=2.0),
    "version true": edited(schema_version=True),
    "id ''": edited(checkpoint_id=""),
    "id 5": edited(checkpoint_id=5),
    "id ..": edited(checkpoint_id="../x"),
    "an episode as text": edited(instances={ONE: ["r0"], TWO: []}),
    "an episode with more": edited(
        instances={ONE: [{"rollout_id": "r0", "attempt": 0, "x": 1}], TWO: []}
    ),
    "attempt true": edited(instances={ONE: [{"rollout_id": "r0", "attempt": True}], TWO: []}),
    "attempt 1.0": edited(instances={ONE: [{"rollout_id": "r0", "attempt": 1.0}], TWO: []}),
    "attempt -1": edited(instances={ONE: [{"rollout_id": "r0", "attempt": -1}], TWO: []}),
    "attempt 1e400": edited(instances={ONE: [{"rollout_id": "r0", "attempt": 10**400}], TWO: []}),
    "rollout r-a1": edited(instances={ONE: [{"rollout_id": "r-a1", "attempt": 0}], TWO: []}),
    "rollout ../x": edited(instances={ONE: [{"rollout_id": "../x", "attempt": 0}], TWO: []}),
    "rollout twice": edited(
        instances={ONE: [{"rollout_id": "r0", "attempt": n} for n in (0, 1)], TWO: []}
    ),
    "rollout restarted too": edited(restarts={ONE: [], TWO: [{"rollout_id": "r0", "attempt": 0}]}),
    "unsafe instance": edited(
        **{
            name: {f"../{key}" if key == ONE else key: value for key, value in WHOLE[name].items()}
            for name in ("instances", "staging_keys", "restarts", "participants")
        }
    ),
    "staging key twice": edited(staging_keys={ONE: ["k", "k"], TWO: []}),
    "staging key ''": edited(staging_keys={ONE: [""], TWO: []}),
    "a list": [],
    "null": None,
    "an empty object": {},
    "a number": 5,
    "a text": "manifest",
    "true": True,
}
RAW: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "NUL": b"\0" * 512,
    "BOM": b"\xef\xbb\xbf" + json.dumps(WHOLE).encode(),
    "UTF-16": json.dumps(WHOLE).encode("utf-16"),
    "NaN": json.dumps(WHOLE).replace('"attempt": 0', '"attempt": NaN').encode(),
    "duplicate key": json.dumps(WHOLE)[:-1].encode() + b', "checkpoint_id": "other"}',
    "trailing data": json.dumps(WHOLE).encode() + b"{}",
    "deep": b"[" * 200_000,
    "deep object": b'{"a":' * 200_000,
    "lone surrogate": json.dumps(edited(checkpoint_id="\ud800")).encode(),
    "surrogate row": json.dumps(edited(staging_keys={ONE: ["\udfff"], TWO: []})).encode(),
    "huge number": json.dumps(WHOLE).replace('"attempt": 0', '"attempt": ' + "9" * 9_999).encode(),
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("edit", [*sorted(EDITS), *sorted(RAW)])
async def test_b8_b32_edited_manifest(new_world: NewWorld, tmp_path: Path, edit: str) -> None:
    """B8, B32: whatever an edit makes of the manifest is a ValueError and calls no actor."""
    world = new_world(2)
    raw = RAW[edit] if edit in RAW else json.dumps(EDITS[edit]).encode()
    (tmp_path / MANIFEST).write_bytes(raw)
    with pytest.raises(ValueError, match=MANIFEST) as caught:
        await restore_from(world, tmp_path)
    assert type(caught.value) is ValueError
    assert len(str(caught.value)) < 20_000
    assert world.story() == []


async def test_b8_the_unedited_manifest_is_restored(new_world: NewWorld, tmp_path: Path) -> None:
    """B8: the form that those edits begin with is a manifest, and each actor gets its own part."""
    world = new_world(2)
    (tmp_path / MANIFEST).write_text(json.dumps(WHOLE))
    await restore_from(world, tmp_path)
    first, second = (actor.of("restore")[0] for actor in world.actors)
    assert (first.args[2], second.args[2]) == ((episode("r0"),), ())
    assert (first.kwargs["participants"], second.kwargs["participants"]) == (
        ("agent",),
        ("agent", "env"),
    )


async def test_b32_absent_or_no_file(new_world: NewWorld, tmp_path: Path) -> None:
    """B32: a manifest that is absent is FileNotFoundError; one that is no file is refused."""
    world = new_world(1)
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError):
            await restore_from(world, root)
    (tmp_path / MANIFEST).mkdir()
    with pytest.raises((ValueError, OSError)):
        await restore_from(world, tmp_path)
    (tmp_path / MANIFEST).rmdir()
    (tmp_path / MANIFEST).symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="symbolic link"):
        await restore_from(world, tmp_path)
    (tmp_path / MANIFEST).unlink()
    assert world.story() == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(field=st.sampled_from([*WHOLE, "extra"]), value=json_values)
def test_b32_any_value_in_any_field(field: str, value: Any, tmp_path_factory: Any) -> None:
    """B32: any JSON in any field is a manifest or a ValueError, never another error."""
    root = tmp_path_factory.mktemp("field")
    (root / MANIFEST).write_text(json.dumps(WHOLE | {field: value}))
    try:
        loaded = load_gym_checkpoint_manifest(root)
    except ValueError:
        return
    assert loaded.to_dict()[field] == value
