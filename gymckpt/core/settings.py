"""The numbers that bound an operation, fixed and journaled when it is opened."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

import attrs

from gymckpt.values import plain

__all__ = [
    "COMMAND",
    "COMMAND_TIMEOUT_S",
    "HEARTBEATS_PER_TIMEOUT",
    "OWNER_TIMEOUT_S",
    "RENEW",
    "RESUME",
    "RETIRE",
    "SWEEP_CALLS",
    "RetryPolicy",
    "Settings",
    "bare_owner",
    "gone_after_s",
    "owner_saying",
    "same_owner",
]

RENEW = "renew"
RESUME = "resume"
RETIRE = "retire"
SWEEP_CALLS = frozenset({RETIRE, "forget", RESUME})
"""The calls that close no instance, so that one may be sent without a resume to follow."""
CALLS = SWEEP_CALLS | {"prepare", RENEW, "commit", "restore"}
"""All calls that a chart may send."""

OWNER_TIMEOUT_S = 30.0
"""How long after its last heartbeat a controller counts as gone."""

OWNER_TIMEOUT_S_MAX = 86_400.0

HEARTBEATS_PER_TIMEOUT = 6
"""A controller gives this many heartbeats in the time in which it would count as gone."""

COMMAND = ":command"
"""How the token of an owner ends that is an operator's command, and ends without a word."""

COMMAND_TIMEOUT_S = 5.0
"""How long after its last heartbeat a command counts as gone."""

_GIVEN = re.compile(r":(\d{1,9}(?:\.\d{1,30})?(?:e-\d{1,3})?)s\Z", re.ASCII)
"""How the token of a controller ends: with how long it must be silent to count as gone."""


def owner_saying(owner: str, timeout_s: float) -> str:
    """
    Return the token of a controller that says how long it may be silent, so that all can know.

    Others may have another timeout, and must not take it for gone between two heartbeats.

    Args:
        owner: Its token; an operator's command gives heartbeats at a known pace, and says none.
        timeout_s: How long it must be silent to count as gone; at most a day counts.
    """
    if owner.endswith(COMMAND):
        return owner
    return f"{owner}:{min(timeout_s, OWNER_TIMEOUT_S_MAX):g}s"


def gone_after_s(owner: str, timeout_s: float = OWNER_TIMEOUT_S) -> float:
    """
    Return how long after its last heartbeat an owner counts as gone.

    Args:
        owner: The token of the owner.
        timeout_s: How long whoever asks gives a controller; one whose token says that it may be
            silent for longer is given that.
    """
    if owner.endswith(COMMAND):
        return COMMAND_TIMEOUT_S
    given = _GIVEN.search(owner)
    return timeout_s if given is None else max(timeout_s, float(given[1]))


def same_owner(one: str, other: str) -> bool:
    """Whether two tokens are of one owner, whatever each says of how long it may be silent."""
    return bare_owner(one) == bare_owner(other)


def bare_owner(owner: str) -> str:
    """Return a token without what it says of how long its owner may be silent."""
    return _GIVEN.sub("", owner)


RENEW_INTERVAL_MIN_S = 0.01
RENEW_INTERVAL_MAX_S = 10.0
RENEWALS_PER_TIMEOUT = 3
"""A lease is renewed this often within one control timeout (DESIGN, 8)."""


def require_duration(value: object, name: str, *, zero: bool = False) -> float:
    """
    Return `value` as a finite duration in seconds.

    Args:
        value: Any object; `True` and text are no durations.
        name: What to call it in the error.
        zero: Whether zero is allowed.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not finite, or negative, or zero where that is not allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{name} is a number of seconds, not {type(value).__name__}: {value!r:.100}"
        )
    try:
        seconds = float(value)
    except OverflowError:  # an int of hundreds of digits
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not zero):
        bound = "not negative" if zero else "positive"
        raise ValueError(f"{name} must be finite and {bound}, got {seconds!r}")
    return seconds


def _positive(_instance: object, attribute: attrs.Attribute[float], value: object) -> None:
    require_duration(value, attribute.name)


def _count(_instance: object, attribute: attrs.Attribute[int], value: object) -> None:
    if type(value) is not int:
        raise TypeError(f"{attribute.name} is an int, not {type(value).__name__}: {value!r:.100}")
    if value < 1:
        raise ValueError(f"{attribute.name} must be at least 1, got {value}")


def _not_negative(_instance: object, attribute: attrs.Attribute[float], value: object) -> None:
    require_duration(value, attribute.name, zero=True)


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often a call is sent to one instance, and how long it rests in between."""

    attempts: int = attrs.field(validator=_count)
    """How many times at the most; 1 is no retry."""
    pause_s: float = attrs.field(validator=_not_negative)
    """Seconds between a transient failure and the next try."""


def require_policies(raw: object) -> dict[str, RetryPolicy]:
    """
    Return a copy of `raw` if it maps calls to retry policies.

    Args:
        raw: Any object.

    Raises:
        TypeError: It is no mapping, or holds something that is no policy.
        ValueError: There is no call of that name.
    """
    if not isinstance(raw, Mapping):
        raise TypeError(f"retry maps calls to policies; got {type(raw).__name__}: {raw!r:.100}")
    policies: dict[str, RetryPolicy] = {}
    for call, policy in cast("Mapping[object, object]", raw).items():
        if plain(call) not in CALLS:
            known = ", ".join(sorted(CALLS))
            raise ValueError(f"retry names {call!r:.100}, which is no call; calls are {known}")
        if not isinstance(policy, RetryPolicy):
            raise TypeError(f"retry[{call!r}] is a RetryPolicy, not {type(policy).__name__}")
        policies[str(plain(call))] = policy
    return policies


@attrs.frozen(kw_only=True)
class Settings:
    """
    What bounds one operation.

    Raises:
        TypeError: A value is not a number.
        ValueError: A duration is not finite and positive.
    """

    control_timeout_s: float = attrs.field(validator=_positive)
    """Budget of every call but prepare."""
    prepare_timeout_s: float = attrs.field(validator=_positive)
    """Budget of prepare."""
    reply_grace_s: float = attrs.field(validator=_not_negative)
    """How long after its deadline a reply is still waited for."""
    settle_s: float = attrs.field(default=1.0, validator=_not_negative)
    """How long other replies are waited for once a call can no longer succeed (DESIGN, L3)."""
    lease_grace_s: float = attrs.field(default=600.0, validator=_positive)
    """How long after the last deadline an instance stays parked without its controller."""
    sweep_interval_s: float = attrs.field(default=30.0, validator=_positive)
    """Pause between the background tries to reopen what is unconfirmed."""
    retries: Mapping[str, RetryPolicy] = attrs.field(factory=dict[str, RetryPolicy])
    """Call to its policy; a call that is not named is sent once. Renewals go on until the last
    acknowledged deadline whatever their `attempts`."""

    @property
    def renew_interval_s(self) -> float:
        """Seconds between the starts of two renewal rounds."""
        share = self.control_timeout_s / RENEWALS_PER_TIMEOUT
        return max(RENEW_INTERVAL_MIN_S, min(share, RENEW_INTERVAL_MAX_S))

    def retry(self, call: str) -> RetryPolicy:
        """Return the policy of `call`."""
        pause_s = self.renew_interval_s if call == RENEW else 0.0
        return self.retries.get(call, RetryPolicy(attempts=1, pause_s=pause_s))

    def tries(self, call: str) -> float:
        """Return how often `call` is sent to one instance by itself; renewals have no limit."""
        return math.inf if call == RENEW else self.retry(call).attempts

    def budget_s(self, budget: str | None) -> float:
        """Return the seconds that a chart's `budget` stands for."""
        return self.prepare_timeout_s if budget == "prepare" else self.control_timeout_s

    def to_facts(self) -> dict[str, Any]:
        """Return the form in which the opening entry keeps them."""
        return attrs.asdict(self, recurse=True)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Settings:
        """
        Read what `to_facts` wrote.

        Raises:
            KeyError: The retries are missing.
            TypeError: Another field is missing, one is unknown, or one is no number.
            ValueError: A duration is out of range.
        """
        values: dict[str, Any] = dict(facts)
        retries: dict[str, Any] = dict(values.pop("retries"))
        policies = {call: RetryPolicy(**policy) for call, policy in retries.items()}
        return cls(**values, retries=policies)
