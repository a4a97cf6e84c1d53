"""
How much one reply costs the core, and whether that grows with the number of instances.

Run it with `python benchmarks/core_step.py [instances ...]`. Each scenario is timed per event that
goes through `step`, as the median of several runs, and set against a baseline in the same process:
a core that copies a dictionary of all calls for each reply, and a plain look-up, which is the least
that any core could do. Times depend on the machine; the ratios and their growth hardly do.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from gymckpt.core.effects import SendCall
from gymckpt.core.events import FailureRecord, Moment, Replied, TimerFired, Triggered
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import RetryPolicy, Settings
from gymckpt.core.step import Step, open_operation, step

SIZES = (10, 100, 1_000, 10_000)
EVENTS_MIN = 2_000
"""Small operations are run several times over, so that each figure rests on as many events."""
RUNS = 5

NOW = Moment(1_700_000_000.0, 0.0)
SHAKY = FailureRecord(type="ConnectionError", text="reset", transient=True, dead=False)
SETTINGS = Settings(
    control_timeout_s=60.0,
    prepare_timeout_s=300.0,
    reply_grace_s=5.0,
    retries={
        "prepare": RetryPolicy(attempts=2, pause_s=1.0),
        "resume": RetryPolicy(attempts=2, pause_s=1.0),
    },
)


class Driver:
    """An operation, and how many events it has taken."""

    def __init__(self, instances: int) -> None:
        opening = open_operation(
            moment=NOW,
            run="bench",
            operation_id="op",
            chart="checkpoint",
            instances=[f"shard/replica-{index}" for index in range(instances)],
            settings=SETTINGS,
            facts={},
        )
        self.operation: OperationState = opening.operation
        self.at_s = 0.0
        self.replies = 0
        self.spent_s = 0.0
        """Seconds that the replies alone took."""
        self.reached: set[str] = set()

    def moment(self) -> Moment:
        """Return this instant."""
        return Moment(NOW.ts + self.at_s, self.at_s)

    def verb(self, trigger: str, **facts: str) -> list[SendCall]:
        """Take a verb; return what it sends."""
        event = Triggered(moment=self.moment(), trigger=trigger, facts=facts)
        return self._taken(step(self.operation, event))

    def timer(self, name: str, at_s: float) -> list[SendCall]:
        """Fire a timer; return what it sends."""
        self.at_s = at_s
        return self._taken(step(self.operation, TimerFired(moment=self.moment(), timer=name)))

    def reply(
        self, asks: Sequence[SendCall], failure: FailureRecord | None = None
    ) -> list[SendCall]:
        """Let asks come back, the last one first, and time it; return what that sends."""
        moment = self.moment()
        events = [
            Replied(
                moment=moment,
                instance=ask.instance,
                call=ask.call,
                ask=ask.ask,
                outcome="failed" if failure else "answered",
                failure=failure,
            )
            for ask in reversed(asks)
        ]
        operation, sent = self.operation, list[SendCall]()
        began_s = time.perf_counter()
        for event in events:
            taken = step(operation, event)
            operation = taken.operation
            if len(taken.effects) > len(taken.entries):
                sent += self._taken(taken)
        self.spent_s += time.perf_counter() - began_s
        self.replies += len(events)
        self.operation = operation
        self.reached.add(operation.state)
        return sent

    def _taken(self, taken: Step) -> list[SendCall]:
        self.operation = taken.operation
        self.reached.add(self.operation.state)
        return [effect for effect in taken.effects if isinstance(effect, SendCall)]


def answers(driver: Driver) -> None:
    """Time a checkpoint in which every instance answers every call."""
    renewals = driver.reply(driver.verb("prepare"))
    driver.reply(renewals)
    driver.reply(driver.verb("commit", root="root"))
    driver.verb("sealed")
    driver.reply(driver.verb("resume"))
    assert driver.operation.state == "resumed", driver.operation.state


def trouble(driver: Driver) -> None:
    """Time commits that are answered while every renewal has failed once."""
    renewals = driver.reply(driver.verb("prepare"))
    driver.reply(renewals)
    round_two = driver.timer("renew", 10.0)
    commits = driver.verb("commit", root="root")
    driver.reply(round_two, SHAKY)
    driver.reply(commits)
    assert driver.operation.state == "sealing", driver.operation.state


def failures(driver: Driver) -> None:
    """Time a prepare that fails everywhere and is answered at the second try."""
    asks = driver.verb("prepare")
    driver.reply(asks, SHAKY)
    driver.reply(driver.timer("retry.prepare", 1.0))
    assert driver.operation.state == "confirming", driver.operation.state


def late(driver: Driver) -> None:
    """Time resumes whose budget is over everywhere and that are answered afterwards."""
    driver.verb("prepare")
    asks = driver.verb("discard")
    driver.timer("budget.resume", 65.0)
    driver.timer("retry.resume", 66.0)
    driver.timer("budget.resume", 131.0)
    driver.reply(asks)
    assert driver.operation.state == "discarded", driver.operation.state


SCENARIOS: dict[str, Callable[[Driver], None]] = {
    "answers": answers,
    "trouble": trouble,
    "failures": failures,
    "late": late,
}


def per_event_us(scenario: Callable[[Driver], None], instances: int) -> float:
    """Return the median microseconds per reply of a scenario."""
    rounds = max(1, EVENTS_MIN // (2 * instances))
    medians: list[float] = []
    for _ in range(RUNS):
        drivers = [Driver(instances) for _ in range(rounds)]
        for driver in drivers:
            scenario(driver)
        replies = sum(driver.replies for driver in drivers)
        medians.append(sum(driver.spent_s for driver in drivers) / replies * 1e6)
    return statistics.median(medians)


def copying_us(instances: int) -> float:
    """Return the median microseconds per reply of a core that copies all calls for each one."""
    calls = {f"shard/replica-{index}": "asked" for index in range(instances)}
    return _timed(lambda instance: {**calls, instance: "answered"}, list(calls)[:EVENTS_MIN])


def look_up_us(instances: int) -> float:
    """Return the median microseconds of one look-up in a table of all calls."""
    calls = {f"shard/replica-{index}": "asked" for index in range(instances)}
    return _timed(calls.__getitem__, list(calls))


def _timed(act: Callable[[str], object], instances: Sequence[str]) -> float:
    rounds = max(1, EVENTS_MIN // len(instances))
    found: list[float] = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        for _ in range(rounds):
            for instance in instances:
                act(instance)
        found.append((time.perf_counter() - began_s) / (rounds * len(instances)) * 1e6)
    return statistics.median(found)


def report(sizes: Sequence[int]) -> Iterator[str]:
    """Yield the table line by line."""
    yield "median microseconds per reply; (x) is how often it is the cost at the smallest size"
    columns = [*SCENARIOS, "copying core", "look-up", "answers/s", "answers : copying"]
    yield f"{'instances':>9}" + "".join(f"{column:>19}" for column in columns)
    first: dict[str, float] = {}
    for size in sizes:
        costs = {name: per_event_us(scenario, size) for name, scenario in SCENARIOS.items()}
        costs |= {"copying core": copying_us(size), "look-up": look_up_us(size)}
        first = first or costs
        cells = [f"{cost:.2f} (x{cost / first[name]:.1f})" for name, cost in costs.items()]
        cells.append(f"{1e6 / costs['answers']:,.0f}")
        cells.append(f"{costs['answers'] / costs['copying core']:.2f}")
        yield f"{size:>9}" + "".join(f"{cell:>19}" for cell in cells)


if __name__ == "__main__":
    for line in report([int(size) for size in sys.argv[1:]] or SIZES):
        print(line, flush=True)
