"""What instances answer: copied, checked, and judged by the coordinator."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.replies import (
    GymCheckpointCommitSummary,
    GymCheckpointPrepareSummary,
    require_commit_summary,
    require_prepare_summary,
    staging_keys_of,
)
from tests.test_episodes import EPISODES

E0, E1, WIRE = (EnvironmentEpisode(rollout, 0) for rollout in ("r0", "r1", "wire"))

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
KEY_LISTS = st.lists(KEYS, unique=True, max_size=5)
INVENTORIES = st.lists(EPISODES, unique_by=lambda episode: episode.rollout_id, max_size=6)


@st.composite
def commit_fields(draw: st.DrawFn) -> dict[str, Any]:
    """Fields that belong together, in the plain collections that an actor has at hand."""
    rows = draw(st.dictionaries(EPISODES, KEY_LISTS, max_size=6))
    exported = draw(INVENTORIES)
    return {
        "exported_episodes": exported,
        "staging_keys": list({key: None for keys in rows.values() for key in keys}),
        "participants": draw(st.lists(KEYS, unique=True, min_size=1, max_size=5)),
        "staging_keys_by_episode": rows,
        "unowned_live_episodes": [it for it in draw(INVENTORIES) if it not in exported],
        "unsavable": {it: draw(KEYS) for it in draw(INVENTORIES) if it not in exported},
    }


@st.composite
def prepare_fields(draw: st.DrawFn) -> dict[str, Any]:
    prepared = draw(st.booleans())
    names = st.just([]) if prepared else st.lists(st.text(max_size=8), max_size=5)
    return {
        "prepared": prepared,
        "blockers": draw(st.dictionaries(st.text(max_size=8), names, max_size=4)),
        "restarts": draw(INVENTORIES),
    }


# --- prepare -------------------------------------------------------------------------------------


@given(prepare_fields())
def test_a_prepare_summary_keeps_what_it_was_given(fields: dict[str, Any]) -> None:
    """Positional or by keyword, every field is there, in its order, and survives both picklers."""
    summary = GymCheckpointPrepareSummary(**fields)

    assert summary == GymCheckpointPrepareSummary(*fields.values())
    assert summary.prepared is fields["prepared"]
    assert summary.blockers == {server: tuple(it) for server, it in fields["blockers"].items()}
    assert summary.restarts == tuple(fields["restarts"])
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(summary)) == summary
    assert require_prepare_summary(summary) is summary


@given(prepare_fields())
def test_a_prepare_summary_does_not_follow_its_callers_collections(fields: dict[str, Any]) -> None:
    """B28: changing what was passed, at any depth, changes nothing in the summary."""
    summary = GymCheckpointPrepareSummary(**fields)
    before = pickle.dumps(summary)

    for names in fields["blockers"].values():
        names.append("later")
    fields["blockers"]["later"] = ["x"]
    fields["restarts"].append(E0)

    assert pickle.loads(before) == summary


def test_blockers_are_texts_that_nobody_parses() -> None:
    """B16: what is no rollout id comes through as it is, and the same name may block twice."""
    summary = GymCheckpointPrepareSummary(
        False, {"agent": ("agent-worker-lost", "agent-workers-unreported:1", "r-a1", "r-a1")}
    )

    assert summary.blockers["agent"] == (
        "agent-worker-lost",
        "agent-workers-unreported:1",
        "r-a1",
        "r-a1",
    )


def test_an_instance_may_be_unparked_without_a_blocker() -> None:
    """B3: a resume that overtook the waiting prepare leaves nothing to name."""
    assert GymCheckpointPrepareSummary(False, {}).blockers == {}


def test_restarts_are_never_capped() -> None:
    """B17: fifty thousand restarts are all there."""
    restarts = [EnvironmentEpisode(f"r{index}", 0) for index in range(50_000)]

    assert GymCheckpointPrepareSummary(True, {}, restarts).restarts == tuple(restarts)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ((1, {}), "prepared must be a bool, not 1"),
        ((None, {}), "prepared must be a bool"),
        ((True, None), "blockers must be a mapping"),
        ((True, ["agent"]), r"blockers must be a mapping, not \['agent'\]"),
        ((False, {"agent": "r1"}), r"blockers.* must be a list, tuple or set of str, not 'r1'"),
        ((False, {"agent": None}), r"blockers.* must be a list, tuple or set of str, not None"),
        ((False, {"agent": ("r1", 2)}), r"blockers.*\[1\] must be a str, not 2"),
        ((False, {1: ("r1",)}), "a key of blockers must be a str"),
        ((True, {}, E0), "restarts must be a list, tuple or set"),
        ((True, {}, "r1"), r"restarts must be a list, tuple or set of \w+, not 'r1'"),
        ((True, {}, ("r1",)), r"restarts\[0\] must be a EnvironmentEpisode"),
        ((True, {}, {E0: 1}), "restarts must be"),
        ((True, {}, {E0, "r1"}), r"restarts\[[01]\] must be a EnvironmentEpisode, not 'r1'"),
    ],
)
def test_a_prepare_summary_of_wrong_types_is_refused(fields: tuple[Any, ...], fault: str) -> None:
    """A wrong type is a `TypeError` that names the field; a bare text is no list of names."""
    with pytest.raises(TypeError, match=fault):
        GymCheckpointPrepareSummary(*fields)


def test_a_parked_instance_that_names_a_blocker_is_refused() -> None:
    """S1: a reply that says both is not taken for parked."""
    with pytest.raises(ValueError, match="parked and that agent still blocks it"):
        GymCheckpointPrepareSummary(True, {"model": (), "agent": ("r1",)})


def test_a_rollout_restarts_once() -> None:
    """Neither the same episode twice nor two attempts of one rollout can restart."""
    for other in (E0, E0.next_attempt()):
        with pytest.raises(ValueError, match="restarts must not name a rollout twice"):
            GymCheckpointPrepareSummary(True, {}, [E0, E1, other])


def test_restarts_given_as_a_set_are_sorted() -> None:
    """The order of a summary does not depend on the hashes of a process."""
    assert GymCheckpointPrepareSummary(True, {}, {WIRE, E1, E0}).restarts == (E0, E1, WIRE)


# --- commit --------------------------------------------------------------------------------------


@given(commit_fields())
def test_a_commit_summary_keeps_what_it_was_given(fields: dict[str, Any]) -> None:
    """Positional or by keyword, every field is there, in its order, and survives both picklers."""
    summary = GymCheckpointCommitSummary(**fields)

    assert summary == GymCheckpointCommitSummary(*fields.values())
    for name in set(fields) - {"staging_keys_by_episode", "unsavable"}:
        assert getattr(summary, name) == tuple(fields[name])
    assert list(summary.unsavable.items()) == list(fields["unsavable"].items())
    assert summary.staging_keys_by_episode == {
        episode: tuple(keys) for episode, keys in fields["staging_keys_by_episode"].items()
    }
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(summary)) == summary


@given(commit_fields())
def test_a_commit_summary_does_not_follow_its_callers_collections(fields: dict[str, Any]) -> None:
    """B28: changing what was passed, at any depth, changes nothing in the summary."""
    summary = GymCheckpointCommitSummary(**fields)
    before = pickle.dumps(summary)

    for keys in fields["staging_keys_by_episode"].values():
        keys.append("later")
    fields["staging_keys_by_episode"][WIRE] = ["x"]
    fields["unsavable"][WIRE] = "later"
    for name in set(fields) - {"staging_keys_by_episode", "unsavable"}:
        fields[name].append("later")

    assert pickle.loads(before) == summary


@given(commit_fields(), st.sets(KEYS, min_size=1), st.booleans())
def test_rows_that_are_not_exactly_attributed_are_refused(
    fields: dict[str, Any], keys: set[str], staged: bool
) -> None:
    """One staged row without an episode, or one episode's row that is not staged, is an error."""
    odd = keys - set(fields["staging_keys"])
    if staged:
        fields["staging_keys"] = [*fields["staging_keys"], *odd]
    else:
        fields["staging_keys_by_episode"] = {
            **fields["staging_keys_by_episode"],
            EnvironmentEpisode("another", 7): list(odd),
        }
    if not odd:
        GymCheckpointCommitSummary(**fields)
        return

    with pytest.raises(ValueError, match="must be exactly staging_keys") as caught:
        GymCheckpointCommitSummary(**fields)

    assert f"{len(odd)} of no episode" in str(caught.value) or (
        f"{len(odd)} not staged" in str(caught.value)
    )


def test_an_error_about_rows_names_five_of_each_side_and_counts_the_rest() -> None:
    """B17: a hundred thousand rows that do not match make a short message with totals."""
    with pytest.raises(ValueError, match="must be exactly") as caught:
        GymCheckpointCommitSummary(
            (E0,),
            [f"staged/{index:05}" for index in range(100_000)],
            ("agent",),
            {E0: [f"owned/{index:05}" for index in range(50_000)]},
        )

    message = str(caught.value)
    assert "100000 of no episode" in message
    assert "50000 not staged" in message
    assert message.count("staged/") == message.count("owned/") == 5
    assert len(message) < 2_000


@pytest.mark.parametrize(
    ("changes", "error", "fault"),
    [
        ({"exported_episodes": "r0"}, TypeError, "exported_episodes must be a list"),
        ({"exported_episodes": ["r0"]}, TypeError, r"exported_episodes\[0\]"),
        ({"exported_episodes": None}, TypeError, "exported_episodes"),
        ({"exported_episodes": (E0, E0)}, ValueError, "exported_episodes must not name a rollout"),
        (
            {"exported_episodes": (E0, E0.next_attempt())},
            ValueError,
            "exported_episodes must not name a rollout twice.*r0",
        ),
        ({"staging_keys": "r0/c0"}, TypeError, "staging_keys must be a list"),
        ({"staging_keys": ("r0/c0", 1)}, TypeError, r"staging_keys\[1\] must be a str"),
        ({"staging_keys": ("r0/c0", "")}, ValueError, r"staging_keys\[1\] must not be empty"),
        (
            {"staging_keys": ("x", "r0/c0", "r0/c0", "y")},
            ValueError,
            "staging_keys must not name anything twice: r0/c0$",
        ),
        ({"staging_keys": ("\ud800",)}, ValueError, r"staging_keys\[0\].*half a character"),
        ({"participants": "agent"}, TypeError, "participants must be a list"),
        ({"participants": {"agent": 1}}, TypeError, "participants must be a list"),
        ({"participants": ()}, ValueError, "participants must not be empty"),
        ({"participants": ("agent", "")}, ValueError, r"participants\[1\] must not be empty"),
        ({"participants": ("agent", "agent")}, ValueError, "participants must not name anything"),
        ({"staging_keys_by_episode": []}, TypeError, "staging_keys_by_episode must be a mapping"),
        ({"staging_keys_by_episode": {"r0": ("r0/c0",)}}, TypeError, "a key of staging_keys_by"),
        ({"staging_keys_by_episode": {E0: "r0/c0"}}, TypeError, r"staging_keys_by_episode\[r0\]"),
        (
            {"staging_keys_by_episode": {E0: ("r0/c0", "r0/c0")}},
            ValueError,
            r"staging_keys_by_episode\[r0\] must not name anything twice: r0/c0",
        ),
        ({"unowned_live_episodes": (E1, E1)}, ValueError, "unowned_live_episodes must not name"),
        ({"unowned_live_episodes": (1,)}, TypeError, r"unowned_live_episodes\[0\]"),
        ({"unowned_live_episodes": (E0,)}, ValueError, "exported and have no owner"),
        ({"unsavable": {E0: "why"}}, ValueError, "exported and cannot be saved"),
        ({"unsavable": (E1,)}, TypeError, "unsavable must be a mapping"),
        ({"unsavable": {"r1": "why"}}, TypeError, "a key of unsavable must be"),
        ({"unsavable": {E1: ""}}, TypeError, r"unsavable\[r1\] must say why, not ''"),
        ({"unsavable": {E1: None}}, TypeError, r"unsavable\[r1\] must say why, not None"),
        (
            {"unsavable": {E1: "x", E1.next_attempt(): "y"}},
            ValueError,
            "unsavable must not name a rollout twice",
        ),
        ({"written_below_root": 1}, TypeError, "written_below_root must be a bool, not 1"),
        ({"written_below_root": None}, TypeError, "written_below_root must be a bool"),
    ],
)
def test_a_commit_summary_that_is_wrong_is_refused(
    changes: dict[str, Any], error: type[Exception], fault: str
) -> None:
    """A wrong type is a `TypeError`, a wrong meaning a `ValueError`; both name the place."""
    good: dict[str, Any] = {
        "exported_episodes": (E0,),
        "staging_keys": ("r0/c0",),
        "participants": ("agent",),
        "staging_keys_by_episode": {E0: ("r0/c0",)},
    }
    GymCheckpointCommitSummary(**good)

    with pytest.raises(error, match=fault):
        GymCheckpointCommitSummary(**good | changes)


def test_an_instance_may_export_nothing() -> None:
    """B7: when every reply was on the wire already, the summary is empty and fine."""
    summary = GymCheckpointCommitSummary((), (), ("agent",), {})

    assert require_commit_summary(summary, (E0,)) is summary
    assert staging_keys_of(summary, ()) == ()


# --- staging keys and judgement ------------------------------------------------------------------


def test_a_reply_on_the_wire_leaves_only_the_rows_of_kept_attempts() -> None:
    """B7: a shared row stays with the kept attempt, and a cut row needs no parsing."""
    summary = GymCheckpointCommitSummary(
        (E0, E1),
        ("r0/c0", "__cut__/c1", "carried/c0", "wire/c0"),
        ("agent", "model"),
        {E0: ("r0/c0",), E1: ("__cut__/c1", "carried/c0"), WIRE: ("carried/c0", "wire/c0")},
    )

    assert staging_keys_of(summary, summary.exported_episodes) == (
        "__cut__/c1",
        "carried/c0",
        "r0/c0",
    )


@given(commit_fields(), st.lists(EPISODES, max_size=4))
def test_staging_keys_are_the_sorted_union_of_the_kept_episodes_rows(
    fields: dict[str, Any], others: list[EnvironmentEpisode]
) -> None:
    """Each row of a kept episode occurs once, sorted; unknown episodes add nothing."""
    summary = GymCheckpointCommitSummary(**fields)
    rows = fields["staging_keys_by_episode"]
    kept = [*list(rows)[::2], *others]

    keys = staging_keys_of(summary, iter(kept))

    assert list(keys) == sorted(set(keys))
    assert set(keys) == {key for episode in kept for key in rows.get(episode, ())}
    assert set(staging_keys_of(summary, rows)) == set(summary.staging_keys)


@pytest.mark.parametrize("reply", [None, True, {}, ("prepared",), "ok", E0, object()])
def test_an_answer_that_is_no_summary_is_refused(reply: Any) -> None:
    """Whatever else an actor answers is a `TypeError` that says what was expected."""
    with pytest.raises(TypeError, match="must be a GymCheckpointPrepareSummary, not a"):
        require_prepare_summary(reply)
    with pytest.raises(TypeError, match="must be a GymCheckpointCommitSummary, not a"):
        require_commit_summary(reply, ())


def test_the_answer_to_another_call_is_refused() -> None:
    """A commit summary is no answer to prepare, nor the other way round."""
    with pytest.raises(TypeError, match="not a GymCheckpointCommitSummary"):
        require_prepare_summary(GymCheckpointCommitSummary((), (), ("agent",), {}))
    with pytest.raises(TypeError, match="not a GymCheckpointPrepareSummary"):
        require_commit_summary(GymCheckpointPrepareSummary(True, {}), ())


@given(commit_fields(), st.data())
def test_an_instance_exports_only_what_was_offered(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    """Naming less than was offered is fine, exporting or losing one more is a `RuntimeError`."""
    summary = GymCheckpointCommitSummary(**fields)
    named = [*summary.exported_episodes, *summary.unsavable]
    offered = [*named, EnvironmentEpisode("offered-too", 3)]
    assert require_commit_summary(summary, iter(offered)) is summary
    if not named:
        return

    missing = data.draw(st.sampled_from(named))
    what = "cannot save" if missing in summary.unsavable else "exported"
    with pytest.raises(RuntimeError, match=rf"{what} 1 episode\(s\)") as caught:
        require_commit_summary(summary, [it for it in offered if it != missing])

    assert missing.capture_key in str(caught.value)


def test_an_error_about_foreign_episodes_is_short() -> None:
    """B17: thousands of exported episodes that nobody offered make a short message with a total."""
    episodes = [EnvironmentEpisode(f"r{index}", 0) for index in range(20_000)]
    summary = GymCheckpointCommitSummary(episodes, (), ("agent",), {})

    with pytest.raises(RuntimeError, match=r"exported 20000 episode\(s\)") as caught:
        require_commit_summary(summary, ())

    assert len(str(caught.value)) < 1_000
