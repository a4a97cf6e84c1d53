"""What may happen to a participant's files and paths, and what is read back then."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.participant.store import MANIFEST_FILE, RecordsManifest, RecordsStore
from tests.participant.stores import JSON, RECORDS, files_of, never, store_at

# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["manifest", "records"])
def test_a_change_of_any_byte_is_noticed(written: RecordsStore, which: str) -> None:
    """No byte of either file can be changed to anything else without a ValueError that names it."""
    path = next(written.directory.glob("manifest*" if which == "manifest" else "records*"))
    whole = path.read_bytes()
    for index, byte in enumerate(whole):
        for flip in (0x01, 0xA0):
            path.write_bytes(whole[:index] + bytes([byte ^ flip]) + whole[index + 1 :])
            with pytest.raises(ValueError, match=str(written.directory)):
                written.read("c1")
    path.write_bytes(whole)
    assert written.read("c1") == RECORDS


@pytest.mark.parametrize("which", ["manifest", "records"])
def test_a_cut_or_longer_file_is_noticed(written: RecordsStore, which: str) -> None:
    """A file that was torn anywhere, or grew, is refused."""
    path = next(written.directory.glob("manifest*" if which == "manifest" else "records*"))
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole + extra for extra in (b"\n", b"{}\n", b" ", whole, b"x" * 100_000)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=str(written.directory)):
            written.read("c1")


@settings(max_examples=25)
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_a_value_error(tmp_path_factory: Any, garbage: bytes) -> None:
    """Whatever stands in the manifest's place, reading raises ValueError and nothing else."""
    store = store_at(tmp_path_factory.mktemp("root"))
    store.write("c1", RECORDS, stop=never)
    (store.directory / MANIFEST_FILE).write_bytes(garbage)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        store.read("c1")
    with pytest.raises(ValueError, match=r"manifest\.json"):
        store.write("c1", RECORDS, stop=never)


@pytest.mark.parametrize("garbage", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5_000, b"NaN"])
def test_json_that_hurts_its_reader_is_a_value_error(written: RecordsStore, garbage: bytes) -> None:
    """Deep nesting, endless digits and constants that are no JSON come out as ValueError."""
    digest = hashlib.sha256(garbage + b"\n").hexdigest()
    manifest = RecordsManifest(
        checkpoint_id="c1",
        kind="environment",
        server="env",
        records_file=f"records-{digest}.jsonl",
        records_sha256=digest,
        record_count=1,
    )
    (written.directory / MANIFEST_FILE).write_bytes(manifest.encode())
    (written.directory / manifest.records_file).write_bytes(garbage + b"\n")
    with pytest.raises(ValueError, match="line 1"):
        written.read("c1")


GOOD = RecordsManifest(
    checkpoint_id="c1",
    kind="environment",
    server="env",
    records_file=f"records-{'0' * 64}.jsonl",
    records_sha256="0" * 64,
    record_count=0,
)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"schema_version": 2}, "schema_version is 2"),
        ({"schema_version": True}, "schema_version must be of type int"),
        ({"schema_version": 1.0}, "schema_version must be of type int"),
        ({"record_count": "0"}, "record_count must be of type int"),
        ({"record_count": -1}, "not as it was written"),
        ({"kind": "agent"}, "kind is 'agent', expected 'environment'"),
        ({"server": "other"}, "server is 'other', expected 'env'"),
        ({"checkpoint_id": "c2"}, "checkpoint_id is 'c2', expected 'c1'"),
        ({"records_sha256": "0" * 63}, "must be"),
        ({"records_sha256": "A" * 64, "records_file": f"records-{'A' * 64}.jsonl"}, "must be"),
        ({"records_file": "../records.jsonl"}, "must be"),
        ({"records_file": "/etc/passwd"}, "must be"),
        ({"records_file": f"../records-{'0' * 64}.jsonl"}, "must be"),
        ({"records_file": f"records-{'1' * 64}.jsonl"}, "must be"),
        ({"records_file": f"records-{'0' * 64}.jsonl\n"}, "must be"),
        ({"records_file": None}, "records_file must be of type str"),
        ({"extra": 1}, "has no field 'extra'"),
        ({"kind": ...}, "lacks kind"),
    ],
)  # fmt: skip
def test_a_manifest_that_says_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], rule: str
) -> None:
    """B46: each field is checked, and nothing is read outside of the directory."""
    store = store_at(tmp_path)
    store.directory.mkdir(parents=True)
    fields = {**attrs.asdict(GOOD), **changes}
    fields = {name: value for name, value in fields.items() if value is not ...}
    text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
    (store.directory / MANIFEST_FILE).write_text(text)
    with pytest.raises(ValueError, match=rule) as caught:
        store.read("c1")
    assert str(store.directory / MANIFEST_FILE) in str(caught.value)


# --- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"instance_id": name}
        for name in ("/replica-0", "./replica-0", "../replica-0", "a/b/replica-0", "a\\b/replica-0",
                     "tools/replica--1", "tools/replica-01", "tools", "tools/replica-0\n", "")
    ]
    + [{"kind": kind} for kind in ("", "..", "Environment", "other", "a/b")]
    + [{"server": name} for name in ("", ".", "..", "a/b", "a\\b", "/etc", "-x", "a\n", "x" * 300)],
)  # fmt: skip
def test_unsafe_names_never_become_paths(tmp_path: Path, changes: dict[str, str]) -> None:
    """B46: an instance, kind or server that is no plain name never becomes a path."""
    with pytest.raises(ValueError, match=r"instance|shard|kind|server"):
        store_at(tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []


def test_participants_have_directories_of_their_own(tmp_path: Path) -> None:
    """Two instances, kinds or servers never share a directory; the same one always has the same."""
    stores = [
        store_at(tmp_path, instance_id=instance, kind=kind, server=server)
        for instance in ("tools/replica-0", "tools/replica-1", "tools.replica-0/replica-0")
        for kind in ("environment", "agent")
        for server in ("a", "b")
    ]
    assert len({store.directory for store in stores}) == len(stores)
    assert store_at(tmp_path).directory == store_at(tmp_path).directory


@pytest.mark.parametrize("name", ["manifest.json", "records"])
def test_a_file_that_is_a_link_is_refused(written: RecordsStore, name: str) -> None:
    """B46: a manifest or records file that leads elsewhere is not followed, not even to a copy."""
    path = next(written.directory.glob(f"{name}*"))
    outside = written.root / "outside"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(ValueError, match="is a symbolic link"):
        written.read("c1")
    path.unlink()
    path.symlink_to(written.root / "nowhere")
    with pytest.raises(ValueError, match="is a symbolic link"):
        written.read("c1")


def test_a_link_in_place_of_the_manifest_is_not_written_through(tmp_path: Path) -> None:
    """A dangling link where the manifest would be created is refused, and stays dangling."""
    store = store_at(tmp_path)
    store.directory.mkdir(parents=True)
    target = tmp_path / "target"
    (store.directory / MANIFEST_FILE).symlink_to(target)
    with pytest.raises(ValueError, match="is a symbolic link"):
        store.write("c1", RECORDS, stop=never)
    assert not target.exists()


@pytest.mark.parametrize("depth", range(6))
def test_a_directory_that_is_a_link_is_refused(tmp_path: Path, depth: int) -> None:
    """B46: no directory below the root may lead elsewhere, neither in reading nor in writing."""
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    store_at(elsewhere).write("c1", RECORDS, stop=never)
    store = store_at(root)
    below = store.directory.relative_to(root)
    chain = [root / part for part in [*reversed(below.parents), below][1:]]
    assert len(chain) == 6
    link = chain[depth]
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere / link.relative_to(root))
    before = files_of(store_at(elsewhere))
    with pytest.raises(ValueError, match="symbolic link"):
        store.read("c1")
    with pytest.raises(ValueError, match="symbolic link"):
        store.write("c1", RECORDS, stop=never)
    assert files_of(store_at(elsewhere)) == before


def test_a_root_that_is_a_link_is_fine(tmp_path: Path) -> None:
    """Where the controller's root lies is its own affair; only what is below must be straight."""
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    store_at(tmp_path / "root").write("c1", RECORDS, stop=never)
    assert store_at(tmp_path / "real").read("c1") == RECORDS


@pytest.mark.parametrize("name", ["manifest.json", "records"])
def test_what_is_no_regular_file_is_refused_at_once(written: RecordsStore, name: str) -> None:
    """A directory or a pipe in place of a file is a ValueError, and a pipe does not hang."""
    path = next(written.directory.glob(f"{name}*"))
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match="not a regular file"):
        written.read("c1")
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="not a regular file"):
        written.read("c1")
    path.unlink()
    with pytest.raises(ValueError, match="is missing"):
        written.read("c1")
