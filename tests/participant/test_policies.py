"""Policies whose whole state is JSON, and the JSON of observations and actions."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from gymckpt.participant.policies import POLICIES, json_of, native_action

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(5),
    "discrete from 3": spaces.Discrete(4, start=3),
    "multi-discrete": spaces.MultiDiscrete([3, 1, 7]),
    "multi-binary": spaces.MultiBinary(4),
    "box": spaces.Box(-2.0, 3.0, (2, 2), np.float64),
    "box without a low end": spaces.Box(np.array([-np.inf]), np.array([5.0]), dtype=np.float64),
    "box without a high end": spaces.Box(np.array([5.0]), np.array([np.inf]), dtype=np.float64),
    "box without ends": spaces.Box(-np.inf, np.inf, (3,), np.float64),
}
OBSERVATIONS = st.recursive(
    st.integers(-1000, 1000) | st.floats(-1e3, 1e3) | st.booleans(),
    lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=6,
)


def through_json(state: Any) -> Any:
    text = json.dumps(state, allow_nan=False)
    assert json.loads(text, parse_int=_no_big) == state
    return json.loads(text)


def _no_big(digits: str) -> int:
    number = int(digits)
    assert abs(number) < 2**53, "a reader with doubles would lose digits"
    return number


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=15)
@given(data=st.data(), seed=st.integers(0, 2**64))
def test_a_policy_goes_on_from_its_state(
    name: str, space: spaces.Space[Any], data: st.DataObject, seed: int
) -> None:
    """One that was saved as JSON after any turn chooses exactly what the original chooses."""
    shape = data.draw(OBSERVATIONS)
    policy = POLICIES[name](action_space=space, seed=seed, state=None)
    for _ in range(data.draw(st.integers(0, 4))):
        policy.act(shape)
    copy = POLICIES[name](action_space=space, seed=0, state=through_json(policy.to_state()))
    for _ in range(4):
        action = policy.act(shape)
        assert copy.act(shape) == action == json.loads(json.dumps(action))
        assert space.contains(native_action(space, action))
    assert copy.to_state() == policy.to_state()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_state_does_not_change_when_the_policy_goes_on(name: str) -> None:
    """What was handed out for a write is not touched by later turns."""
    policy = POLICIES[name](action_space=spaces.Discrete(3), seed=1, state=None)
    policy.act([1.0, 2.0])
    state = policy.to_state()
    before = json.dumps(state)
    policy.act([3.0, 4.0])
    assert json.dumps(state) == before != json.dumps(policy.to_state())


def test_the_running_statistics_matter() -> None:
    """With the same generator, other observations before lead to other choices now."""
    space = spaces.Box(0.0, 1.0, (1,), np.float64)
    make = POLICIES["running-statistics"]
    one, other = (make(action_space=space, seed=1, state=None) for _ in range(2))
    one.act([0.0])
    other.act([10.0])
    assert one.act([1.0]) != other.act([1.0])


def test_a_policy_is_not_in_step_with_its_environment() -> None:
    """The same seed gives an environment and its policy different random numbers."""
    policy = POLICIES["random"](action_space=spaces.Box(0, 1, (4,), np.float64), seed=5, state=None)
    assert policy.act(None) != np.random.default_rng(5).random(4).tolist()


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize(
    "state",
    [
        {},
        {"generator": None},
        {"generator": {"state": "x", "inc": "1", "has_uint32": 0, "uinteger": 0}},
        {"generator": {"state": "-1", "inc": "1", "has_uint32": 0, "uinteger": 0}},
        {"generator": {"state": "1"}},
        {"generator": [], "count": "x", "means": 5, "squares": []},
    ],
)
def test_a_state_of_something_else_is_refused(name: str, state: dict[str, Any]) -> None:
    """A damaged state is a ValueError, not a policy that begins anew."""
    with pytest.raises(ValueError, match="no saved state"):
        POLICIES[name](action_space=spaces.Discrete(3), seed=1, state=state)


@pytest.mark.parametrize("changes", [{"count": "x"}, {"means": 5}, {"squares": ["x"]}])
def test_damaged_statistics_are_refused(changes: dict[str, Any]) -> None:
    """Statistics of another shape are a ValueError."""
    make = POLICIES["running-statistics"]
    state = make(action_space=spaces.Discrete(3), seed=1, state=None).to_state()
    with pytest.raises(ValueError, match="no saved statistics"):
        make(action_space=spaces.Discrete(3), seed=1, state={**state, **changes})


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_space_that_no_policy_knows_is_refused(name: str) -> None:
    """Text, for example, needs a policy of one's own."""
    with pytest.raises(ValueError, match="pass one that can"):
        POLICIES[name](action_space=spaces.Text(5), seed=1, state=None)


def test_statistics_are_of_numbers() -> None:
    """An observation with text in it is a ValueError that shows it."""
    policy = POLICIES["running-statistics"](action_space=spaces.Discrete(2), seed=1, state=None)
    with pytest.raises(ValueError, match="not of 'up'"):
        policy.act({"way": "up"})


@given(st.integers(0, 2**32))
def test_observations_are_exact(seed: int) -> None:
    """Single precision numbers, tuples, mappings and arrays come back with equal values."""
    space = spaces.Dict(
        {
            "box": spaces.Box(-1e3, 1e3, (3,), np.float32),
            "pair": spaces.Tuple((spaces.Discrete(4), spaces.MultiBinary(2))),
        }
    )
    space.seed(seed)
    observation = space.sample()
    plain = json.loads(json.dumps(json_of(observation)))
    assert np.array_equal(np.array(plain["box"], np.float32), observation["box"])
    assert plain["pair"][0] == observation["pair"][0]
    assert plain["pair"][1] == observation["pair"][1].tolist()


def test_an_observation_that_is_no_data_is_refused() -> None:
    """An object in an observation is a ValueError that shows it."""
    with pytest.raises(ValueError, match="which is not JSON data"):
        json_of([1, {"a": object()}])


def test_gymnasiums_own_observations_are_data() -> None:
    """The first observation of an environment with a float32 box equals its JSON form."""
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    assert json_of(observation) == [float(number) for number in observation]
    env.close()
