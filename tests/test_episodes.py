"""Ids and their rules, episodes and capture keys, and where an instance keeps its files."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.episodes import (
    EnvironmentEpisode,
    GymCheckpointEpisode,
    instance_directory,
    new_operation_id,
    require_instance_id,
    require_operation_id,
    require_rollout_id,
    require_shard,
)
from gymckpt.wording import show

ALPHABET = "abzABZ019._-"
ROLLOUT_IDS = (
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", fullmatch=True)
    | st.from_regex(r"r(-a0?[0-9]{0,3}){0,4}", fullmatch=True)
).filter(lambda value: not re.fullmatch(r".*-a[1-9][0-9]*", value))
EPISODES = st.builds(
    EnvironmentEpisode,
    ROLLOUT_IDS,
    st.integers(0, 12) | st.integers(0, 10**9 - 1),
)
ODD_IDS = (
    st.text(ALPHABET, max_size=12)
    | st.text(max_size=12)
    | st.from_regex(r"r?(-a[0-9]{0,12}){1,3}\n?", fullmatch=True)
)


# --- rollout ids and capture keys ----------------------------------------------------------------


@given(EPISODES)
def test_a_capture_key_names_its_episode(episode: EnvironmentEpisode) -> None:
    """B44: the key of any episode leads back to that episode."""
    assert EnvironmentEpisode.from_capture_key(episode.capture_key) == episode


@given(EPISODES, EPISODES)
def test_two_episodes_never_share_a_key(
    first: EnvironmentEpisode, second: EnvironmentEpisode
) -> None:
    """B44: equal keys are of equal episodes."""
    assert (first.capture_key == second.capture_key) is (first == second)


@given(ODD_IDS)
def test_a_key_is_refused_or_names_one_episode(key: str) -> None:
    """B44: any text at all is either nobody's key or exactly one episode's."""
    try:
        episode = EnvironmentEpisode.from_capture_key(key)
    except ValueError:
        return

    assert episode.capture_key == key


@given(ODD_IDS)
def test_a_rollout_id_is_refused_or_safe(value: str) -> None:
    """An accepted id is one path component that begins an unambiguous key."""
    try:
        require_rollout_id(value)
    except ValueError:
        return

    assert Path(value).name == value
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value)
    assert not re.search(r"-a[1-9][0-9]*\Z", value)
    assert EnvironmentEpisode.from_capture_key(value) == EnvironmentEpisode(value, 0)


@pytest.mark.parametrize("value", ["r-a0", "r-a01", "r-a", "ra1", "r-a1x", "r-A1", "r--a", "0"])
def test_ordinary_ids_are_accepted(value: str) -> None:
    """B44: only a last `-a<N>` with N of at least 1 and without a leading zero is reserved."""
    assert require_rollout_id(value) == value
    assert EnvironmentEpisode.from_capture_key(f"{value}-a3") == EnvironmentEpisode(value, 3)


@pytest.mark.parametrize(
    "value",
    [
        "r-a1", "r-a10-a2", "r-a0-a7", "-a1", "", ".", "..", ".hidden", "-r", "a/b", "a\\b", "a b",
        "r\n", "r\0", "é", "r" * 241, "r-a" + "9" * 5_000,
    ],
    ids=show,
)  # fmt: skip
def test_reserved_and_unsafe_ids_are_refused(value: str) -> None:
    """B44: an id that another attempt's key, a path or a line could be confused with is refused."""
    with pytest.raises(ValueError, match="rollout id") as caught:
        require_rollout_id(value)

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "key",
    ["r-a1-a2", "r-a" + "9" * 10, "r-a" + "1" * 5_000, "-a1", "", "a/b-a1"],
    ids=show,
)
def test_keys_of_no_episode_are_refused(key: str) -> None:
    """A key with a reserved or unsafe rollout id, or an attempt out of range, is nobody's."""
    with pytest.raises(ValueError):  # noqa: PT011 - which rule refuses it first does not matter
        EnvironmentEpisode.from_capture_key(key)


@pytest.mark.parametrize("attempt", [True, False, 1.0, "1", None, [1]])
def test_an_attempt_of_another_type_is_refused(attempt: Any) -> None:
    """B44: a bool, a float or a text is no attempt number."""
    with pytest.raises(TypeError, match="attempt"):
        EnvironmentEpisode("r", attempt)


@pytest.mark.parametrize("attempt", [-1, 10**9, 10**5_000], ids=show)
def test_an_attempt_out_of_range_is_refused(attempt: int) -> None:
    """B44: attempts count from 0, and a long run of digits is no attempt."""
    with pytest.raises(ValueError, match="out of range") as caught:
        EnvironmentEpisode("r", attempt)

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [None, 1, b"r", ["r"], 10**5_000], ids=show)
def test_an_id_of_another_type_is_refused(value: Any) -> None:
    """Every id is a str; anything else is a `TypeError` that shows it in short."""
    for require in (require_rollout_id, require_operation_id, require_shard, require_instance_id):
        with pytest.raises(TypeError, match="is a str, not") as caught:
            require(value)
        assert len(str(caught.value)) < 500
    with pytest.raises(TypeError, match="capture key"):
        EnvironmentEpisode.from_capture_key(value)


@given(EPISODES.filter(lambda episode: episode.attempt < 10**9 - 1))
def test_a_restore_continues_as_the_next_attempt(episode: EnvironmentEpisode) -> None:
    """The next attempt is of the same rollout, one higher, and sorts after the one before."""
    following = episode.next_attempt()

    assert following == EnvironmentEpisode(episode.rollout_id, episode.attempt + 1)
    assert following > episode


@given(EPISODES)
def test_an_episode_survives_json_and_pickling(episode: EnvironmentEpisode) -> None:
    """The JSON form has exactly two fields, and every form leads back to an equal episode."""
    assert episode.to_dict() == {"rollout_id": episode.rollout_id, "attempt": episode.attempt}
    assert EnvironmentEpisode.from_mapping(episode.to_dict()) == episode
    assert pickle.loads(pickle.dumps(episode)) == episode
    assert pickle.loads(cloudpickle.dumps(episode)) == episode
    assert len({episode, EnvironmentEpisode(episode.rollout_id, episode.attempt)}) == 1


def test_an_episode_cannot_be_changed() -> None:
    """An episode is a value: its fields cannot be set again."""
    episode = EnvironmentEpisode("r", 0)

    with pytest.raises(AttributeError):
        episode.attempt = 1  # type: ignore[misc]


def test_both_documents_name_the_same_class() -> None:
    """The coordinator's document and the facade's call one class by two names."""
    assert GymCheckpointEpisode is EnvironmentEpisode


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(
    JSON
    | st.fixed_dictionaries({"rollout_id": ROLLOUT_IDS | JSON, "attempt": st.integers() | JSON})
    | st.fixed_dictionaries({"rollout_id": ROLLOUT_IDS, "attempt": st.just(0), "x": JSON})
)
def test_a_json_form_is_parsed_exactly_or_refused(raw: Any) -> None:
    """Whatever the JSON is, the outcome is `ValueError` or an episode with that very form."""
    try:
        episode = EnvironmentEpisode.from_mapping(raw)
    except ValueError:
        return

    assert episode.to_dict() == raw
    assert type(raw["attempt"]) is int


# --- operations and instances --------------------------------------------------------------------


@given(ODD_IDS)
def test_an_operation_id_is_refused_or_fits_the_wire(value: str) -> None:
    """An accepted id is 1 to 128 characters of the wire's pattern, to the very end."""
    try:
        require_operation_id(value)
    except ValueError:
        return

    assert re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z", value)
    assert len(value) <= 128


def test_ids_may_be_as_long_as_file_names_allow() -> None:
    """240 characters leave room for the longest attempt in a file name of 255 bytes; 241 do not."""
    assert len(EnvironmentEpisode("r" * 240, 10**9 - 1).capture_key) < 255
    assert require_instance_id("a" * 240 + "/replica-0")
    with pytest.raises(ValueError, match="at most 240"):
        require_rollout_id("r" * 241)


def test_operation_ids_have_their_bounds() -> None:
    """128 characters are an id, none and 129 are not; the error calls the id what it is."""
    assert require_operation_id("x" * 128)
    for value in ("", "x" * 129, "step-1\n", "a/b", "-x"):
        with pytest.raises(ValueError, match="checkpoint_id"):
            require_operation_id(value, "checkpoint_id")


def test_generated_operation_ids_never_repeat() -> None:
    """B45: a thousand fresh ids are a thousand different ids that the wire accepts."""
    ids = {new_operation_id("snapshot") for _ in range(1_000)}

    assert len(ids) == 1_000
    assert all(require_operation_id(id_).startswith("snapshot-") for id_ in ids)
    with pytest.raises(ValueError, match="operation id"):
        new_operation_id("../x")


SHARDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
INSTANCES = st.tuples(SHARDS, st.integers(0, 10**9 - 1)).map(lambda it: f"{it[0]}/replica-{it[1]}")


@given(INSTANCES, INSTANCES)
def test_two_instances_never_share_a_directory(first: str, second: str) -> None:
    """B46: each instance has one directory below `gym-instances`, and another has another."""
    root = Path("/ckpt/step-1")

    directory = instance_directory(root, first)

    assert directory == root / "gym-instances" / first
    assert directory.resolve().parent.parent == root / "gym-instances"
    assert (directory == instance_directory(str(root), second)) is (first == second)


@pytest.mark.parametrize(
    "value",
    [
        "/replica-0", "./replica-0", "../replica-0", "a/b/replica-0", "a\\b/replica-0",
        "a/replica--1", "a/replica-True", "a/replica-1.0", "a/replica-01", "a/replica-",
        "a/replica-0\n", "a\n/replica-0", "a/replica-0/..", "a", "", "a/replica-" + "9" * 5_000,
        "a" * 241 + "/replica-0", ".a/replica-0", "a/replica-٣",
    ],
    ids=show,
)  # fmt: skip
def test_unsafe_instance_ids_never_become_a_path(value: str) -> None:
    """B46: an id whose shard or index is no plain component is refused before a path is built."""
    with pytest.raises(ValueError, match=r"instance id|shard name"):
        instance_directory("/ckpt", value)


@given(st.text(max_size=12) | st.text("./\\a-", max_size=8))
def test_a_shard_name_is_refused_or_one_plain_component(value: str) -> None:
    """B46: an accepted shard names a directory of its own in any parent."""
    try:
        require_shard(value)
    except ValueError:
        return

    assert require_shard(value) == value
    assert (Path("/root") / value).resolve() == Path("/root", value)
    assert re.match(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z", value)
