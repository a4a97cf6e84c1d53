"""
The instances behind their handles: sending a call, and turning whatever comes back into a future.

A handle is anything with `checkpoint_*` methods whose `.remote(...)` gives an awaitable: a Ray
actor, or an object in this process. Ray is imported only when a reference of it must be cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

from gymckpt.checks import plain_keys
from gymckpt.episodes import require_instance_id, require_shard
from gymckpt.errors import tame

__all__ = [
    "ActorReplaced",
    "HasCheckpointHandles",
    "Interrupted",
    "ShardSet",
    "actors_of",
    "as_then",
    "ask_all",
    "cancel_remote",
    "is_replaced",
    "named_actors",
    "require_handles",
    "send",
    "watch",
]


@runtime_checkable
class HasCheckpointHandles(Protocol):
    """Anything that knows the handle of every instance."""

    @property
    def checkpoint_handles(self) -> Mapping[str, Any]:
        """Instance id to handle, in the order in which instances are asked."""
        ...


def _frozen_handles(raw: Mapping[str, Sequence[Any]]) -> Mapping[str, tuple[Any, ...]]:
    named = plain_keys(raw, "ShardSet.handles")
    return {require_shard(shard): tuple(handles) for shard, handles in named.items()}


@attrs.frozen(kw_only=True)
class ShardSet:
    """
    The handles of a job, by shard and replica.

    Raises:
        TypeError: A shard name is not a string.
        ValueError: A shard name is no plain path component, or is there twice.
    """

    handles: Mapping[str, tuple[Any, ...]] = attrs.field(converter=_frozen_handles)
    """Shard name to the handles of its replicas, in replica order."""

    @property
    def checkpoint_handles(self) -> dict[str, Any]:
        """Instance id to handle, in shard then replica order."""
        return {
            f"{shard}/replica-{index}": handle
            for shard, handles in self.handles.items()
            for index, handle in enumerate(handles)
        }


def require_handles(shard_set: object) -> dict[str, Any]:
    """
    Return the handles of a shard set, checked.

    Args:
        shard_set: Anything with `checkpoint_handles`.

    Raises:
        TypeError: It has none.
        ValueError: There is no instance, or an instance id is malformed.
    """
    if not isinstance(shard_set, HasCheckpointHandles):
        raise TypeError(
            f"a shard set has checkpoint_handles (instance id to handle); "
            f"{type(shard_set).__name__} has not"
        )
    handles = plain_keys(shard_set.checkpoint_handles, "checkpoint_handles")
    if not handles:
        raise ValueError("the shard set has no instance; a checkpoint needs at least one")
    for instance in handles:
        require_instance_id(instance)
    return handles


def actors_of(handles: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """
    Return what an operation keeps of which Ray actors take part in it.

    Args:
        handles: Instance id to handle.

    Returns:
        A fact for its opening entry; nothing where no instance is a Ray actor.
    """
    known = {instance: _actor_of(handle) for instance, handle in handles.items()}
    actors = {instance: actor for instance, actor in known.items() if actor is not None}
    return {_ACTORS: actors} if actors else {}


def is_replaced(opening: Mapping[str, Any], instance: str, handle: object) -> bool:
    """
    Whether the actor that took part in an operation is not the one behind a handle now.

    Nothing of the operation can reach the new one, and nothing that it does for the operation
    concerns the old one.

    Args:
        opening: The facts of the operation's opening entry.
        instance: The instance.
        handle: Its handle now.
    """
    then, now = opening.get(_ACTORS, {}).get(instance), _actor_of(handle)
    return then is not None and now is not None and then != now


def as_then(handles: Mapping[str, Any], opening: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the handles that an operation has which was opened a while ago.

    Args:
        handles: Instance id to handle.
        opening: The facts of its opening entry.

    Returns:
        The handle of each actor that took part, under whatever instance id it stands now. Each call
        to one in whose place another stands fails as one to a dead actor does.
    """
    here = {_actor_of(handle): handle for handle in handles.values()}
    then: Mapping[str, str] = opening.get(_ACTORS, {})
    moved = {instance: here[actor] for instance, actor in then.items() if actor in here}
    return {
        instance: _Replaced() if is_replaced(opening, instance, handle) else handle
        for instance, handle in handles.items()
    } | moved


_ACTORS = "actors"
"""The fact that names the Ray actor of each instance."""


def _actor_of(handle: object) -> str | None:
    """Return which Ray actor a handle is of; Ray never gives an id to two of them."""
    told: Any = getattr(getattr(handle, "_actor_id", None), "hex", None)
    actor_id: object = told() if callable(told) else None
    return actor_id if isinstance(actor_id, str) else None


class ActorReplaced(RuntimeError):
    """The actor that took part is gone: another one stands behind the instance's handle."""

    def __init__(self) -> None:
        super().__init__("the actor that took part is gone, another one has its place")


class _Replaced:
    """Stands for the handle of an actor that was replaced."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("checkpoint_"):
            raise AttributeError(name)
        return self

    def remote(self, *_args: object, **_kwargs: object) -> Any:
        """Fail as a call to a dead actor does."""
        raise ActorReplaced


class Interrupted(Exception):
    """A `KeyboardInterrupt` or `SystemExit` that surfaced in a call, carried past the loop."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(type(original).__name__)
        self.original = original


def send(handle: object, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """
    Send one call and return its reference, an awaitable.

    Args:
        handle: An instance's handle.
        method: The actor method, for example `checkpoint_prepare`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Raises:
        Interrupted: The sending was interrupted.
        BaseException: Whatever the handle raises at once; that is the instance's failure.
    """
    try:
        return getattr(handle, method).remote(*args, **kwargs)
    except (KeyboardInterrupt, SystemExit) as interrupt:
        raise Interrupted(interrupt) from interrupt


def watch(reference: Any) -> asyncio.Future[Any]:
    """
    Return a future for what `reference` comes to; cancelling a Ray one leaves the call running.

    Args:
        reference: What `.remote(...)` gave: a Ray object reference or any other awaitable.
    """
    if isinstance(reference, asyncio.Future):
        return reference  # pyright: ignore[reportUnknownVariableType]
    watching = asyncio.ensure_future(_awaited(reference))
    close: Any = getattr(reference, "close", None) if asyncio.iscoroutine(reference) else None
    if close is not None:  # one that was given up before it began is reported as never awaited
        watching.add_done_callback(lambda _done: close())
    return watching


async def _awaited(reference: Awaitable[Any]) -> Any:
    """Await a reference; an interrupt in it must not tear the event loop down."""
    try:
        return await reference
    except (KeyboardInterrupt, SystemExit) as interrupt:
        raise Interrupted(interrupt) from interrupt


async def ask_all(
    handles: Mapping[str, Any],
    method: str,
    *,
    timeout_s: float,
    cancel_reference: Callable[[Any], None],
) -> tuple[dict[str, Any], dict[str, BaseException]]:
    """
    Ask every instance one question that changes nothing, and wait for the answers with a bound.

    Args:
        handles: Instance id to handle.
        method: The actor method; it takes no arguments.
        timeout_s: How long to wait for all of them.
        cancel_reference: Told of every reference that is no longer waited for.

    Returns:
        The replies, and what the others ended with, both by instance id.

    Raises:
        KeyboardInterrupt: It landed in one of the calls.
    """
    failures: dict[str, BaseException] = {}
    asked: dict[str, tuple[Any, asyncio.Future[Any]]] = {}
    late = frozenset[str]()
    try:
        for instance, handle in handles.items():
            try:
                reference = send(handle, method, (), {})
                asked[instance] = (reference, watch(reference))
            except Interrupted as interrupt:
                raise interrupt.original from None
            except BaseException as error:
                failures[instance] = tame(error)
        if asked:
            await asyncio.wait([future for _, future in asked.values()], timeout=timeout_s)
    finally:
        late = _given_up(asked, cancel_reference)
    replies: dict[str, Any] = {}
    for instance, (_, future) in asked.items():
        if instance in late:
            failures[instance] = TimeoutError(f"no answer to {method} within {timeout_s:g} s")
        elif future.cancelled():
            failures[instance] = asyncio.CancelledError("the call was cancelled")
        elif (failure := future.exception()) is not None:
            if isinstance(failure, Interrupted):
                raise failure.original
            failures[instance] = tame(failure)
        else:
            replies[instance] = future.result()
    return replies, failures


def _given_up(
    asked: Mapping[str, tuple[Any, asyncio.Future[Any]]], cancel_reference: Callable[[Any], None]
) -> frozenset[str]:
    """Stop waiting for every answer that is outstanding, and return from whom."""
    late: set[str] = set()
    for instance, (reference, future) in asked.items():
        future.add_done_callback(_retrieve)
        if future.cancel():
            late.add(instance)
            with contextlib.suppress(Exception):  # best effort, as everywhere
                cancel_reference(reference)
    return frozenset(late)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Look at an exception that nobody waits for any more, so that it is not reported as lost."""
    if not future.cancelled():
        future.exception()


def named_actors(names: Mapping[str, str], *, address: str) -> dict[str, Any]:
    """
    Return the handles of Ray actors that have names, for whoever has nothing but their names.

    Args:
        names: Instance id to the actor's name, as `NAME` or `NAMESPACE/NAME`.
        address: The Ray cluster, as `ray.init` takes it.

    Raises:
        ValueError: There is no actor of such a name.
        OSError: Ray is not installed, or the cluster cannot be reached.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise OSError("Ray is not installed here, so no actor can be reached by name") from error
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    except Exception as error:
        raise ConnectionError(f"the Ray cluster {address!r} cannot be reached: {error}") from error
    found: dict[str, Any] = {}
    for instance, name in names.items():
        namespace, slash, plain = name.rpartition("/")
        try:
            found[instance] = ray.get_actor(plain, namespace=namespace if slash else None)
        except ValueError as error:
            raise ValueError(f"there is no Ray actor named {name!r} for {instance}") from error
    return found


def is_object_ref(reference: object) -> bool:
    """Whether `reference` is a real Ray object reference, judged without importing Ray."""
    return any(
        base.__name__ == "ObjectRef" and base.__module__.split(".")[0] == "ray"
        for base in type(reference).__mro__
    )


def cancel_remote(reference: object) -> None:
    """
    Ask Ray to stop a call that is no longer waited for; best effort, and never an error.

    Args:
        reference: What the call gave; anything but a real Ray reference is left alone.
    """
    if not is_object_ref(reference):
        return
    ray: Any = importlib.import_module("ray")  # only a process that holds a reference has it
    with contextlib.suppress(Exception):
        ray.cancel(reference)
