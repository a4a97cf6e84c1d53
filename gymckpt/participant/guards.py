"""
The guards of `statecharts/participant.toml`: why a participant says no.

Each looks at the facts that the control plane gathers for one trigger and returns a verdict whose
code is one of those that the wire knows (protocol facts, 12). The reasons are read by people on
the other side of an actor, so they name the participant, the id and the rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from gymckpt.chart import Facts, Guard, Verdict

__all__ = ["GUARDS", "why_illegal"]

_NO_CALLS = frozenset({"ready", "prepare_failed", "expire"})
"""The triggers that come from inside, which nobody can ask for."""

_ALLOWED = Verdict(allowed=True)


def _refusal(facts: Facts, code: str, why: str) -> Verdict:
    reason = f"{facts['server']}: refused for {facts['checkpoint_id']!r}: {why}"
    return Verdict(allowed=False, reason=reason, code=code)


def _fresh_id(facts: Facts) -> Verdict:
    if facts["checkpoint_id"] in facts["stale_ids"]:
        return _refusal(
            facts, "stale_checkpoint", "it was resumed already, and an id is never used again"
        )
    return _ALLOWED


def _same_id(facts: Facts) -> Verdict:
    if facts["holder"] == facts["checkpoint_id"]:
        return _ALLOWED
    if not (fresh := _fresh_id(facts)).allowed:
        return fresh
    why = f"{facts['holder']!r} holds the participant ({facts['phase']}) until it is resumed"
    return _refusal(facts, "checkpoint_conflict", why)


def _other_id(facts: Facts) -> Verdict:
    if facts["holder"] != facts["checkpoint_id"]:
        return _ALLOWED
    return _refusal(facts, "checkpoint_conflict", "it holds the participant")


def _in_time(facts: Facts) -> Verdict:
    if facts["late_s"] < 0:
        return _ALLOWED
    why = f"its deadline passed {facts['late_s']:.3f} s ago by the clock of this host"
    return _refusal(facts, "deadline_exceeded", why)


def _same_request(facts: Facts) -> Verdict:
    verdict = _same_id(facts)
    if not verdict.allowed or facts["same_request"]:
        return verdict
    return _refusal(
        facts, "checkpoint_conflict", "it asked for another directory or other episodes before"
    )


def _nothing_new(facts: Facts) -> Verdict:
    if facts["nothing_new"]:
        return _ALLOWED
    return _refusal(facts, "stale_checkpoint", "it would retire attempts that still may run")


def _both(first: Guard, second: Guard) -> Guard:
    def guard(facts: Facts) -> Verdict:
        verdict = first(facts)
        return second(facts) if verdict.allowed else verdict

    return guard


def why_illegal(facts: Facts, trigger: str, legal: tuple[str, ...]) -> Verdict:
    """
    Say why a trigger without an edge is refused: the id first, since it is the deeper reason.

    Args:
        facts: What a guard would see.
        trigger: The trigger that the chart does not allow.
        legal: The triggers that it does.
    """
    verdict = _fresh_id(facts) if facts["holder"] is None else _same_id(facts)
    if not verdict.allowed:
        return verdict
    calls = ", ".join(call for call in legal if call not in _NO_CALLS)
    why = f"{trigger!r} is not possible while {facts['phase']}; possible: {calls}"
    return _refusal(facts, "invalid_phase", why)


GUARDS: Mapping[str, Guard] = {
    "fresh_id": _fresh_id,
    "same_id": _same_id,
    "other_id": _other_id,
    "same_request": _same_request,
    "nothing_new": _nothing_new,
    "same_id_in_time": _both(_same_id, _in_time),
    "fresh_id_in_time": _both(_fresh_id, _in_time),
}
