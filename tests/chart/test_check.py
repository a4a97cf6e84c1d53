"""Each fault of a chart is found, said with its path, and nothing else is said."""

import attrs
import pytest

from gymckpt.chart import Chart, Row, chart_names, check_chart, load_chart, parse_chart, rows
from gymckpt.errors import ChartError
from tests.chart.samples import CALL, OPERATION, PARTICIPANT, broken

FAULTS = [
    # names and texts
    (
        OPERATION,
        'name = "mini"',
        'name = "Mini"',
        [
            "name: 'Mini' is no name; a name is a lower-case letter and then lower-case "
            "letters, digits and '_'"
        ],
    ),
    (
        OPERATION,
        'call = "prepare"',
        'call = "Prepare!"',
        [
            "states.asking.call: 'Prepare!' is no name; a name is a lower-case letter and "
            "then lower-case letters, digits and '_'"
        ],
    ),
    (OPERATION, "version = 1", "version = 0", ["version: 0 is no version; the first one is 1"]),
    (
        OPERATION,
        'means = "it has ended"',
        'means = " "',
        ["states.over.means: is empty; say it in words"],
    ),
    (
        OPERATION,
        'run = "the caller begins"',
        'run = ""',
        ["triggers.run: is empty; say it in words"],
    ),
    (
        PARTICIPANT,
        'known = "the visitor is known"',
        'known = ""',
        ["guards.known: is empty; say it in words"],
    ),
    (
        PARTICIPANT,
        'ignore.leave = "nobody is in"',
        'ignore.leave = ""',
        ["states.shut.ignore.leave: is empty; say it in words"],
    ),
    (
        OPERATION,
        'means = "Ask every instance once and let it go on."',
        'means = ""',
        ["means: is empty; say it in words"],
    ),
    # references and use
    (
        OPERATION,
        'on.run = "asking"',
        'on.run = "askin"',
        [
            "states.open.on.run: target 'askin' is not a state; did you mean 'asking'?",
            "states.asking: no path leads here from 'open'",
            "states.writing: no path leads here from 'open'",
            "states.holding: no path leads here from 'open'",
            "states.reopening: no path leads here from 'open'",
        ],
    ),
    (
        OPERATION,
        'initial = "open"',
        'initial = "opn"',
        ["initial: 'opn' is not a state; did you mean 'open'?"],
    ),
    (
        OPERATION,
        'on.run = "asking"',
        'on.run = "asking"\non.rum = "asking"',
        ["states.open.on.rum: 'rum' is not declared in [triggers]; did you mean 'run'?"],
    ),
    (
        CALL,
        'ignore.hang_up = "it',
        'ignore.hang_down = "it has ended"\nignore.hang_up = "it',
        [
            "states.over.ignore.hang_down: 'hang_down' is not declared in [triggers]; did "
            "you mean 'hang_up'?"
        ],
    ),
    (
        PARTICIPANT,
        '[{ to = "taken", guard = "known" }, { to = "shut" }]',
        '[{ to = "taken", guard = "knwon" }, { to = "shut" }]',
        ["states.taken.on.knock: guard 'knwon' is not declared in [guards]; did you mean 'known'?"],
    ),
    (
        OPERATION,
        "[triggers]\n",
        '[triggers]\nnever = "no"\n',
        ["triggers.never: no state takes or ignores it; remove it"],
    ),
    (
        PARTICIPANT,
        "[guards]\n",
        '[guards]\nnever = "no"\n',
        ["guards.never: no edge asks it; remove it"],
    ),
    (
        OPERATION,
        'when.cannot_succeed = "refuse"',
        'when.cannot_succeed = "sealed"',
        [
            "states.asking.when.cannot_succeed: 'sealed' is not a trigger with an edge here; "
            "did you mean 'settle'?"
        ],
    ),
    # one answer for each pair
    (
        PARTICIPANT,
        'on.leave = "shut"',
        "on.leave = []",
        ["states.taken.on.leave: leads nowhere; give a target or leave the trigger out"],
    ),
    (
        PARTICIPANT,
        'on.leave = "shut"',
        'on.leave = [{ to = "shut" }, { to = "taken" }]',
        [
            "states.taken.on.leave: has more than one edge without a guard; only the first "
            "could ever be taken"
        ],
    ),
    (
        PARTICIPANT,
        'on.leave = "shut"',
        'on.leave = [{ to = "shut" }, { to = "taken", guard = "known" }]',
        [
            "states.taken.on.leave: has a guarded edge after one without a guard, which is "
            "always taken; swap them"
        ],
    ),
    (
        PARTICIPANT,
        '[{ to = "taken", guard = "known" }, { to = "shut" }]',
        '[{ to = "taken", guard = "known" }, { to = "shut", guard = "known" }]',
        ["states.taken.on.knock: asks guard 'known' twice; the second edge could never be taken"],
    ),
    (
        PARTICIPANT,
        'on.leave = "shut"',
        'on.leave = "shut"\nignore.leave = "no"',
        ["states.taken.on.leave: is also ignored here; keep one of the two"],
    ),
    # reached and left
    (
        CALL,
        'means = "it rings"\non.hang_up = "over"',
        'means = "it rings"\non.hang_up = "over"\n[states.lost]\nmeans = "x"\non.dial = "over"',
        ["states.lost: no path leads here from 'idle'"],
    ),
    (
        CALL,
        "[states.over]\n",
        '[states.stuck]\nmeans = "x"\non.dial = "stuck"\n[states.over]\n',
        [
            "states.stuck: is a trap; no path leads from here to a final state",
            "states.stuck: no path leads here from 'idle'",
        ],
    ),
    (
        PARTICIPANT,
        '{ to = "shut" }]',
        '{ to = "shut" }, { to = "shut" }]\n[states.stuck]\nmeans = "x"\non.leave = "stuck"',
        [
            "states.stuck: is a trap; no path leads from here back to the initial state",
            "states.taken.on.knock: has more than one edge without a guard; only the first "
            "could ever be taken",
            "states.stuck: no path leads here from 'shut'",
        ],
    ),
    (
        CALL,
        "final = true\n",
        "",
        ["states: none is final; mark the states in which it has ended with final = true"],
    ),
    (
        CALL,
        "final = true\n",
        'final = true\non.dial = "idle"\n',
        ["states.over.on: is final and must not be left"],
    ),
    (
        PARTICIPANT,
        'means = "somebody is in"\n',
        'means = "somebody is in"\nfinal = true\n',
        [
            "states.taken.final: a participant never ends; remove it",
            "states.taken.on: is final and must not be left",
        ],
    ),
    # what an operation does
    (
        CALL,
        'means = "it rings"',
        'means = "it rings"\ncall = "renew"',
        ["states.ringing.call: only a chart of scope 'operation' may have it"],
    ),
    (
        CALL,
        'means = "it rings"',
        'means = "it rings"\nrenews = true',
        ["states.ringing.renews: only a chart of scope 'operation' may have it"],
    ),
    (
        OPERATION,
        "final = true\n",
        'final = true\neffect = "withdraw_manifest"\nbudget = "control"\n',
        [
            "states.over.effect: the state is final, nothing is done in it any more",
            "states.over.budget: the state is final, nothing is done in it any more",
            "states.over.effect: 'withdraw_manifest' may end with 'withdrawn', which has no "
            "edge here",
            "states.over.effect: 'withdraw_manifest' may end with 'withdraw_failed', which "
            "has no edge here",
        ],
    ),
    (
        OPERATION,
        'budget = "prepare"\n',
        "",
        [
            "states.asking: waits for 'prepare' without a bound; add budget = \"prepare\" or "
            '"control"'
        ],
    ),
    (
        OPERATION,
        'effect = "write_manifest"\nbudget = "control"\n',
        'effect = "write_manifest"\n',
        [
            "states.writing: waits for 'write_manifest' without a bound; add budget = "
            '"prepare" or "control"'
        ],
    ),
    (
        OPERATION,
        'means = "nothing was sent"\n',
        'means = "nothing was sent"\nbudget = "control"\n',
        ["states.open.budget: bounds nothing, the state has neither a call nor an effect"],
    ),
    (
        OPERATION,
        'on.seal_failed = "reopening"\n',
        "",
        [
            "states.writing.effect: 'write_manifest' may end with 'seal_failed', which has "
            "no edge here",
            "triggers.seal_failed: no state takes or ignores it; remove it",
        ],
    ),
    (
        OPERATION,
        'when.lease_lost = "lose_lease"\n',
        "",
        ["states.holding.renews: a lease may be lost here; add when.lease_lost"],
    ),
    (
        OPERATION,
        "renews = true\n",
        "",
        ["states.holding.when.lease_lost: no lease is renewed here"],
    ),
    (
        OPERATION,
        'ignore.cancel = "it has ended"\n',
        "",
        ["states.over: 'cancel' may come at any time; give it an edge or ignore it with a reason"],
    ),
    (
        OPERATION,
        'when.all_answered = "all_answered"\n',
        "",
        [
            "states.asking.when: nothing ends the wait for 'prepare' well; add all_answered "
            "or all_settled"
        ],
    ),
    (
        OPERATION,
        'when.cannot_succeed = "refuse"\n',
        "",
        [
            "states.asking.when: nothing ends the wait for 'prepare' badly; add "
            "cannot_succeed or exhausted"
        ],
    ),
    (
        OPERATION,
        'when.all_settled = "all_settled"\n',
        'when.all_answered = "all_settled"\n',
        [
            "states.reopening.when: reopening ends by the lease horizon at the latest; add "
            "all_settled"
        ],
    ),
    (
        OPERATION,
        'means = "nothing was sent"\n',
        'means = "nothing was sent"\nwhen.all_answered = "run"\n',
        ["states.open.when: 'all_answered' is about calls, but the state makes none"],
    ),
    (
        OPERATION,
        'call = "prepare"\n',
        'call = "prepare"\nalso = "retire"\n',
        ["states.asking.when: nothing ends the wait for 'retire'; add all_settled"],
    ),
    (
        OPERATION,
        'call = "resume"\n',
        'call = "resume"\nalso = "resume"\n',
        ["states.reopening.also: 'resume' is the state's call already; remove one of the two"],
    ),
    (
        OPERATION,
        'call = "resume"\n',
        'call = "resume"\nalso = "Retire"\n',
        [
            "states.reopening.also: 'Retire' is no name; a name is a lower-case letter and then "
            "lower-case letters, digits and '_'"
        ],
    ),
    (
        OPERATION,
        'means = "nothing was sent"\n',
        'means = "nothing was sent"\nalso = "retire"\nwhen.all_settled = "run"\n',
        [
            "states.open: waits for 'retire' without a bound; add budget = \"prepare\" or "
            '"control"',
        ],
    ),
    (
        OPERATION,
        'means = "it has ended"\nfinal = true\nignore.discard',
        'means = "it has ended"\nfinal = true\nalso = "retire"\nignore.discard',
        [
            "states.over.also: the state is final, nothing is done in it any more",
            "states.over.when: nothing ends the wait for 'retire'; add all_settled",
            "states.over: waits for 'retire' without a bound; add budget = \"prepare\" or "
            '"control"',
        ],
    ),
    (
        CALL,
        'means = "it rings"\n',
        'means = "it rings"\nalso = "retire"\n',
        ["states.ringing.also: only a chart of scope 'operation' may have it"],
    ),
    (
        OPERATION,
        'call = "resume"\n',
        'call = "renew"\n',
        ["states.reopening.reopens: needs call = 'resume', not 'renew'"],
    ),
    (
        OPERATION,
        'when.all_settled = "all_settled"\n',
        'when.cannot_succeed = "all_settled"\nwhen.all_answered = "all_settled"\n'
        'when.all_settled = "all_settled"\n',
        [
            "states.reopening.when: 'cannot_succeed' stands before 'all_answered', but after "
            "it in state 'asking'; keep one order in the whole chart"
        ],
    ),
]


def problems_of(text: str) -> list[str]:
    """Return what loading a text complains about, line by line."""
    try:
        parse_chart(text, "x.toml")
    except ChartError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize("text", [OPERATION, PARTICIPANT, CALL], ids=["op", "participant", "call"])
def test_samples_are_sound(text: str) -> None:
    """The samples that the other tests break have no problem themselves."""
    assert problems_of(text) == []


@pytest.mark.parametrize("name", chart_names())
def test_shipped_charts_are_sound(name: str) -> None:
    """No shipped chart has a problem, and each is called what its file is called."""
    chart = load_chart(name)
    assert check_chart(chart) == ()
    assert chart.name == name


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"), FAULTS, ids=[row[3][0] for row in FAULTS]
)
def test_fault_is_named(text: str, old: str, new: str, expected: list[str]) -> None:
    """One broken passage gives the problem that belongs to it and what follows from it alone."""
    found = problems_of(broken(text, old, new))
    assert sorted(found) == sorted(f"x.toml: {problem}" for problem in expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('call = "prepare"', 'call = "@opening"'),
        ("[states.open]\n", "[states.open]\nfinal = false\n"),
        ('on.run = "asking"', 'on.run = [{ to = "asking" }]'),
    ],
)
def test_other_spellings_are_no_fault(old: str, new: str) -> None:
    """The call named at opening, a spelled-out default and the long form of an edge are sound."""
    assert problems_of(broken(OPERATION, old, new)) == []


def test_all_problems_are_reported_together() -> None:
    """A chart with three faults is refused once, with three lines."""
    text = broken(OPERATION, 'budget = "prepare"\n', "")
    text = broken(text, "renews = true\n", "")
    text = broken(text, 'call = "resume"', 'call = "renew"')
    assert [line.split(": ")[1] for line in problems_of(text)] == [
        "states.asking",
        "states.holding.when.lease_lost",
        "states.reopening.reopens",
    ]


def test_chart_made_by_hand_is_checked_too() -> None:
    """What the file's shape rules out is found in a chart that never was a file."""
    chart = load_chart("call")
    idle = attrs.evolve(chart.states["idle"], when={"sometimes": "ask"})
    odd = check_chart(attrs.evolve(chart, states={**chart.states, "idle": idle}))
    assert (
        "states.idle.when: 'sometimes' is not a condition; known: all_answered, cannot_succeed, "
        "all_settled, exhausted, lease_lost"
    ) in odd
    misnamed = check_chart(attrs.evolve(chart, states={**chart.states, "idler": idle}))
    assert misnamed == ("states.idler: the state in it is called 'idle'",)


def test_every_name_is_held_to_the_rule() -> None:
    """States, triggers and guards that are misnamed are each found in their own table."""
    door = parse_chart(PARTICIPANT, "door.toml")
    odd = attrs.evolve(
        door,
        states={**door.states, "Ajar": attrs.evolve(door.states["shut"], name="Ajar")},
        triggers={**door.triggers, "Ring": "it rings"},
        guards={**door.guards, "Paid": "the visitor has paid"},
    )
    found = [problem.split(" is no name")[0] for problem in check_chart(odd)]
    assert found[:3] == ["states.Ajar: 'Ajar'", "triggers.Ring: 'Ring'", "guards.Paid: 'Paid'"]


@pytest.mark.parametrize("name", chart_names())
def test_table_is_total(name: str) -> None:
    """Every pair of state and trigger has exactly one row, and legality agrees with the chart."""
    chart = load_chart(name)
    table = list(rows(chart))
    assert [(row.state, row.trigger) for row in table] == [
        (state, trigger) for state in chart.states for trigger in chart.triggers
    ]
    for state in chart.states:
        taken = tuple(
            row.trigger for row in table if row.state == state and row.kind == "transition"
        )
        assert taken == chart.legal(state)


def test_rows_say_what_happens() -> None:
    """A row names its targets with their guards, the reason of an ignore, or nothing."""
    door: Chart = parse_chart(PARTICIPANT, "door.toml")
    assert list(rows(door)) == [
        Row("shut", "knock", "transition", "taken [known] or taken [paid]"),
        Row("shut", "leave", "ignored", "nobody is in"),
        Row("taken", "knock", "transition", "taken [known] or shut"),
        Row("taken", "leave", "transition", "shut"),
    ]
    illegal = [row for row in rows(parse_chart(CALL, "ring.toml")) if row.kind == "illegal"]
    assert Row("over", "dial", "illegal", "") in illegal
