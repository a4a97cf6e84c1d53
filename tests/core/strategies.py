"""Random worlds: legal histories of any operation chart, for properties over what was recorded."""

from __future__ import annotations

from hypothesis import strategies as st

from gymckpt.core.entry import Entry
from gymckpt.core.settings import CALLS, RetryPolicy
from tests.core.driver import DEAD, FATAL, SHAKY, World, settings
from tests.core.histories import OPERATION_CHARTS, opened

ACTS = (
    *("on", "on", "on", "answer", "shaky", "fatal", "dead", "refuse", "late"),
    *("timer", "timer", "cancel", "crash", "insist", "supersede"),
)
FAILURES = {"shaky": SHAKY, "fatal": FATAL, "dead": DEAD}


@st.composite
def worlds(draw: st.DrawFn, *, crashes: bool = True) -> World:
    """Draw a world in which some things have happened."""
    numbers = draw(st.sampled_from((settings(), settings(prepare_timeout_s=5.0, settle_s=0.0))))
    world = opened(draw(st.sampled_from(OPERATION_CHARTS)), draw(st.integers(1, 3)), numbers)
    acts = [act for act in ACTS if crashes or act != "crash"]
    for _ in range(draw(st.integers(0, 9))):
        world.go_on()
    size = draw(st.sampled_from((0, 10, 20)))
    for act in draw(st.lists(st.sampled_from(acts), min_size=size, max_size=size + 5)):
        _act(world, act, draw(st.integers(0, 5)))
    return world


def _act(world: World, act: str, which: int) -> None:
    """Let one thing happen, if it can."""
    operation = world.operation
    if act == "on":
        world.go_on()
    elif act == "timer":
        world.advance()
    elif act == "cancel" and operation.state != "open":
        world.verb("cancel")
    elif act == "insist" and act in operation.row.on:
        world.verb(act)
    elif act == "supersede" and act in operation.row.on:
        world.supersede(which % len(operation.instances), of=slice(which % 3))
    elif act == "crash" and not operation.settled:
        world.take_over(silent_s=float(which))
    elif act == "late" and world.sent:
        world.reply(world.sent[which % len(world.sent)], "answered")
    elif world.asks and act in {"answer", "refuse", *FAILURES}:
        ask = world.asks[which % len(world.asks)]
        outcome = {"answer": "answered", "refuse": "refused"}.get(act, "failed")
        world.reply(ask, outcome, FAILURES.get(act))  # type: ignore[arg-type]


def histories() -> st.SearchStrategy[list[Entry]]:
    """Draw what was recorded in a random world."""
    return worlds().map(lambda world: list(world.entries))


def policies() -> st.SearchStrategy[dict[str, RetryPolicy]]:
    """Draw how some calls are retried."""
    policy = st.builds(
        RetryPolicy, attempts=st.integers(1, 3), pause_s=st.sampled_from((0.0, 0.5, 5.0))
    )
    return st.dictionaries(st.sampled_from(sorted(CALLS)), policy, max_size=4)
