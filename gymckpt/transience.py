"""
Which failure of one instance may be gone at the next try, and which says that its actor is dead.

The rule is the trainer's own (protocol facts, 2). Ray's, aiohttp's and the trainer's exceptions
are recognised by class name anywhere in the MRO, so that reading a journal on a laptop imports
none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gymckpt.standins import RemoteFailure, cause_on_ray
from gymckpt.wording import guarded

__all__ = ["LASTING_REFUSALS", "is_actor_dead", "is_transient_failure", "refusal_code"]

CAUSE_LINKS_MAX = 8
"""How far a `__cause__` chain is followed when a failure is classified."""

_REFUSAL = "GymCheckpointUnavailable"

_INFRA_NAMES = frozenset({
    # Ray
    "RayActorError", "ActorDiedError", "ActorUnavailableError", "ActorUnschedulableError",
    "TaskUnschedulableError", "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError",
    "OwnerDiedError", "RpcError", "GetTimeoutError", "ObjectFetchTimedOutError", "ObjectLostError",
    "OutOfMemoryError", "ObjectStoreFullError", "RaySystemError",
    # aiohttp
    "ClientConnectionError", "ClientPayloadError",
    # this library, and the trainer's own class of that name
    _REFUSAL,
    # the trainer
    "RolloutInfraFailure", "RolloutTimeout", "GenerationUnavailable", "NoHealthyShards",
    "GymTransportError",
})  # fmt: skip
"""Failures of infrastructure, by class name anywhere in the MRO (protocol facts, 2)."""

LASTING_REFUSALS: Mapping[str, str] = {
    "stale_attempt": "an attempt is refused until its rollout is forgotten",
    "restart_in_scope": "an episode that cannot be captured is refused until it is left out",
    "checkpoint_exists": "another checkpoint is in that directory, and it never changes",
    "rollout_id_required": "the request is malformed",
    "unauthorized": "the token is the wrong one",
    "invalid_checkpoint_state": "what was saved cannot be read",
}
"""The codes of refusals that no other try changes, with the reason. Any other code, known or not,
may be gone at the next try, which has a new id, a new deadline, and finds other work ended."""

_COMMON_NAMES = frozenset({"OutOfMemoryError", "RpcError"})
"""Names of Ray's that others use as well: a GPU that ran out of memory is no node that did."""

_DATA_NAMES = frozenset({"RolloutDataFailure"})
_DEAD_NAMES = frozenset({"RayActorError", "ActorDiedError", "ActorReplaced"})
_ALIVE_NAMES = frozenset({"ActorUnavailableError", "RayTaskError"})
_RETRY_STATUSES = frozenset({408, 429})


def _class_names(error: BaseException) -> frozenset[str]:
    return frozenset(
        base.__name__
        for base in type(error).__mro__
        if base.__name__ not in _COMMON_NAMES or base.__module__.partition(".")[0] == "ray"
    )


def is_actor_dead(error: BaseException) -> bool:
    """
    Whether a failure says that the actor is gone for good, so that nothing is left to reopen.

    Args:
        error: What a call to the actor ended with. Actors run without restarts (protocol facts,
            3), so a dead one stays dead; an unavailable one may come back. One that reports the
            death of another actor (an error that Ray delivered as raised by the call) is alive.
    """
    names = _class_names(error)
    return bool(names & _DEAD_NAMES) and not names & _ALIVE_NAMES


def refusal_code(error: BaseException) -> str:
    """
    Return the code of a refusal, also of one that Ray delivered; empty where there is none.

    Args:
        error: What a call ended with.
    """
    raised = cause_on_ray(error) or error
    code: object = guarded(lambda: getattr(raised, "code", ""), "")
    return code if isinstance(code, str) and _REFUSAL in _class_names(raised) else ""


def _is_infra(error: BaseException) -> bool:
    """Classify one exception by itself, without its causes."""
    names = _class_names(error)
    if "ClientResponseError" in names:
        status: object = guarded(lambda: getattr(error, "status", None), None)
        return isinstance(status, int) and (status >= 500 or status in _RETRY_STATUSES)
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    return bool(names & _INFRA_NAMES)


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the cause; a class that overrides it with something else has none."""
    cause: object = guarded(lambda: error.__cause__, None)
    return cause if isinstance(cause, BaseException) else None


def is_transient_failure(error: BaseException) -> bool:
    """
    Whether one instance's failure may be gone at the next try.

    Args:
        error: What the call ended with. Its `__cause__` chain is followed up to eight links
            (not `__context__`); a failure of data or a lasting refusal anywhere in it wins.

    The classes are those of the trainer's own rule (protocol facts, 2); whatever is unknown is
    not transient, since a retry would only hide it.
    """
    if isinstance(error, RemoteFailure | asyncio.CancelledError | BaseExceptionGroup):
        return False
    seen: set[int] = set()
    link: BaseException | None = error
    found = False
    while link is not None and id(link) not in seen and len(seen) <= CAUSE_LINKS_MAX:
        seen.add(id(link))
        if _class_names(link) & _DATA_NAMES or refusal_code(link) in LASTING_REFUSALS:
            return False
        found = found or _is_infra(link)
        link = _cause_of(link)
    return found
