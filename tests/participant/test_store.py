"""How a participant writes its files: whole or not at all, once, and in which order."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.errors import ParticipantRefused
from gymckpt.participant import exact_json
from gymckpt.participant import store as store_module
from gymckpt.participant.store import MANIFEST_FILE, Record, RecordsManifest, RecordsStore
from tests.participant.stores import OBJECTS, RECORDS, files_of, never, store_at

# --- writing and reading --------------------------------------------------------------------------


@settings(max_examples=25)
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
        {float("nan"): "key"},
        {"a": (float("nan"),)},
        {"a": ["\ud83d", "\ud83d\ude00"]},
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
    for module in (store_module, exact_json):
        monkeypatch.setattr(module, "RECORD_BYTES_MAX", 20)
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


def test_order_is_content_of_a_record(tmp_path: Path) -> None:
    """Keys come back in their order, and the same fields in another order are another write."""
    record = {"rollout_id": "r0", "attempt": 0, "messages": [{"role": "user", "content": "hi"}]}
    turned = {**record, "messages": [{"content": "hi", "role": "user"}]}
    store = store_at(tmp_path)
    manifest = store.write("c1", [record], stop=never)
    assert json.dumps(store.read("c1")) == json.dumps([record])
    with pytest.raises(ParticipantRefused, match="never changes"):
        store.write("c1", [turned], stop=never)
    assert store.write("c1", [record], stop=never) == manifest


def test_an_equal_write_of_what_is_no_number_is_equal(tmp_path: Path) -> None:
    """A record with NaN is the same when it is written again, and has the digest of its text."""
    store = store_at(tmp_path)
    manifest = store.write("c1", [{"loss": [math.nan, -math.inf, -0.0]}], stop=never)
    assert store.write("c1", [{"loss": [math.nan, -math.inf, -0.0]}], stop=never) == manifest
    assert repr(store.read("c1")) == "[{'loss': [nan, -inf, -0.0]}]"
    text = (store.directory / manifest.records_file).read_bytes()
    assert hashlib.sha256(text).hexdigest() == manifest.records_sha256
    with pytest.raises(ParticipantRefused, match="never changes"):
        store.write("c1", [{"loss": [math.nan, -math.inf, 0.0]}], stop=never)


@pytest.mark.parametrize(("checkpoint_id", "count"), [("c2", 2), ("c1", 1), ("c2", 1)])
def test_another_write_is_refused(written: RecordsStore, checkpoint_id: str, count: int) -> None:
    """A directory that holds a checkpoint takes neither another one nor other records of it."""
    before = files_of(written)
    with pytest.raises(ParticipantRefused, match="never changes") as caught:
        written.write(checkpoint_id, RECORDS[:count], stop=never)
    assert caught.value.code == "checkpoint_exists"
    assert files_of(written) == before


@given(names=st.lists(st.text(), min_size=5, max_size=5), count=st.integers())
def test_a_manifest_is_indented_json(names: list[str], count: int) -> None:
    """A manifest is what `json.dumps` makes with an indent of two and sorted keys."""
    manifest = RecordsManifest(
        checkpoint_id=names[0],
        kind=names[1],
        server=names[2],
        records_file=names[3],
        records_sha256=names[4],
        record_count=count,
    )
    expected = json.dumps(attrs.asdict(manifest), indent=2, sort_keys=True) + "\n"
    assert manifest.encode() == expected.encode()


# --- stopping -------------------------------------------------------------------------------------


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


# --- a disk that fails ----------------------------------------------------------------------------


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
    real: Callable[..., Any] = getattr(os, function)

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(*arguments, **options)

    store = store_at(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(store_module.os, function, failing)
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
    real_fsync, real_link, real_replace = os.fsync, os.link, os.replace

    def fsync(descriptor: int) -> None:
        events.append(f"flush {Path(os.readlink(f'/proc/self/fd/{descriptor}')).suffix or 'dir'}")
        real_fsync(descriptor)

    def link(*arguments: Any) -> None:
        events.append("link")
        real_link(*arguments)

    def replace(*arguments: Any) -> None:
        events.append("rename")
        real_replace(*arguments)

    store = store_at(tmp_path)
    monkeypatch.setattr(store_module.os, "fsync", fsync)
    monkeypatch.setattr(store_module.os, "link", link)
    monkeypatch.setattr(store_module.os, "replace", replace)
    store.write("c1", RECORDS, stop=never)
    made = len(store.directory.relative_to(tmp_path).parts)
    expected = ["flush dir"] * made
    expected += ["flush .tmp", "rename", "flush dir", "flush .tmp", "link", "flush dir"]
    assert events == expected


# --- racing writers -------------------------------------------------------------------------------


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
        [winner] = set(pool.map(write, range(8))) - {"checkpoint_exists"}
    assert store.read(winner) == contents[winner]
    assert not list(store.directory.glob(".*"))


@pytest.mark.parametrize("winners_id", ["c1", "c2"])
def test_a_writer_that_loses_at_the_last_moment_takes_its_records_back(
    tmp_path: Path, winners_id: str
) -> None:
    """Another write that is published just before the link wins, and is alone in the directory."""
    store = store_at(tmp_path)
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        if looks == len(RECORDS) + 1:
            store.write(winners_id, RECORDS[:1], stop=never)
        return False

    with pytest.raises(ParticipantRefused, match=f"already holds checkpoint '{winners_id}'"):
        store.write("c1", RECORDS, stop=stop)
    assert store.read(winners_id) == RECORDS[:1]
    assert len(files_of(store)) == 2


def test_a_writer_that_loses_to_an_equal_one_has_written(tmp_path: Path) -> None:
    """Two equal writes at the same moment are one: both return the manifest that stands."""
    store = store_at(tmp_path)
    looks = 0

    def stop() -> bool:
        nonlocal looks
        looks += 1
        if looks == len(RECORDS) + 1:
            store.write("c1", RECORDS, stop=never)
        return False

    manifest = store.write("c1", RECORDS, stop=stop)
    assert store.read("c1") == RECORDS
    assert set(files_of(store)) == {MANIFEST_FILE, manifest.records_file}
