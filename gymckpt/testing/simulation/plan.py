"""
What a seed stands for: how many instances, which verbs, which faults and when.

A plan is drawn before anything runs. Faults are of two sorts. Those of messages happen to each
message with a probability. The others happen once, at the n-th point of a verb: each append, each
call that leaves, each answer that comes and each file job has a point before and one after it. So
the same fault meets a verb in every one of its phases over the seeds.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Literal

import attrs

__all__ = [
    "KINDS",
    "MESSAGE_KINDS",
    "POINT_KINDS",
    "Fault",
    "Plan",
    "Verb",
    "draw",
    "require_kinds",
    "seeded",
]

MESSAGE_KINDS = ("delay", "reorder", "lose-request", "lose-reply", "duplicate", "garble")
"""What may happen to any message; `garble`: the answer is an error that nobody can pickle."""

POINT_KINDS = (
    "partition", "isolate", "die", "restart", "hang", "block",
    "disk-fail", "disk-full", "disk-torn", "disk-hang", "disk-slow", "disk-apart",
    "manifest-fail", "manifest-full", "manifest-hang",
    "journal-fail", "journal-lost", "journal-hang",
    "clock-step", "clock-skew",
    "crash", "pause", "operator", "cancel", "raise", "beside",
)  # fmt: skip
"""What may happen at a point of a verb; `beside`: another verb is called while it runs."""

KINDS = MESSAGE_KINDS + POINT_KINDS

PROBABILITIES = (0.01, 0.05, 0.2)
"""How likely a fault of messages is, where its kind was drawn at all."""

FAULTLESS_SHARE = 0.05
"""How many of the seeds have no fault at all."""

SQLITE_SHARE = 0.02
"""How many of the seeds have their journal in a file, which takes ten times as long."""

VerbKind = Literal[
    "snapshot", "checkpoint", "uncommitted", "restored", "restore", "retire", "forget", "resume"
]
"""`snapshot` and `restored` go through the facade, `uncommitted` prepares and saves nothing."""


@attrs.frozen(kw_only=True)
class Fault:
    """One fault that happens once."""

    kind: str
    point: int
    """At which point of its verb, counted from 1."""
    target: int
    """Which instance, counted from 0."""
    seconds: float
    """How long it lasts, or by how much a clock steps."""
    choice: int
    """For what else is to be chosen."""


@attrs.frozen(kw_only=True)
class Verb:
    """One thing that a controller does."""

    kind: VerbKind
    body_s: float
    """How long the body of a context manager takes."""
    choice: int
    faults: tuple[Fault, ...] = ()
    body_fails: bool = False
    """Whether the body raises, whatever else happens."""


@attrs.frozen(kw_only=True)
class Plan:
    """One scenario."""

    seed: int
    instances: int
    rollouts: int
    """How many rollouts each instance has at once."""
    turn_s: float
    """How long a turn takes at the most."""
    message_faults: dict[str, float]
    """Kind to probability."""
    verbs: tuple[Verb, ...]
    takeover_s: float
    """How long after a crash the next controller starts."""
    forced: bool
    """Whether it takes over from a controller that seems alive."""
    sqlite: bool = False
    """Whether the journal is a file; in memory otherwise."""
    startup_faults: tuple[Fault, ...] = ()
    """What happens while the second controller recovers."""


def seeded(seed: int, part: str) -> random.Random:
    """
    Return the random numbers of one part of a run, which no other part disturbs.

    Args:
        seed: The run's.
        part: What they are for.
    """
    return random.Random(f"{seed}/{part}")  # noqa: S311 - repeatable, not secret


def require_kinds(names: Collection[str]) -> frozenset[str]:
    """
    Return the kinds of faults of these names.

    Raises:
        ValueError: There is no such kind.
    """
    unknown = sorted(set(names).difference(KINDS))
    if unknown:
        raise ValueError(f"no kind of fault: {', '.join(unknown)}; known: {', '.join(KINDS)}")
    return frozenset(names)


def draw(
    seed: int,
    *,
    instances: int | None = None,
    kinds: Collection[str] = KINDS,
) -> Plan:
    """
    Return the scenario of a seed.

    Args:
        seed: Any number.
        instances: How many instances; None to draw it.
        kinds: Which kinds of faults there may be.
    """
    rng = seeded(seed, "plan")
    count = rng.choice((1, 2, 2, 3, 3, 4, 5, 8)) if instances is None else instances
    allowed = [kind for kind in KINDS if kind in kinds]
    chosen = _some(rng, allowed)
    messages = {kind: rng.choice(PROBABILITIES) for kind in chosen if kind in MESSAGE_KINDS}
    points = [kind for kind in chosen if kind in POINT_KINDS]
    verbs = [_verb(rng, count, points) for _ in range(rng.randint(2, 6))]
    if any(verb.kind in ("restored", "restore") for verb in verbs):
        verbs.insert(0, Verb(kind="checkpoint", body_s=0.0, choice=1))
    return Plan(
        seed=seed,
        instances=count,
        rollouts=rng.choice((1, 1, 2, 3)),
        turn_s=rng.choice((0.3, 2.0, 6.0)),
        message_faults=messages,
        verbs=tuple(verbs),
        takeover_s=rng.choice((0.1, 2.0, 20.0)),
        forced=rng.random() < 0.4,
        startup_faults=tuple(_fault(rng, count, points) for _ in range(rng.choice((0, 0, 1, 2))))
        if points
        else (),
        sqlite=rng.random() < SQLITE_SHARE,
    )


def _some(rng: random.Random, allowed: Sequence[str]) -> list[str]:
    """Draw a few kinds or many: what many at once hide, a few may show."""
    if rng.random() < FAULTLESS_SHARE:
        return []
    share = rng.choice((0.1, 0.25, 0.6))
    chosen = [kind for kind in allowed if rng.random() < share]
    return chosen or ([rng.choice(allowed)] if allowed else [])


_VERBS: Sequence[tuple[VerbKind, int]] = (
    ("snapshot", 6),
    ("checkpoint", 4),
    ("uncommitted", 1),
    ("restored", 5),
    ("restore", 3),
    ("retire", 2),
    ("forget", 1),
    ("resume", 1),
)


def _verb(rng: random.Random, instances: int, points: Sequence[str]) -> Verb:
    kinds: list[VerbKind] = [kind for kind, _ in _VERBS]
    [kind] = rng.choices(kinds, [weight for _, weight in _VERBS])
    faults = rng.choice((0, 1, 1, 2, 3)) if points else 0
    return Verb(
        kind=kind,
        body_s=rng.choice((0.0, 0.1, 3.0, 12.0)),
        choice=rng.randrange(1 << 16),
        faults=tuple(_fault(rng, instances, points) for _ in range(faults)),
    )


def _fault(rng: random.Random, instances: int, points: Sequence[str]) -> Fault:
    return Fault(
        kind=rng.choice(points),
        point=rng.randint(1, rng.choice((10, 8 * instances + 30))),
        target=rng.randrange(instances),
        seconds=round(10 ** rng.uniform(-1.0, 2.3), 3),
        choice=rng.randrange(1 << 16),
    )
