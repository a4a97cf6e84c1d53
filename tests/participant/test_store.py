"""What may happen to a participant's files, and what is read back then."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gymckpt.errors import ParticipantRefused
from gymckpt.participant import store as store_module
from gymckpt.participant.store import MANIFEST_FILE, Record, RecordsManifest, RecordsStore

INSTANCE = "tools/replica-0"
RECORDS: list[Record] = [
    {"rollout_id": "r0", "attempt": 0, "actions": [0, 1.5, None, True], "text": "ü\n\u2028"},
    {"rollout_id": "r1", "attempt": 2, "nested": {"a": [{"b": []}]}},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=4)
SLOW_FIXTURE = [HealthCheck.function_scoped_fixture]


def store_at(root: Path, **changes: str) -> RecordsStore:
    arguments = {"instance_id": INSTANCE, "kind": "environment", "server": "env", **changes}
    return RecordsStore(root, **arguments)  # type: ignore[arg-type]


def never() -> bool:
    return False


@pytest.fixture
def written(tmp_path: Path) -> RecordsStore:
    """A store that holds RECORDS for checkpoint `c1`."""
    store = store_at(tmp_path)
    store.write("c1", RECORDS, stop=never)
    return store


def files_of(store: RecordsStore) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.directory.iterdir()}


# --- writing and reading ------------------------------------------------------------------------


@settings(suppress_health_check=SLOW_FIXTURE)
@given(OBJECTS)
def test_what_is_written_is_read_back(tmp_path_factory: Any, records: list[Record]) -> None:
    """Any JSON objects come back equal, in their order, and leave exactly two files."""
    store = store_at(tmp_path_factory.mktemp("root"))
    manifest = store.write("c1", iter(records), stop=never)
    assert store.read("c1") == records
    assert manifest.record_count == len(records)
    assert set(files_of(store)) == {MANIFEST_FILE, manifest.records_file}


def test_only_wanted_records_are_kept(written: RecordsStore) -> None:
    """A filter keeps some records while all of them are checked."""
    assert written.read("c1", wanted=lambda record: record["attempt"] == 2) == RECORDS[1:]


@pytest.mark.parametrize(
    "record",
    [
        {"a": float("nan")},
        {"a": float("inf")},
        {1: "key"},
        {"a": (1, 2)},
        {"a": {1, 2}},
        {"a": b"bytes"},
        {"a": object()},
        ["no object"],
        None,
    ],
)
def test_only_json_objects_are_written(tmp_path: Path, record: Any) -> None:
    """What would not be read back as it is, is refused, and nothing is left behind."""
    store = store_at(tmp_path)
    with pytest.raises(ValueError, match=r"a record"):
        store.write("c1", [RECORDS[0], record], stop=never)
    assert files_of(store) == {}


def test_a_record_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    """Nesting that would exhaust the stack is a ValueError, not a RecursionError."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="not JSON data"):
        store_at(tmp_path).write("c1", [{"deep": deep}], stop=never)


def test_a_record_that_no_reader_would_take_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record longer than readers accept is refused when it is written, not when it is needed."""
    monkeypatch.setattr(store_module, "RECORD_BYTES_MAX", 20)
    store = store_at(tmp_path)
    store.write("c1", [{"a": "x" * 10}], stop=never)
    assert store.read("c1") == [{"a": "x" * 10}]
    with pytest.raises(ValueError, match="at most 20 are allowed"):
        store.write("c1", [{"a": "x" * 20}], stop=never)


def test_trouble_of_the_disk_stays_an_os_error(
    written: RecordsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that cannot be read is no damage of the files."""

    def broken(*_arguments: Any) -> int:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(store_module.os, "open", broken)
    with pytest.raises(OSError, match="input/output error"):
        written.read("c1")


def test_records_that_break_off_leave_nothing(tmp_path: Path) -> None:
    """An error of whoever supplies the records leaves neither a manifest nor a temporary file."""

    def broken() -> Iterator[Record]:
        yield RECORDS[0]
        raise LookupError("the supplier failed")

    store = store_at(tmp_path)
    with pytest.raises(LookupError):
        store.write("c1", broken(), stop=never)
    assert files_of(store) == {}


def test_an_equal_write_returns_the_old_manifest(written: RecordsStore) -> None:
    """The same records for the same checkpoint again change no byte of the manifest."""
    before = files_of(written)
    manifest = written.write("c1", RECORDS, stop=never)
    assert files_of(written) == before
    assert manifest.encode() == before[MANIFEST_FILE]


@pytest.mark.parametrize(("checkpoint_id", "count"), [("c2", 2), ("c1", 1), ("c2", 1)])
def test_another_write_is_refused(written: RecordsStore, checkpoint_id: str, count: int) -> None:
    """A directory that holds a checkpoint takes neither another one nor other records of it."""
    before = files_of(written)
    with pytest.raises(ParticipantRefused, match="never changes") as caught:
        written.write(checkpoint_id, RECORDS[:count], stop=never)
    assert caught.value.code == "checkpoint_conflict"
    assert files_of(written) == before


# --- stopping -----------------------------------------------------------------------------------


@given(st.integers(0, 6))
def test_a_stopped_write_publishes_nothing(tmp_path_factory: Any, passes: int) -> None:
    """Whichever look at `stop` is the first to say True, the manifest does not appear."""
    store = store_at(tmp_path_factory.mktemp("root"))
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        return looks > passes

    looks_of_a_write = len(RECORDS) + 1
    if passes >= looks_of_a_write:
        store.write("c1", RECORDS, stop=stop)
        assert store.read("c1") == RECORDS
        return
    with pytest.raises(ParticipantRefused) as caught:
        store.write("c1", RECORDS, stop=stop)
    assert caught.value.code == "stale_checkpoint"
    assert not (store.directory / MANIFEST_FILE).exists()
    assert not list(store.directory.glob(".*"))


def test_the_last_look_at_stop_comes_right_before_the_manifest(tmp_path: Path) -> None:
    """When `stop` is asked for the last time, records and manifest are on the disk already."""
    store = store_at(tmp_path)
    seen: list[set[str]] = []

    def stop() -> bool:
        seen.append({path.suffix for path in store.directory.iterdir()})
        return False

    store.write("c1", RECORDS, stop=stop)
    assert seen[-1] == {".jsonl", ".tmp"}


# --- a disk that fails --------------------------------------------------------------------------


CALLS_OF_A_WRITE = {"fsync": 10, "link": 1, "replace": 1}


@pytest.mark.parametrize(
    ("function", "at"),
    [(name, at) for name, calls in CALLS_OF_A_WRITE.items() for at in range(1, calls + 2)],
)
def test_a_failing_disk_publishes_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, at: int
) -> None:
    """Whichever call to the disk fails, what is read is complete or missing, and a retry heals."""
    calls = 0
    real: Callable[..., Any] = getattr(os, function) if function != "replace" else Path.replace

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(*arguments, **options)

    store = store_at(tmp_path)
    with monkeypatch.context() as patch:
        owner: Any = Path if function == "replace" else store_module.os
        patch.setattr(owner, function, failing)
        if at > CALLS_OF_A_WRITE[function]:
            store.write("c1", RECORDS, stop=never)
            assert calls == CALLS_OF_A_WRITE[function]
            return
        with pytest.raises(OSError, match="no space left"):
            store.write("c1", RECORDS, stop=never)
    if (store.directory / MANIFEST_FILE).exists():
        assert store.read("c1") == RECORDS
    else:
        with pytest.raises(ValueError, match=r"manifest\.json: is missing"):
            store.read("c1")
    assert not list(store.directory.glob(".*"))
    store.write("c1", RECORDS, stop=never)
    assert store.read("c1") == RECORDS


def test_everything_is_flushed_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are flushed before they get their name, and name and manifest before the link."""
    events: list[str] = []
    real_fsync, real_link, real_replace = os.fsync, os.link, Path.replace

    def fsync(descriptor: int) -> None:
        events.append(f"flush {Path(os.readlink(f'/proc/self/fd/{descriptor}')).suffix or 'dir'}")
        real_fsync(descriptor)

    def link(*arguments: Any) -> None:
        events.append("link")
        real_link(*arguments)

    def replace(self: Path, target: Path) -> Path:
        events.append("rename")
        return real_replace(self, target)

    store = store_at(tmp_path)
    monkeypatch.setattr(store_module.os, "fsync", fsync)
    monkeypatch.setattr(store_module.os, "link", link)
    monkeypatch.setattr(Path, "replace", replace)
    store.write("c1", RECORDS, stop=never)
    made = len(store.directory.relative_to(tmp_path).parts)
    expected = ["flush dir"] * made
    expected += ["flush .tmp", "rename", "flush dir", "flush .tmp", "link", "flush dir"]
    assert events == expected


# --- racing writers -----------------------------------------------------------------------------


@pytest.mark.parametrize("round_number", range(5))
def test_one_of_racing_writers_wins(tmp_path: Path, round_number: int) -> None:
    """Of many writers of different checkpoints at once, one wins and the files are whole."""
    store = store_at(tmp_path)
    contents = {"c1": RECORDS, "c2": RECORDS, "c3": RECORDS[:1], "c4": []}
    barrier = threading.Barrier(8)

    def write(number: int) -> str:
        checkpoint_id = f"c{number % 4 + 1}"
        barrier.wait()
        try:
            store.write(checkpoint_id, contents[checkpoint_id], stop=never)
        except ParticipantRefused as refused:
            return refused.code
        return checkpoint_id

    with ThreadPoolExecutor(8) as pool:
        [winner] = set(pool.map(write, range(8))) - {"checkpoint_conflict"}
    assert store.read(winner) == contents[winner]
    assert not list(store.directory.glob(".*"))


# --- damage -------------------------------------------------------------------------------------


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


@settings(suppress_health_check=SLOW_FIXTURE)
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
        ({"extra": 1}, "unknown: extra"),
        ({"kind": ...}, "missing: kind"),
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


# --- paths --------------------------------------------------------------------------------------


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
