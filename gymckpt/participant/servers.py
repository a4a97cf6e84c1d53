"""
The servers of one deployment, and what is done to their control planes together.

A call reaches all of them or none: a control plane is pure, so when the third one refuses, what
the first two had accepted is taken back before anything acted on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar, get_args

import attrs

from gymckpt.episodes import require_shard
from gymckpt.errors import sample, show
from gymckpt.participant.control import ControlPlane, RecordedCall

__all__ = ["CALLERS_FIRST", "KINDS", "Kind", "Server", "Servers", "require_server_name"]

Kind = Literal["environment", "model", "agent", "resources"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds in the order in which they park; they reopen in the reverse one."""

CALLERS_FIRST: tuple[Kind, ...] = ("environment", "agent", "model", "resources")
"""The order for retire and forget: who calls comes before who is called."""

_Answer = TypeVar("_Answer")


def require_server_name(value: object) -> str:
    """
    Return `value` if it may name a server, and so a directory.

    Raises:
        TypeError: It is not a string.
        ValueError: It is no plain path component.
    """
    try:
        return require_shard(value)
    except ValueError as error:
        raise ValueError(
            f"server name {show(value)} must be one plain path component: letters, digits, '_', "
            "'.' and '-', starting with a letter or digit"
        ) from error


@attrs.frozen(kw_only=True, eq=False)
class Server:
    """One participant of a deployment."""

    kind: Kind = attrs.field(validator=attrs.validators.in_(KINDS))
    name: str = attrs.field(converter=require_server_name)
    control: ControlPlane
    restart_only: bool = False
    """Whether it holds a part of its episodes that nobody can capture."""


class Servers:
    """
    All servers of one deployment, in the order in which they park.

    Attributes:
        all: The servers.
        names: Their names, sorted: what a checkpoint records as its participants.
    """

    def __init__(self, servers: Iterable[Server]) -> None:
        """
        Take the servers.

        Raises:
            ValueError: There is none, or two have one name.
        """
        self.all = tuple(sorted(servers, key=lambda server: KINDS.index(server.kind)))
        self.names = tuple(sorted(server.name for server in self.all))
        if not self.all:
            raise ValueError("a deployment has at least one server")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"the servers of a deployment need names of their own: {self.names}")

    def stages(self) -> Iterator[tuple[Server, ...]]:
        """Yield the servers that park together, stage after stage."""
        for kind in KINDS:
            if stage := tuple(server for server in self.all if server.kind == kind):
                yield stage

    @property
    def is_open(self) -> bool:
        """Whether every server admits episodes."""
        return all(server.control.is_open for server in self.all)

    def hold(self, checkpoint_id: str, servers: Sequence[Server] = ()) -> bool:
        """Whether this id holds every one of `servers`, by default of all."""
        return all(server.control.holds(checkpoint_id) for server in servers or self.all)

    def any_holds(self, checkpoint_id: str) -> bool:
        """Whether this id holds at least one server."""
        return any(server.control.holds(checkpoint_id) for server in self.all)

    def together(
        self,
        call: Callable[[ControlPlane], _Answer],
        *,
        among: Sequence[Server] = (),
        check: Callable[[], None] = lambda: None,
    ) -> _Answer:
        """
        Make one call to every control plane, or to none if one of them refuses.

        Args:
            call: The call.
            among: Whom to call, by default everybody.
            check: What else must hold when all have accepted; it raises if it does not.

        Returns:
            The last answer; the planes of one deployment answer alike.
        """
        called = among or self.all
        before = [server.control.state for server in called]
        try:
            answers = [call(server.control) for server in called]
            check()
        except BaseException:
            for server, state in zip(called, before, strict=True):
                server.control.rewind(state)
            raise
        return answers[-1]

    def callers_first(self) -> tuple[Server, ...]:
        """Return all servers, who calls before who is called."""
        return tuple(sorted(self.all, key=lambda server: CALLERS_FIRST.index(server.kind)))

    def record(self, call: RecordedCall, checkpoint_id: str, answer: Any) -> Any:
        """Keep the deployment's answer with every server; return the one that stands."""
        self.together(lambda control: control.record(call, checkpoint_id, answer))
        return self.all[0].control.recorded(call)

    def resume(self, checkpoint_id: str, now_ts: float) -> None:
        """Reopen every server that the id holds, callees first, and fence it on all."""
        for server in reversed(self.all):
            server.control.resume(checkpoint_id, now_ts=now_ts)

    def expire(self, now_ts: float) -> bool:
        """Reopen every server whose lease has run out; say whether there was one."""
        expired = [server.control.expire(now_ts) for server in self.all]
        return any(checkpoint_id is not None for checkpoint_id in expired)

    def next_expiry_ts(self) -> float | None:
        """Return when the first lease runs out, or None where there is none."""
        leases = (server.control.state.lease_expires_ts for server in self.all)
        return min((lease for lease in leases if lease is not None), default=None)

    def require_same(self, recorded: Iterable[str]) -> None:
        """
        Refuse a checkpoint that other servers took part in.

        Raises:
            ValueError: A server is missing here, or is new.
        """
        names = set(recorded)
        if names != set(self.names):
            raise ValueError(
                f"the checkpoint's participants are not this deployment's: missing here "
                f"{sample(sorted(names.difference(self.names))) or 'none'}; not recorded "
                f"{sample(sorted(set(self.names) - names)) or 'none'}"
            )
