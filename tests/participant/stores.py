"""Stores of one participant, and what they hold."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from gymckpt.participant.store import Record, RecordsStore
from tests.participant.support import INSTANCE

RECORDS: list[Record] = [
    {"rollout_id": "r0", "attempt": 0, "actions": [0, 1.5, None, True], "text": "ü\n\u2028"},
    {"rollout_id": "r1", "attempt": 2, "nested": {"a": [{"b": []}]}},
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=4)


def store_at(root: Path, **changes: str) -> RecordsStore:
    arguments = {"instance_id": INSTANCE, "kind": "environment", "server": "env", **changes}
    return RecordsStore(root, **arguments)


def never() -> bool:
    return False


def files_of(store: RecordsStore) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.directory.iterdir()}
