"""
What makes a chart wrong, and its whole table.

Every check is a function from a chart to problems, each a path into the chart and a sentence with
the way out. A chart that passes is total, has no dead ends, and cannot wait without a bound. The
loader runs all of them and refuses a chart that has any problem; nothing here raises.

The scheduler itself fires a few triggers whatever the chart is about: a caller may be cancelled,
an operator may give up, recovery must settle, a lease may be lost, a manifest may fail to be
written. The checks hold an operation chart to having an answer for each of them wherever it can
happen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from gymckpt.chart.model import Chart, Condition, Edge, FileEffect, State
from gymckpt.errors import did_you_mean

__all__ = ["AT_OPENING", "Row", "check_chart", "path_to", "rows"]

NAME = re.compile(r"[a-z][a-z0-9_]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,100}")
AT_OPENING = "@opening"
"""The call of a state whose call the operation names when it is opened."""

RESUME = "resume"
ANY_TIME = ("discard", "cancel", "settle")
"""The triggers that may reach an operation in every state."""

FILE_ENDS: Mapping[FileEffect, tuple[str, ...]] = {
    "write_manifest": ("sealed", "seal_failed"),
    "withdraw_manifest": ("withdrawn", "withdraw_failed"),
}
"""File effect to the triggers that say how it ended."""

LEASE_LOST: Condition = "lease_lost"
"""The one condition that is not over the state's calls, but over the leases that it renews."""

GOOD_ENDS: tuple[Condition, ...] = ("all_answered", "all_settled")
BAD_ENDS: tuple[Condition, ...] = ("cannot_succeed", "exhausted")


class Row(NamedTuple):
    """One cell of a chart's total table."""

    state: str
    trigger: str
    kind: Literal["transition", "ignored", "illegal"]
    detail: str
    """The targets with their guards, the reason for ignoring, or nothing."""


def rows(chart: Chart) -> Iterator[Row]:
    """
    Yield what every trigger does in every state, in the order of the file.

    Args:
        chart: A chart that passes `check_chart`.
    """
    for state in chart.states.values():
        for trigger in chart.triggers:
            if trigger in state.on:
                targets = " or ".join(_target(edge) for edge in state.on[trigger])
                yield Row(state.name, trigger, "transition", targets)
            elif trigger in state.ignore:
                yield Row(state.name, trigger, "ignored", state.ignore[trigger])
            else:
                yield Row(state.name, trigger, "illegal", "")


def check_chart(chart: Chart) -> tuple[str, ...]:
    """
    Return every problem of a chart, each beginning with the path of what is wrong.

    Args:
        chart: Any chart, also one that could never be fired.
    """
    misnamed = tuple(
        f"{path_to('states', key)}: the state in it is called {state.name!r:.100}"
        for key, state in chart.states.items()
        if state.name != key
    )
    return misnamed or tuple(problem for check in _CHECKS for problem in check(chart))


def path_to(*keys: str | int) -> str:
    """Write the path of a key or of an array's element as TOML would, for messages."""
    path = ""
    for key in keys:
        if isinstance(key, int):
            path += f"[{key}]"
        else:
            path += f".{key}" if _BARE_KEY.fullmatch(key) else f".{key!r:.100}"
    return path.removeprefix(".")


def _target(edge: Edge) -> str:
    return edge.to if edge.guard is None else f"{edge.to} [{edge.guard}]"


def _edges(chart: Chart) -> Iterator[tuple[str, State, str, Edge]]:
    """Yield every edge with its path, its state and its trigger."""
    for state in chart.states.values():
        for trigger, edges in state.on.items():
            for edge in edges:
                yield path_to("states", state.name, "on", trigger), state, trigger, edge


# --- names and texts ----------------------------------------------------------------------------


def _check_names(chart: Chart) -> Iterator[str]:
    tables = {"states": chart.states, "triggers": chart.triggers, "guards": chart.guards}
    named = [("name", chart.name)]
    named += [(path_to(table, name), name) for table, names in tables.items() for name in names]
    named += [
        (path_to("states", state.name, key), call)
        for state in chart.states.values()
        for key, call in (("call", state.call), ("also", state.also))
        if call is not None and call != AT_OPENING
    ]
    for path, name in named:
        if not NAME.fullmatch(name):
            yield (
                f"{path}: {name!r:.100} is no name; a name is a lower-case letter and then "
                "lower-case letters, digits and '_'"
            )
    if chart.version < 1:
        yield f"version: {chart.version} is no version; the first one is 1"


def _check_texts(chart: Chart) -> Iterator[str]:
    texts = [("means", chart.means)]
    texts += [(path_to("triggers", name), means) for name, means in chart.triggers.items()]
    texts += [(path_to("guards", name), means) for name, means in chart.guards.items()]
    for state in chart.states.values():
        texts.append((path_to("states", state.name, "means"), state.means))
        texts += [
            (path_to("states", state.name, "ignore", trigger), reason)
            for trigger, reason in state.ignore.items()
        ]
    for path, text in texts:
        if not text.strip():
            yield f"{path}: is empty; say it in words"


# --- what is named exists, what exists is used --------------------------------------------------


def _check_references(chart: Chart) -> Iterator[str]:
    if chart.initial not in chart.states:
        yield f"initial: {_unknown(chart.initial, 'a state', chart.states)}"
    for path, _, _, edge in _edges(chart):
        if edge.to not in chart.states:
            yield f"{path}: target {_unknown(edge.to, 'a state', chart.states)}"
        if edge.guard is not None and edge.guard not in chart.guards:
            yield f"{path}: guard {_unknown(edge.guard, 'declared in [guards]', chart.guards)}"
    for state in chart.states.values():
        for table, used in (("on", state.on), ("ignore", state.ignore)):
            for trigger in used:
                if trigger not in chart.triggers:
                    path = path_to("states", state.name, table, trigger)
                    yield f"{path}: {_unknown(trigger, 'declared in [triggers]', chart.triggers)}"


def _check_use(chart: Chart) -> Iterator[str]:
    triggers = {name for state in chart.states.values() for name in (*state.on, *state.ignore)}
    guards = {edge.guard for _, _, _, edge in _edges(chart)}
    for name in chart.triggers:
        if name not in triggers:
            yield f"{path_to('triggers', name)}: no state takes or ignores it; remove it"
    for name in chart.guards:
        if name not in guards:
            yield f"{path_to('guards', name)}: no edge asks it; remove it"


def _unknown(name: str, what: str, known: Iterable[str]) -> str:
    return f"{name!r:.100} is not {what}{did_you_mean(name, known)}"


# --- one answer for each pair of state and trigger ----------------------------------------------


def _check_edges(chart: Chart) -> Iterator[str]:
    for state in chart.states.values():
        for trigger, edges in state.on.items():
            path = path_to("states", state.name, "on", trigger)
            yield from (f"{path}: {problem}" for problem in _edge_problems(edges))
            if trigger in state.ignore:
                yield f"{path}: is also ignored here; keep one of the two"


def _edge_problems(edges: tuple[Edge, ...]) -> Iterator[str]:
    if not edges:
        yield "leads nowhere; give a target or leave the trigger out"
    guards = [edge.guard for edge in edges]
    if guards.count(None) > 1:
        yield "has more than one edge without a guard; only the first could ever be taken"
    if None in guards and any(guards[guards.index(None) :]):
        yield "has a guarded edge after one without a guard, which is always taken; swap them"
    for guard in sorted({guard for guard in guards if guard and guards.count(guard) > 1}):
        yield f"asks guard {guard!r} twice; the second edge could never be taken"


# --- every state is reached and left ------------------------------------------------------------


def _check_reach(chart: Chart) -> Iterator[str]:
    if chart.initial not in chart.states:
        return
    onward: dict[str, set[str]] = {name: set() for name in chart.states}
    back: dict[str, set[str]] = {name: set() for name in chart.states}
    for _, state, _, edge in _edges(chart):
        if edge.to in chart.states:
            onward[state.name].add(edge.to)
            back[edge.to].add(state.name)
    reached = _closure({chart.initial}, onward)
    for name in chart.states:
        if name not in reached:
            yield f"{path_to('states', name)}: no path leads here from {chart.initial!r}"
    ends = {chart.initial} if chart.scope == "participant" else chart.final_states
    goal = "back to the initial state" if chart.scope == "participant" else "to a final state"
    ending = _closure(ends, back)
    for name in chart.states:
        if ends and name not in ending:
            yield f"{path_to('states', name)}: is a trap; no path leads from here {goal}"


def _closure(start: Iterable[str], steps: Mapping[str, set[str]]) -> set[str]:
    found = set(start)
    waiting = list(found)
    while waiting:
        fresh = steps[waiting.pop()] - found
        found |= fresh
        waiting.extend(fresh)
    return found


def _check_ends(chart: Chart) -> Iterator[str]:
    if chart.scope == "participant":
        for name in chart.final_states:
            yield f"{path_to('states', name, 'final')}: a participant never ends; remove it"
    elif not chart.final_states:
        yield "states: none is final; mark the states in which it has ended with final = true"
    for state in chart.states.values():
        if state.final and state.on:
            yield f"{path_to('states', state.name, 'on')}: is final and must not be left"


# --- what states of an operation do -------------------------------------------------------------


def _check_scope(chart: Chart) -> Iterator[str]:
    """Only an operation sends calls and touches files, and not when it has ended."""
    for state in chart.states.values():
        doing = [key for key in ("call", "also", "budget", "effect", "when") if getattr(state, key)]
        doing += [key for key in ("renews", "reopens") if getattr(state, key)]
        for key in doing:
            path = path_to("states", state.name, key)
            if chart.scope != "operation":
                yield f"{path}: only a chart of scope 'operation' may have it"
            elif state.final:
                yield f"{path}: the state is final, nothing is done in it any more"


def _check_waiting(chart: Chart) -> Iterator[str]:
    if chart.scope == "operation":
        for state in chart.states.values():
            path = path_to("states", state.name)
            yield from (f"{path}{problem}" for problem in _waiting_problems(state))


def _waiting_problems(state: State) -> Iterator[str]:
    does = state.call or state.also or state.effect
    if does and state.budget is None:
        yield f': waits for {does!r} without a bound; add budget = "prepare" or "control"'
    if not does and state.budget is not None:
        yield ".budget: bounds nothing, the state has neither a call nor an effect"
    if state.also is not None and state.also == state.call:
        yield f".also: {state.also!r} is the state's call already; remove one of the two"
    for trigger in FILE_ENDS[state.effect] if state.effect else ():
        if trigger not in state.on:
            yield f".effect: {state.effect!r} may end with {trigger!r}, which has no edge here"
    if state.renews and LEASE_LOST not in state.when:
        yield f".renews: a lease may be lost here; add when.{LEASE_LOST}"
    if not state.renews and LEASE_LOST in state.when:
        yield f".when.{LEASE_LOST}: no lease is renewed here"
    for trigger in ANY_TIME:
        if trigger not in state.on and trigger not in state.ignore:
            yield f": {trigger!r} may come at any time; give it an edge or ignore it with a reason"


def _check_conditions(chart: Chart) -> Iterator[str]:
    for state in chart.states.values():
        path = path_to("states", state.name, "when")
        for condition, trigger in state.when.items():
            if condition not in get_args(Condition):
                yield f"{path}: {_unknown(condition, 'a condition', get_args(Condition))}"
            if trigger not in state.on:
                what = _unknown(trigger, "a trigger with an edge here", state.on)
                yield f"{path}.{condition}: {what}"
        if chart.scope == "operation":
            yield from (f"{path}: {problem}" for problem in _condition_problems(state))
        if state.reopens and state.call != RESUME:
            yield (
                f"{path_to('states', state.name, 'reopens')}: needs call = {RESUME!r}, "
                f"not {state.call!r}"
            )


def _condition_problems(state: State) -> Iterator[str]:
    if state.also is not None and "all_settled" not in state.when:
        yield f"nothing ends the wait for {state.also!r}; add all_settled"
    if state.call is None:
        for condition in state.when:
            if condition in (*GOOD_ENDS, *BAD_ENDS) and not (
                state.also and condition == "all_settled"
            ):
                yield f"{condition!r} is about calls, but the state makes none"
        return
    if not any(condition in state.when for condition in GOOD_ENDS):
        yield f"nothing ends the wait for {state.call!r} well; add {' or '.join(GOOD_ENDS)}"
    if state.reopens and "all_settled" not in state.when:
        yield "reopening ends by the lease horizon at the latest; add all_settled"
    if not state.reopens and not any(condition in state.when for condition in BAD_ENDS):
        yield f"nothing ends the wait for {state.call!r} badly; add {' or '.join(BAD_ENDS)}"


def _check_condition_order(chart: Chart) -> Iterator[str]:
    """Where two conditions may hold at once, the first one listed wins: everywhere the same."""
    first: dict[tuple[str, str], str] = {}
    for state in chart.states.values():
        order = list(state.when)
        for index, earlier in enumerate(order):
            for later in order[index + 1 :]:
                if (later, earlier) in first:
                    yield (
                        f"{path_to('states', state.name, 'when')}: {earlier!r} stands before "
                        f"{later!r}, but after it in state {first[later, earlier]!r}; "
                        "keep one order in the whole chart"
                    )
                first.setdefault((earlier, later), state.name)


_CHECKS: tuple[Callable[[Chart], Iterator[str]], ...] = (
    _check_names,
    _check_texts,
    _check_references,
    _check_use,
    _check_edges,
    _check_reach,
    _check_ends,
    _check_scope,
    _check_waiting,
    _check_conditions,
    _check_condition_order,
)
