"""Reading a manifest that is broken, or something else in its place."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt import manifest as manifest_module
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.manifest import (
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
    write_gym_checkpoint_manifest,
)
from tests.test_episodes import JSON
from tests.test_manifest import a_manifest, file_with, manifests, path_in

# --- reading what is broken ----------------------------------------------------------------------


def test_a_manifest_truncated_anywhere_is_refused() -> None:
    """B32: of all beginnings of the file only that without the last newline is the manifest."""
    manifest = a_manifest()
    data = manifest.encode()

    for length in range(len(data)):
        with file_with(data[:length]) as root:
            if length == len(data) - 1:
                assert load_gym_checkpoint_manifest(root) == manifest
                continue
            with pytest.raises(ValueError, match=r"gym_checkpoint\.json: is not"):
                load_gym_checkpoint_manifest(root)


FLIPS = {
    "bit 0": lambda byte: byte ^ 1,
    "bit 5": lambda byte: byte ^ 0x20,
    "bit 7": lambda byte: byte ^ 0x80,
    "inverted": lambda byte: byte ^ 0xFF,
    "NUL": lambda _byte: 0,
    "blank": lambda _byte: 0x20,
    "digit": lambda _byte: 0x30,
    "quote": lambda _byte: 0x22,
    "brace": lambda _byte: 0x7B,
}


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_a_flipped_byte_gives_an_error_or_another_sound_manifest(
    flip: Callable[[int], int], tmp_path: Path
) -> None:
    """At every offset the outcome is `ValueError` or a manifest; never one with the digest."""
    manifest = a_manifest()
    data = manifest.encode()
    digest = hashlib.sha256(data).hexdigest()

    for offset in range(len(data)):
        flipped = bytes([*data[:offset], flip(data[offset]), *data[offset + 1 :]])
        path_in(tmp_path).write_bytes(flipped)
        try:
            loaded = load_gym_checkpoint_manifest(tmp_path)
        except ValueError:
            pass
        else:
            assert GymCheckpointManifest.from_mapping(loaded.to_dict()) == loaded
        if flipped != data:
            with pytest.raises(ValueError, match=f"has the SHA-256 .*, not '{digest}'"):
                load_gym_checkpoint_manifest(tmp_path, sha256=digest)


def test_an_inserted_or_removed_byte_gives_an_error_or_a_sound_manifest() -> None:
    """At every offset the outcome is `ValueError` or a manifest, and no other error."""
    data = a_manifest().encode()
    inserted = (b"\0", b"\xff", b'"', b"{", b",", b"\xef\xbb\xbf", b"\n")

    for offset in range(len(data)):
        for changed in (
            data[:offset] + data[offset + 1 :],
            *(data[:offset] + extra + data[offset:] for extra in inserted),
        ):
            try:
                manifest_from(changed)
            except ValueError:
                continue


def manifest_from(data: bytes) -> GymCheckpointManifest:
    parsed: Any = manifest_module.parse_json(data)
    return GymCheckpointManifest.from_mapping(parsed)


@given(st.binary() | st.text().map(str.encode) | JSON.map(lambda it: json.dumps(it).encode()))
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    """Any bytes, any text and any JSON that is no manifest is a `ValueError` naming the file."""
    with file_with(data) as root, pytest.raises(ValueError, match=r"gym_checkpoint\.json: "):
        load_gym_checkpoint_manifest(root)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A manifest's JSON with one part of it, anywhere, replaced by any JSON."""
    form = draw(manifests()).to_dict()
    place: Any = form
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.booleans()):
            place[key] = draw(JSON)
            return form
        place = place[key]


@given(damaged())
def test_a_damaged_manifest_is_refused_or_is_exactly_what_it_says(form: Any) -> None:
    """Whatever stands in one place, the outcome is `ValueError` or a manifest of that very form."""
    try:
        manifest = GymCheckpointManifest.from_mapping(form)
    except ValueError:
        return

    assert manifest.to_dict() == form
    assert type(form["schema_version"]) is int


def damage(*path: Any, value: Any = None, remove: bool = False) -> bytes:
    """Return a good manifest's file with one place changed or removed."""
    form = a_manifest().to_dict()
    place: Any = form
    for key in path[:-1]:
        place = place[key]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(form).encode()


DEEP = b'{"schema_version": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
REPEATED = a_manifest().encode().replace(b'"r1"', b'"r1", "rollout_id": "r2"')
EPISODE = ("instances", "a/replica-0", 1)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "is not JSON"),
        (b"[]", "the manifest: must be an object, not "),
        (b"null", "the manifest: must be an object, not None"),
        (
            b"{}",
            "lacks schema_version, checkpoint_id, instances, staging_keys, restarts and 1 more",
        ),
        (b'{"schema_version": 3, "episodes": []}', "schema_version must be the int 2, not 3"),
        (b"\0" * 512, "is not JSON"),
        (b"\xef\xbb\xbf" + a_manifest().encode(), "is not JSON: .*BOM"),
        (a_manifest().encode().decode().encode("utf-16"), "is not UTF-8: byte 0"),
        (a_manifest().encode() + b"{}", "is not JSON: Extra data"),
        (a_manifest().encode()[:-2] + b"\xff}", "is not UTF-8: byte"),
        (DEEP, "nested too deeply"),
        (REPEATED, r'instances\["a/replica-0"\]\[1\]: names a key twice: .rollout_id'),
        (
            a_manifest()
            .encode()
            .replace(b'"checkpoint_id"', b'"checkpoint_id": "x",\n"checkpoint_id"'),
            "gym_checkpoint.json: names a key twice: 'checkpoint_id'",
        ),
        (damage("instances", "a/replica-0", value=float("nan")), "NaN is no JSON number"),
        (damage(*EPISODE, "attempt", value=float("inf")), "Infinity is no JSON number"),
        *(
            (damage("schema_version", value=it), "schema_version must be the int 2, not")
            for it in (1, 3, "2", 2.0, True, None, [2])
        ),
        *(
            (damage(*EPISODE, "attempt", value=it), r'instances\["a/replica-0"\]\[1\]\.attempt: ')
            for it in (2.0, "2", True, None, -1, 10**9, [2])
        ),
        *(
            (damage(*EPISODE, "rollout_id", value=it), r'\["a/replica-0"\]\[1\]\.rollout_id: ')
            for it in (1, None, "", "r-a1", "../x", "\ud800", "x\0")
        ),
        (damage(*EPISODE, value="r1"), r'instances\["a/replica-0"\]\[1\]: must be an object'),
        (damage(*EPISODE, "extra", value=1), r"\[1\]: has no field 'extra'; known: rollout_id"),
        (damage(*EPISODE, "attempt", remove=True), r"\[1\]: lacks attempt"),
        (damage("instances", value=[]), "instances: must be an object"),
        (
            damage("instances", "a/replica-0", value={}),
            r'instances\["a/replica-0"\]: must be a list',
        ),
        (damage("instances", "a/replica-0", remove=True), "must name the same instances"),
        (damage("checkpoint_id", value=5), "checkpoint_id is a str, not int"),
        (
            damage("staging_keys", "a/replica-0", 1, value=7),
            r"staging_keys.*\[1\]: must be a string",
        ),
        (damage("staging_keys", "a/replica-0", 1, value="\ud800"), "half a character pair"),
        (damage("extra", value=1), "the manifest: has no field 'extra'"),
        (damage("participant", value={}), "did you mean 'participants'"),
        (damage("participants", value={}), "participants must name the same instances"),
        (damage("participants", value=["agent"]), "participants: must be an object"),
        (damage("participants", value={"other": []}), "participants"),
        (
            damage("participants", "a/replica-1", value=["x", "x"]),
            "must not name anything twice: x",
        ),
        (
            damage("participants", "a/replica-1", value=[{"server_name": "x", "kind": "agent"}]),
            r'participants\["a/replica-1"\]\[0\]: must be a string.*by an older version',
        ),
        (
            damage("participants", remove=True),
            "lacks participants: it was written by an older version",
        ),
        (damage("restarts", remove=True), "lacks restarts: it was written by an older version"),
        (damage("instances", remove=True), "the manifest: lacks instances"),
    ],
    ids=itertools.count(),
)
def test_a_broken_manifest_says_where_it_is_broken(data: bytes, fault: str) -> None:
    """B8, B32: every broken file is a `ValueError` with the file, the place and the fault."""
    with file_with(data) as root:
        with pytest.raises(ValueError, match=fault) as caught:
            load_gym_checkpoint_manifest(root)

        assert str(path_in(root)) in str(caught.value)
        assert len(str(caught.value)) < 1_500


def test_the_oldest_schema_two_is_refused_as_an_older_version() -> None:
    """B8: a file with neither participants nor restarts is told apart from a broken one."""
    form = a_manifest().to_dict()
    del form["participants"], form["restarts"]

    with pytest.raises(ValueError, match=r"lacks restarts and participants: .* older version"):
        GymCheckpointManifest.from_mapping(form)


@pytest.mark.parametrize("raw", [None, [], "x", 5, {1: 2}, {**a_manifest().to_dict(), 5: 1}])
def test_parsing_refuses_what_is_no_object(raw: Any) -> None:
    """Whatever is passed to the parser, it is a `ValueError` and nothing else."""
    with pytest.raises(ValueError, match="manifest"):
        GymCheckpointManifest.from_mapping(raw)


def test_the_documented_helpers_are_in_their_place() -> None:
    """The API document's two private functions exist under its names."""
    manifest_module._require_schema_version(2)
    assert manifest_module._episodes_by_instance({"a": [{"rollout_id": "r", "attempt": 0}]}) == {
        "a": (EnvironmentEpisode("r", 0),)
    }
    with pytest.raises(ValueError, match=r'instances\["a"\]: must be a list'):
        manifest_module._episodes_by_instance({"a": {}})  # type: ignore[dict-item]


# --- what stands in the manifest's place ---------------------------------------------------------


def test_an_absent_manifest_is_a_missing_file(tmp_path: Path) -> None:
    """B32: neither an empty directory nor an absent one is a broken manifest."""
    for root in (tmp_path, tmp_path / "absent", str(tmp_path)):
        with pytest.raises(FileNotFoundError):
            load_gym_checkpoint_manifest(root)


def put_directory(path: Path) -> None:
    path.mkdir()


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_socket(path: Path) -> None:
    # The path of a socket may not be long.
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
        server.bind(path.name)


def put_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def put_link_that_leaves(path: Path) -> None:
    target = path.parent.parent / "elsewhere.json"
    target.write_bytes(a_manifest().encode())
    path.symlink_to(Path("..") / target.name)


def put_dangling_link_that_leaves(path: Path) -> None:
    path.symlink_to("/nowhere/gym_checkpoint.json")


def put_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, manifest_module.MANIFEST_BYTES_MAX + 1)


INTRUDERS = [
    put_directory, put_pipe, put_socket, put_link_to_itself, put_link_that_leaves,
    put_dangling_link_that_leaves, put_huge_file,
]  # fmt: skip


@pytest.mark.parametrize("put", INTRUDERS)
def test_what_is_no_file_of_this_directory_is_refused(
    put: Callable[[Path], None], tmp_path: Path
) -> None:
    """B32, B46: a directory, a pipe, a link that leaves the root and the like are `ValueError`s."""
    root = tmp_path / "root"
    root.mkdir()
    put(path_in(root))

    with pytest.raises(ValueError, match=r"gym_checkpoint\.json: is "):
        load_gym_checkpoint_manifest(root)


def test_a_root_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    """Only a link out of the root is refused, not one that leads to it or stays in it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_gym_checkpoint_manifest(tmp_path / "link", a_manifest())
    path_in(tmp_path / "real").rename(tmp_path / "real" / "other.json")
    path_in(tmp_path / "real").symlink_to("other.json")

    assert load_gym_checkpoint_manifest(tmp_path / "link") == a_manifest()
