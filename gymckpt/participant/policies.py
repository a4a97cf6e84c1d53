"""
Policies that keep state between turns and can say all of it as JSON.

They stand in for a policy model: cheap, seeded and exact, so that an episode that was saved and
continued elsewhere can be compared with one that never stopped. A deployment takes a mapping of
names to factories; pass one of your own, `{**POLICIES, "mine": factory}`, to add to these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, cast

import numpy as np
from gymnasium import spaces

from gymckpt.errors import show

__all__ = [
    "POLICIES",
    "Policy",
    "PolicyFactory",
    "RandomPolicy",
    "RunningStatisticsPolicy",
    "json_of",
    "native_action",
]

_POLICY_STREAM = 1
"""Keeps a policy's random numbers apart from those of an environment with the same seed."""

_WIDTH = 2.0
"""How wide an interval without an end is taken to be when an action is chosen."""


class Policy(Protocol):
    """Chooses actions; everything that influences the next choice is in `to_state`."""

    def act(self, observation: Any) -> Any:
        """Return the action for an observation, both as JSON."""
        ...

    def to_state(self) -> dict[str, Any]:
        """Return all that the next choices depend on, as JSON that nobody changes later."""
        ...


class PolicyFactory(Protocol):
    """Makes a policy: a new one from a seed, or a saved one from its state."""

    def __call__(
        self, *, action_space: spaces.Space[Any], seed: int, state: Mapping[str, Any] | None
    ) -> Policy:
        """
        Make a policy.

        Args:
            action_space: What it chooses from.
            seed: The episode's seed.
            state: What `to_state` returned, or None for a policy that has not acted.

        Raises:
            ValueError: The space is none that it can choose from, or the state is none of its.
        """
        ...


# --- spaces and JSON ----------------------------------------------------------------------------


def json_of(value: Any) -> Any:
    """
    Return an observation or action as JSON data, exactly: floats keep their value.

    Raises:
        ValueError: It holds something that has no place in JSON.
    """
    if isinstance(value, np.ndarray | np.generic):
        return json_of(cast("Any", value).tolist())
    if isinstance(value, Mapping):
        fields = cast("Mapping[object, object]", value)
        return {str(key): json_of(item) for key, item in fields.items()}
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return [json_of(item) for item in items]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"an observation or action holds {show(value)}, which is not JSON data")


def native_action(space: spaces.Space[Any], action: Any) -> Any:
    """Return an action that was JSON in the form that an environment with `space` takes."""
    if isinstance(space, spaces.Discrete):
        return int(action)
    array = cast("Any", space)
    return np.asarray(action, dtype=array.dtype).reshape(array.shape)


def _size(space: spaces.Space[Any]) -> int:
    """Return how many numbers choose one action of a space."""
    if isinstance(space, spaces.Discrete):
        return 1
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box):
        return int(np.prod(space.shape))
    raise ValueError(f"no shipped policy can choose from {show(space)}; pass one that can")


def _pick(space: spaces.Space[Any], shares: list[float]) -> Any:
    """Turn numbers from 0 to below 1, one for each dimension, into an action as JSON."""
    if isinstance(space, spaces.Discrete):
        return int(space.start) + int(shares[0] * int(space.n))
    if isinstance(space, spaces.MultiBinary):
        return [int(share * 2) for share in shares]
    if isinstance(space, spaces.MultiDiscrete):
        counts: list[int] = cast("Any", space).nvec.ravel().tolist()
        return [int(share * count) for share, count in zip(shares, counts, strict=True)]
    box = cast("Any", space)
    ends = zip(box.low.ravel().tolist(), box.high.ravel().tolist(), shares, strict=True)
    return [_between(low, high, share) for low, high, share in ends]


def _between(low: float, high: float, share: float) -> float:
    """Return a point of an interval; an infinite end is drawn near, to a width of `_WIDTH`."""
    if math.isinf(low):
        low = -_WIDTH / 2 if math.isinf(high) else high - _WIDTH
    if math.isinf(high):
        high = low + _WIDTH
    return low + share * (high - low)


# --- random numbers as data ---------------------------------------------------------------------


def _new_generator(seed: int) -> np.random.Generator:
    sequence = np.random.SeedSequence(seed, spawn_key=(_POLICY_STREAM,))
    return np.random.Generator(np.random.PCG64(sequence))


def _generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return a generator's state; its 128-bit numbers go as text, as other readers lose digits."""
    state = cast("dict[str, Any]", generator.bit_generator.state)
    numbers = cast("dict[str, int]", state["state"])
    return {
        "state": str(numbers["state"]),
        "inc": str(numbers["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def _generator_of(state: object) -> np.random.Generator:
    bits = np.random.PCG64()
    try:
        fields = cast("dict[str, Any]", state)
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": int(fields["state"]), "inc": int(fields["inc"])},
            "has_uint32": fields["has_uint32"],
            "uinteger": fields["uinteger"],
        }
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{show(state)} is no saved state of a random generator") from error
    return np.random.Generator(bits)


# --- the policies -------------------------------------------------------------------------------


class RandomPolicy:
    """Chooses uniformly; its state is that of its random generator."""

    def __init__(
        self, *, action_space: spaces.Space[Any], seed: int, state: Mapping[str, Any] | None
    ) -> None:
        self._space = action_space
        self._size = _size(action_space)
        self._generator = (
            _new_generator(seed) if state is None else _generator_of(state.get("generator"))
        )

    def act(self, observation: Any) -> Any:
        """Return a random action, whatever was observed."""
        return _pick(self._space, self._generator.random(self._size).tolist())

    def to_state(self) -> dict[str, Any]:
        """Return the generator's state."""
        return {"generator": _generator_state(self._generator)}


class RunningStatisticsPolicy:
    """
    Compares each observation with the running mean and variance of all before it, plus noise.

    The statistics are Welford's, one pair for each number of an observation; what is observed now
    moves every later choice, so a state that was lost shows at once.
    """

    def __init__(
        self, *, action_space: spaces.Space[Any], seed: int, state: Mapping[str, Any] | None
    ) -> None:
        self._space = action_space
        self._size = _size(action_space)
        self._count = 0
        self._means: list[float] = []
        self._squares: list[float] = []
        if state is None:
            self._generator = _new_generator(seed)
            return
        self._generator = _generator_of(state.get("generator"))
        try:
            self._count = int(state["count"])
            self._means = [float(mean) for mean in state["means"]]
            self._squares = [float(square) for square in state["squares"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{show(state)} are no saved statistics") from error

    def act(self, observation: Any) -> Any:
        """Return the action that the observation's distance from the usual suggests."""
        numbers = _numbers(observation)
        self._count += 1
        if self._count == 1:
            self._means, self._squares = list(numbers), [0.0] * len(numbers)
        score = 0.0
        for index, number in enumerate(numbers):
            before = number - self._means[index]
            self._means[index] += before / self._count
            self._squares[index] += before * (number - self._means[index])
            score += before / math.sqrt(1e-8 + self._squares[index] / self._count)
        noise = self._generator.normal(size=self._size).tolist()
        shares = [min(0.5 + 0.5 * math.tanh(score + part), 1 - 1e-9) for part in noise]
        return _pick(self._space, shares)

    def to_state(self) -> dict[str, Any]:
        """Return the statistics and the generator's state."""
        return {
            "count": self._count,
            "means": list(self._means),
            "squares": list(self._squares),
            "generator": _generator_state(self._generator),
        }


def _numbers(observation: Any) -> list[float]:
    """Flatten an observation; names of a mapping in sorted order, booleans as 0 and 1."""
    if isinstance(observation, dict):
        fields = cast("dict[str, object]", observation)
        return [number for name in sorted(fields) for number in _numbers(fields[name])]
    if isinstance(observation, list):
        items = cast("list[object]", observation)
        return [number for item in items for number in _numbers(item)]
    if isinstance(observation, bool | int | float):
        return [float(observation)]
    raise ValueError(f"statistics are of numbers, not of {show(observation)}")


POLICIES: Mapping[str, PolicyFactory] = MappingProxyType(
    {"random": RandomPolicy, "running-statistics": RunningStatisticsPolicy}
)
"""The shipped policies by name."""
