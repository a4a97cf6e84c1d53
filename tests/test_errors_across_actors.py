"""The errors and failures that cross real Ray actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import ray
import ray.exceptions

from gymckpt.errors import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
    RemoteFailure,
    is_actor_dead,
    is_transient_failure,
    is_transient_gym_checkpoint_failure,
)
from tests.odd_exceptions import HoldsLock, TwoArguments
from tests.test_errors import PICKLERS, travelled
from tests.test_transience import chained


def raising(make: Callable[[], BaseException]) -> BaseException:
    """Return what a caller gets when an actor's method raises."""

    @ray.remote(num_cpus=0)
    class Actor:
        def fail(self) -> None:
            raise make()

    actor = Actor.remote()
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever Ray makes of it
        ray.get(actor.fail.remote(), timeout=60)
    ray.kill(actor)
    return caught.value


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
class TestAcrossActors:
    def test_an_exception_that_cannot_be_pickled_is_not_transient(self) -> None:
        """B18: a timeout holding a lock arrives without its type; its text is kept all the same."""
        arrived = raising(lambda: HoldsLock("took too long"))

        error = GymCheckpointOperationError("commit", {"a/replica-0": arrived})
        assert not is_transient_gym_checkpoint_failure(error)
        assert str(error).endswith(": a/replica-0: HoldsLock: took too long")

    def test_an_exception_that_cannot_be_made_again_is_not_transient(self) -> None:
        """B18: two constructor arguments and no `__reduce__` lose the type, and are not guessed."""
        arrived = raising(lambda: TwoArguments(503, "busy"))

        error = GymCheckpointOperationError("commit", {"a/replica-0": arrived})
        assert not is_transient_gym_checkpoint_failure(error)
        assert str(error).endswith(": a/replica-0: TwoArguments: 503: busy")

    @pytest.mark.parametrize(
        ("make", "transient"),
        [
            (lambda: TimeoutError("slow"), True),
            (lambda: GymCheckpointUnavailable("HTTP 409"), True),
            (lambda: ValueError("bad"), False),
            (lambda: chained(RuntimeError("bad"), TimeoutError("slow")), False),
            (lambda: ExceptionGroup("both", [TimeoutError("slow")]), False),
        ],
        ids=["timeout", "unavailable", "value", "cause", "group"],
    )
    def test_what_an_actor_raised_is_judged_by_its_own_class(
        self, make: Callable[[], BaseException], transient: bool
    ) -> None:
        """Ray's class on the fly counts as the one that was raised; a cause does not come along."""
        assert is_transient_failure(raising(make)) is transient

    @pytest.mark.parametrize("dumps", PICKLERS.values(), ids=PICKLERS)
    def test_failures_that_ray_delivered_travel_on(self, dumps: Callable[[Any], bytes]) -> None:
        """B19: an error with Ray's own classes inside crosses with either pickler, types kept."""
        error = GymCheckpointOperationError(
            "renew", {"a/replica-0": raising(lambda: TimeoutError("slow"))}
        )

        arrived = travelled(error, dumps)

        assert str(arrived) == str(error)
        assert isinstance(arrived.failures["a/replica-0"], TimeoutError)
        assert is_transient_gym_checkpoint_failure(arrived)

    def test_an_error_that_caught_a_ray_failure_crosses_a_second_actor(self) -> None:
        """B19: raised by an actor, an operation error still has operation, failures and notes."""
        inner = raising(lambda: TimeoutError("slow"))

        def make() -> BaseException:
            error = GymCheckpointOperationError(
                "renew", {"a/replica-0": inner, "b/replica-0": HoldsLock("stuck")}
            )
            error.add_note("cleanup failed")
            return error

        arrived = raising(make)

        assert isinstance(arrived, GymCheckpointOperationError)
        assert arrived.operation == "renew"
        assert isinstance(arrived.failures["a/replica-0"], TimeoutError)
        assert isinstance(arrived.failures["b/replica-0"], RemoteFailure)
        assert not is_transient_gym_checkpoint_failure(arrived)
        assert arrived.__notes__ == ["cleanup failed"]

    def test_not_ready_crosses_an_actor_with_its_blockers(self) -> None:
        """B19: raised by an actor, not-ready still has every blocker and is transient."""
        blockers = {"a/replica-0": {"agent": ("r1", "agent-worker-lost")}}

        arrived = raising(lambda: GymCheckpointNotReady(blockers))

        assert isinstance(arrived, GymCheckpointNotReady)
        assert arrived.blockers == blockers
        assert is_transient_gym_checkpoint_failure(arrived)

    def test_an_actor_that_reports_anothers_death_is_alive(self) -> None:
        """The death of an actor is told apart from an actor that met a dead one and says so."""

        @ray.remote(num_cpus=0)
        class Actor:
            def ping(self) -> None:
                pass

            def ask(self, others: list[Any]) -> None:
                ray.get(others[0].ping.remote(), timeout=60)

        dead, alive = Actor.remote(), Actor.remote()
        ray.kill(dead)

        with pytest.raises(ray.exceptions.ActorDiedError) as of_dead:
            ray.get(dead.ping.remote(), timeout=60)
        with pytest.raises(ray.exceptions.RayTaskError) as of_alive:
            ray.get(alive.ask.remote([dead]), timeout=60)

        assert isinstance(of_alive.value, ray.exceptions.ActorDiedError)
        assert is_actor_dead(of_dead.value)
        assert not is_actor_dead(of_alive.value)
        assert is_transient_failure(of_dead.value)
        ray.get(alive.ping.remote(), timeout=60)
        ray.kill(alive)
