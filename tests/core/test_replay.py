"""Replay gives what was lived, from any cut, and nothing else passes for a history."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.chart import load_chart
from gymckpt.core.entry import Entry
from gymckpt.core.operation import OperationState
from gymckpt.core.replay import replay, states_of
from gymckpt.errors import InvariantViolated, ReplayDiverged
from tests.core.driver import FATAL, World
from tests.core.histories import opened, reached
from tests.core.steps import as_read
from tests.core.strategies import histories, worlds

Broken = ReplayDiverged | InvariantViolated


def refused(entries: list[Entry]) -> Broken:
    """Return the error with which a replay refuses a history."""
    with pytest.raises((ReplayDiverged, InvariantViolated)) as caught:
        replay(entries)
    return caught.value  # type: ignore[return-value]


def seq_of(error: Broken) -> int:
    """Return the entry that an error names."""
    if isinstance(error, ReplayDiverged):
        return error.seq
    found = re.search(r"entry (\d+)", str(error))
    assert found is not None, f"no entry is named: {error}"
    return int(found[1])


# --- what was lived -----------------------------------------------------------------------------


@given(world=worlds(crashes=False))
def test_replay_gives_what_was_lived(world: World) -> None:
    """What was recorded, read back from JSON, gives exactly the live state, field by field."""
    replayed = replay(as_read(entry) for entry in world.entries)
    assert replayed == world.operation
    assert attrs.asdict(replayed, recurse=False) == attrs.asdict(world.operation, recurse=False)


@given(world=worlds())
def test_every_cut_is_a_history(world: World) -> None:
    """Cut off after any entry, a history replays to the state that had been lived by then."""
    for count, state in enumerate(states_of(world.entries), 1):
        assert state.seq == count
        assert replay(world.entries[:count]) == state


@given(entries=histories())
def test_each_state_is_of_its_latest_entry(entries: list[Entry]) -> None:
    """A state has the fields of its class alone, and the times of the entry that led to it."""
    fields = {field.name for field in attrs.fields(OperationState)}
    for entry, operation in zip(entries, states_of(entries), strict=True):
        assert vars(operation).keys() == fields
        latest = (operation.seq, operation.epoch, operation.at_s)
        assert latest == (entry.seq, entry.epoch, entry.at_s)
        if entry.instance is None and entry.source != entry.dest:
            entered = (operation.state, operation.entered_ts, operation.entered_at_s)
            assert entered == (entry.dest, entry.ts, entry.at_s)


@given(world=worlds())
def test_replay_is_deterministic(world: World) -> None:
    """Two replays of one history are equal in every field."""
    assert replay(world.entries) == replay(list(world.entries))


def test_no_history_is_no_operation() -> None:
    """Without a single entry there is nothing to replay."""
    error = refused([])
    assert seq_of(error) == 0
    assert str(error).endswith("an opening entry, the journal has no entry at all")
    assert list(states_of([])) == []


# --- what was not -------------------------------------------------------------------------------

Deviation = Callable[[list[Entry], int], list[Entry]]
"""Makes a history wrong at one entry, given by its place."""


def _changed(**fields: Any) -> Deviation:
    def deviate(entries: list[Entry], at: int) -> list[Entry]:
        return [*entries[:at], attrs.evolve(entries[at], **fields), *entries[at + 1 :]]

    return deviate


def _dest_changed(entries: list[Entry], at: int) -> list[Entry]:
    chart = "call" if entries[at].instance else entries[0].facts["chart"]
    others = [state for state in load_chart(chart).states if state != entries[at].dest]
    return _changed(dest=others[at % len(others)])(entries, at)


def _source_changed(entries: list[Entry], at: int) -> list[Entry]:
    chart = "call" if entries[at].instance else entries[0].facts["chart"]
    others = [state for state in load_chart(chart).states if state != entries[at].source]
    return _changed(source=others[at % len(others)])(entries, at)


def _ask_changed(entries: list[Entry], at: int) -> list[Entry]:
    return _changed(ask=(entries[at].ask or 0) + 100)(entries, at)


def _dropped(entries: list[Entry], at: int) -> list[Entry]:
    return entries[:at] + entries[at + 1 :]


def _doubled(entries: list[Entry], at: int) -> list[Entry]:
    return entries[: at + 1] + entries[at:]


def _swapped(entries: list[Entry], at: int) -> list[Entry]:
    return [*entries[:at], entries[at + 1], entries[at], *entries[at + 2 :]]


def _epoch_raised(entries: list[Entry], at: int) -> list[Entry]:
    return _changed(epoch=entries[at].epoch + 7)(entries, at)


def _of_another_call(entries: list[Entry], at: int) -> list[Entry]:
    return _changed(call="forget" if entries[at].call == "retire" else "retire")(entries, at)


DEVIATIONS: dict[str, Deviation] = {
    "dest": _dest_changed,
    "source": _source_changed,
    "dropped": _dropped,
    "doubled": _doubled,
    "swapped": _swapped,
    "epoch lowered": _changed(epoch=0),
    "epoch raised": _epoch_raised,
    "clock set back": _changed(at_s=-1.0),
    "unknown trigger": _changed(trigger="teleport"),
    "of another operation": _changed(operation_id="op-2"),
    "of another run": _changed(run="other"),
    "unknown instance": _changed(instance="main/replica-99", call="prepare", ask=1),
    "no instance": _changed(instance="", call="prepare", ask=1),
    "half a call": _changed(instance=None, call="prepare"),
    "ask": _ask_changed,
    "no ask": _changed(ask=None),
    "call": _of_another_call,
    "no facts": _changed(facts={}),
}

OF_CALLS = frozenset({"ask", "no ask", "call"})
"""Deviations of entries that are of a call."""
OF_FACTS = frozenset({"ask", "retry", "fail", "die", "open"})
"""The triggers whose entries need facts, as does an expiry that was not abandoned."""


def _applies(name: str, entries: list[Entry], at: int) -> bool:
    """Whether a deviation makes a history wrong at a place."""
    entry, last = entries[at], at == len(entries) - 1
    if name in OF_CALLS and entry.instance is None:
        return False
    if name == "call" and entry.trigger in ("stale", "die"):
        return False  # either may come of any call that was asked
    if name == "no facts" and entry.trigger not in OF_FACTS:
        return False
    if name == "epoch lowered" or at > 0:
        return not (name in {"dropped", "swapped", "epoch raised"} and last)
    return name not in {"of another operation", "of another run", "clock set back"} and not last


@given(entries=histories(), data=st.data())
def test_deviations_are_refused(entries: list[Entry], data: st.DataObject) -> None:
    """A history that was changed in one place is refused, at that place or at the next entry."""
    for name, deviation in DEVIATIONS.items():
        places = [at for at in range(len(entries)) if _applies(name, entries, at)]
        if places:
            at = data.draw(st.sampled_from(places), label=name)
            error = refused(deviation(entries, at))
            assert seq_of(error) in (entries[at].seq, entries[at].seq + 1)


@pytest.mark.parametrize("name", DEVIATIONS)
def test_each_deviation_is_refused_somewhere(name: str) -> None:
    """In one long history each kind of deviation is possible, and refused wherever it is."""
    world = reached("restore", "restored", "retiring")
    world.answer("retire", 1)
    world.fail("retire", 0)
    world.wait(60.0)
    places = [at for at in range(len(world.entries)) if _applies(name, world.entries, at)]
    assert places
    for at in places:
        error = refused(DEVIATIONS[name](world.entries, at))
        assert seq_of(error) in (at + 1, at + 2)


@given(entries=histories(), data=st.data())
def test_other_openings_are_refused(entries: list[Entry], data: st.DataObject) -> None:
    """A history whose opening lacks what it needs is refused there."""
    key = data.draw(st.sampled_from(("chart", "chart_version", "instances", "settings")))
    facts = {name: value for name, value in entries[0].facts.items() if name != key}
    error = refused([attrs.evolve(entries[0], facts=facts), *entries[1:]])
    assert seq_of(error) == 1
    assert key in str(error)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)

TEXTS = st.sampled_from(("", "prepare", "main/replica-0", "discarding", "asked", "é", "x" * 400))

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "run": TEXTS,
    "operation_id": TEXTS,
    "seq": st.integers(-1, 9),
    "epoch": st.integers(-1, 9),
    "ts": st.floats(-1e12, 1e12),
    "at_s": st.floats(-1e9, 1e9),
    "instance": st.none() | TEXTS,
    "call": st.none() | TEXTS,
    "ask": st.none() | st.integers(-1, 9),
    "trigger": TEXTS | st.sampled_from(sorted(load_chart("checkpoint").triggers)),
    "source": TEXTS,
    "dest": TEXTS,
}


@given(entries=histories(), data=st.data())
def test_any_change_of_a_field_is_refused_or_legal(
    entries: list[Entry], data: st.DataObject
) -> None:
    """Whatever one field of one entry is changed to, no other error than the two comes out."""
    at = data.draw(st.integers(0, len(entries) - 1), label="place")
    name = data.draw(st.sampled_from(sorted(FIELDS)), label="field")
    value = data.draw(FIELDS[name], label="value")
    _replay_or_refuse(_changed(**{name: value})(entries, at))


@given(entries=histories(), data=st.data())
def test_any_change_of_a_fact_is_refused_or_legal(
    entries: list[Entry], data: st.DataObject
) -> None:
    """Whatever JSON a fact of an entry is changed to, no other error than the two comes out."""
    at = data.draw(st.integers(0, len(entries) - 1), label="place")
    facts: Any = json.loads(json.dumps(dict(entries[at].facts)))
    known = ["deadline_ts", "failure", "abandoned", "root", "chart", "settings", "instances"]
    within = facts
    name = data.draw(st.sampled_from(sorted({*known, *facts})), label="fact")
    if isinstance(facts.get(name), dict) and facts[name] and data.draw(st.booleans()):
        within = facts[name]
        name = data.draw(st.sampled_from(sorted(within)), label="inner fact")
    within[name] = data.draw(JSON, label="value")
    _replay_or_refuse(_changed(facts=facts)(entries, at))


def _replay_or_refuse(entries: list[Entry]) -> None:
    try:
        replay(entries)
    except (ReplayDiverged, InvariantViolated) as error:
        refusal: Broken = error
    else:
        return
    assert len(str(refusal)) < 2_000
    assert seq_of(refusal) >= -1


# --- charts and conditions ----------------------------------------------------------------------


def test_a_history_of_another_chart_version_is_refused() -> None:
    """A history that was made under another version of its chart is not replayed by this one."""
    entries = reached("checkpoint", "parked").entries
    facts = {**entries[0].facts, "chart_version": 99}
    error = refused([attrs.evolve(entries[0], facts=facts), *entries[1:]])
    assert "version 99" in str(error)


@pytest.mark.parametrize("chart", ["call", "participant", "nonsense", "../checkpoint", ""])
def test_a_history_of_no_operation_chart_is_refused(chart: str) -> None:
    """The opening entry must name a chart of an operation."""
    entries = opened("checkpoint").entries
    facts = {**entries[0].facts, "chart": chart}
    assert seq_of(refused([attrs.evolve(entries[0], facts=facts)])) == 1


def test_a_beginning_elsewhere_is_refused() -> None:
    """An operation begins in the initial state of its chart."""
    (entry,) = opened("checkpoint").entries
    error = refused([attrs.evolve(entry, dest="parked")])
    assert "a beginning in 'open'" in str(error)


def _renumbered(entries: list[Entry]) -> list[Entry]:
    return [attrs.evolve(entry, seq=seq) for seq, entry in enumerate(entries, 1)]


def test_a_phase_that_ended_without_its_answers_is_refused() -> None:
    """S1: all_answered needs every answer, also where the log has been renumbered."""
    entries = reached("checkpoint", "parked").entries
    answers = [at for at, entry in enumerate(entries) if entry.trigger == "answer"]
    for at in answers:
        error = refused(_renumbered(_dropped(entries, at)))
        assert "S6-condition" in str(error)


def test_a_commit_under_a_lost_lease_is_refused() -> None:
    """S1: a log in which a commit follows the end of a lease in trouble is no legal history."""
    world = reached("checkpoint", "parked", count=1)
    world.wait_until(lambda world: bool(world.outstanding("renew")))
    world.fail("renew", 0)
    world.verb("commit")
    late = [attrs.evolve(entry, at_s=500.0) for entry in world.entries[-2:]]
    assert "S1-park-before-commit" in str(refused([*world.entries[:-2], *late]))


def test_a_recorded_refusal_of_the_operation_is_refused() -> None:
    """An ignored verb leaves no entry, so that an entry of one is none of this core's."""
    world = reached("checkpoint", "preparing", "discarding")
    last = world.entries[-1]
    ignored = attrs.evolve(
        last,
        seq=last.seq + 1,
        instance=None,
        call=None,
        ask=None,
        trigger="discard",
        source="discarding",
        dest="discarding",
    )
    error = refused([*world.entries, ignored])
    assert seq_of(error) == ignored.seq
    assert str(error).endswith(
        "no entry for discard, the journal has discarding -> discarding by discard"
    )


def test_the_first_deviation_is_the_one_that_is_reported() -> None:
    """Of two wrong entries the earlier one is named."""
    entries = reached("checkpoint", "resumed").entries
    wrong = _changed(dest="gone")(_changed(dest="gone")(entries, 12), 5)
    assert seq_of(refused(wrong)) == 6


def test_an_ask_of_a_call_that_the_state_does_not_send_is_refused() -> None:
    """A prepare that is retried after the operation was given up is no legal history (S4)."""
    world = opened("checkpoint", 1)
    world.verb("prepare")
    world.fail("prepare", 0, failure=FATAL)
    last = world.entries[-1]
    ask = attrs.evolve(
        last,
        seq=last.seq + 1,
        instance=world.operation.instances[0],
        call="prepare",
        ask=2,
        trigger="retry",
        source="failed",
        dest="asked",
        facts={"deadline_ts": last.ts},
    )
    assert "'discarding' sends no prepare" in str(refused([*world.entries, ask]))


@pytest.mark.parametrize("deadline", ["1700000100.0", True, None, 1e999, 10**400])
def test_a_deadline_that_is_no_instant_is_refused(deadline: object) -> None:
    """The deadline of an ask is a finite number of epoch seconds."""
    entries = reached("checkpoint", "preparing").entries
    wrong = attrs.evolve(entries[2], facts={"deadline_ts": deadline})
    assert seq_of(refused([*entries[:2], wrong, *entries[3:]])) == 3


# --- in so many words ---------------------------------------------------------------------------


def _opening(**facts: Any) -> Callable[[], list[Entry]]:
    """Return a history whose opening entry has other facts."""

    def forge() -> list[Entry]:
        (entry,) = opened("checkpoint").entries
        return [attrs.evolve(entry, facts={**entry.facts, **facts})]

    return forge


def _prepared(at: int, **fields: Any) -> Callable[[], list[Entry]]:
    """Return a history of a prepare with one entry changed."""
    return lambda: _changed(**fields)(reached("checkpoint", "preparing").entries, at)


def _without(fact: str) -> Callable[[], list[Entry]]:
    def forge() -> list[Entry]:
        (entry,) = opened("checkpoint").entries
        return [attrs.evolve(entry, facts={k: v for k, v in entry.facts.items() if k != fact})]

    return forge


BEGIN = "an opening entry with seq 1"
FACTS = "a chart, instances and settings"
ASK = "idle -> asked by ask of prepare to main/replica-0"

WORDS: list[tuple[Callable[[], list[Entry]], int, str, str]] = [
    (_prepared(0, seq=2), 2, BEGIN, " -> open by open"),
    (
        _prepared(0, instance="i", call="prepare", ask=1),
        1,
        BEGIN,
        " -> open by open of prepare to i",
    ),
    (_without("instances"), 1, FACTS, "no 'instances'"),
    (_opening(instances="ab"), 1, FACTS, "the instances are a list of ids, not 'ab'"),
    (
        _opening(instances=["a", "b", "a", "b", "c"]),
        1,
        FACTS,
        "an operation names each instance once; twice: a, b",
    ),
    (
        _opening(instances=[]),
        1,
        FACTS,
        "an operation without instances has nothing to do; name at least one",
    ),
    (_opening(chart="call"), 1, FACTS, "chart 'call' is of scope 'call', not 'operation'"),
    (
        _opening(chart_version=2),
        1,
        FACTS,
        "chart 'checkpoint' was of version 2 when the operation was opened, this release has 1; "
        "use one that has that version",
    ),
    (
        _opening(chart="sweep"),
        1,
        FACTS,
        "chart 'sweep' sends one of forget, resume, retire, not None",
    ),
    (
        _opening(chart="sweep", call="prepare"),
        1,
        FACTS,
        "chart 'sweep' sends one of forget, resume, retire, not 'prepare'",
    ),
    (_prepared(0, dest="parked"), 1, "a beginning in 'open'", " -> parked by open"),
    (_prepared(2, ask=None), 3, "a call with its instance and ask", ASK),
    (
        _prepared(2, instance=None),
        3,
        "a call with its instance and ask",
        "idle -> asked by ask of prepare to None",
    ),
    (
        _prepared(2, instance="main/replica-9"),
        3,
        "a call to one of 2 instance(s)",
        "idle -> asked by ask of prepare to main/replica-9",
    ),
    (
        _prepared(1, trigger="commit"),
        2,
        "a transition of the chart",
        "chart checkpoint cannot take 'commit' in state 'open' (chart checkpoint v1); "
        "legal here: prepare, discard, cancel, settle",
    ),
    (_prepared(1, dest="parked"), 2, "open -> preparing by prepare", "open -> parked by prepare"),
    (
        _prepared(2, dest="answered"),
        3,
        "idle -> asked by ask",
        "idle -> answered by ask of prepare to main/replica-0",
    ),
    (_prepared(2, facts={}), 3, f"the facts of {ASK}", "no 'deadline_ts'"),
    (
        _prepared(2, facts={"deadline_ts": "soon"}),
        3,
        f"the facts of {ASK}",
        "a deadline is an instant in epoch seconds, not 'soon'",
    ),
    (
        _prepared(1, facts={"root": 7}),
        2,
        "the facts of open -> preparing by prepare",
        "root is a text, not 7",
    ),
]
"""A history to the entry that differs, what the chart gives there, and what the journal has."""


@pytest.mark.parametrize(
    ("forge", "seq", "expected", "found"), WORDS, ids=[f"{row[2]}: {row[3]}" for row in WORDS]
)
def test_what_differs_is_said(
    forge: Callable[[], list[Entry]], seq: int, expected: str, found: str
) -> None:
    """A replay that is refused says at which entry, what belongs there, and what is there."""
    error = refused(forge())
    assert isinstance(error, ReplayDiverged)
    assert (error.seq, error.expected, error.found) == (seq, expected, found)
