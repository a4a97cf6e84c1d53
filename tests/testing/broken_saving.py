"""Deployments with mistakes in how they park and save, and those that take a call too lightly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointUnavailable
from gymckpt.participant.episodes import LiveEpisode
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.servers import Server
from gymckpt.participant.store import Record
from gymckpt.participant.work import Work
from gymckpt.replies import GymCheckpointCommitSummary, GymCheckpointPrepareSummary
from gymckpt.testing.case import files_below
from tests.testing.registry import BROKEN, broken, edit


def lenient(call: str, answer: Callable[..., Any]) -> None:
    """Add a deployment that answers one call whatever it thinks of it."""

    async def agree(self: GymnasiumDeployment, *args: Any, **kwargs: Any) -> Any:
        try:
            return await getattr(GymnasiumDeployment, f"checkpoint_{call}")(self, *args, **kwargs)
        except Exception:
            return answer(*args)

    name = f"AgreesToEvery{call.title()}"
    BROKEN[name] = type(name, (GymnasiumDeployment,), {f"checkpoint_{call}": agree})


def parked(*_args: Any) -> GymCheckpointPrepareSummary:
    return GymCheckpointPrepareSummary(True, {}, ())


def written(_id: str, _root: str, episodes: Iterable[EnvironmentEpisode]) -> Any:
    rows: dict[EnvironmentEpisode, tuple[str, ...]] = {}
    return GymCheckpointCommitSummary(tuple(episodes), (), ("environment",), rows)


lenient("renew", lambda *_: None)
lenient("commit", written)
lenient("resume", lambda *_: None)
lenient("restore", lambda *_: None)
lenient("retire", lambda *_: None)
lenient("forget", lambda *_: None)


def stuck(*calls: str) -> None:
    """Add deployments that do nothing at one call, and answer."""
    for call in calls:
        answer = {"prepare": parked}.get(call, lambda *_: None)

        async def nothing(
            _self: Any, *args: Any, _answer: Callable[..., Any] = answer, **_kwargs: Any
        ) -> Any:
            return _answer(*args)

        name = f"DoesNothingAt{call.title()}"
        BROKEN[name] = type(name, (GymnasiumDeployment,), {f"checkpoint_{call}": nothing})


stuck("prepare", "renew", "resume", "retire", "forget")


def only_once(*calls: str) -> None:
    """Add deployments that fail when a call is repeated."""
    for call in calls:

        async def once(self: Any, *args: Any, _call: str = call, **kwargs: Any) -> Any:
            seen = self.__dict__.setdefault("seen", set())
            if (args[0], args[-1]) in seen:
                raise GymCheckpointUnavailable("it was asked before")
            seen.add((args[0], args[-1]))
            return await getattr(GymnasiumDeployment, f"checkpoint_{_call}")(self, *args, **kwargs)

        name = f"Takes{call.title()}Once"
        BROKEN[name] = type(name, (GymnasiumDeployment,), {f"checkpoint_{call}": once})


only_once("prepare", "commit", "resume", "restore", "retire")


# --- parking --------------------------------------------------------------------------------------


@broken
class SaysParkedAtOnce(GymnasiumDeployment):
    """Closes admission, but answers before its episodes are parked."""

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        waiting = super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)
        self.waiting = asyncio.ensure_future(waiting)
        self.waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)
        return parked()


@broken
class RaisesWhenNotReady(GymnasiumDeployment):
    """Takes an answer for an error."""

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        answer = await super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)
        if not answer.prepared:
            raise GymCheckpointUnavailable("not ready")
        return answer


@broken
class ReopensWhenNotReady(GymnasiumDeployment):
    """Gives up by itself what it could not park in time."""

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        answer = await super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)
        if not answer.prepared:
            await self.checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)
        return answer


@broken
class NeverReady(GymnasiumDeployment):
    """Always finds something in its way."""

    def blockers_of(self, server: Server) -> Sequence[str]:
        return ("this and that",)


@broken
class BlockedByRestarts(GymnasiumDeployment):
    """Waits for episodes that nobody can capture."""

    def blockers_of(self, server: Server) -> Sequence[str]:
        found = [live.episode.capture_key for live in self._table if live.restarts]
        return (*super().blockers_of(server), *found)


@broken
class KillsTurns(GymnasiumDeployment):
    """Parks by stopping what is inside a turn."""

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        for live in self._table:
            if live.stage == "turning":
                live.task.cancel()
        return await super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)


@broken
class StartsOverAfterResume(GymnasiumDeployment):
    """Loses where its episodes were."""

    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        await super().checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)
        for live in self._table:
            live.body._steps = []  # type: ignore[attr-defined]


@broken
class OneCheckpointOnly(GymnasiumDeployment):
    """Works until it is asked a second time."""

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        if self.__dict__.setdefault("first", checkpoint_id) != checkpoint_id:
            raise GymCheckpointUnavailable("a checkpoint has been taken")
        return await super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)


@broken
class RenewReopens(GymnasiumDeployment):
    """Reopens at a renewal."""

    async def checkpoint_renew(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        await super().checkpoint_renew(checkpoint_id, deadline_ts=deadline_ts)
        await self.checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)


@broken
class DeafWhileParking(GymnasiumDeployment):
    """A resume does not reach it before it is parked."""

    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        if self._servers.all[0].control.state.phase != "preparing":
            await super().checkpoint_resume(checkpoint_id, deadline_ts=deadline_ts)


@broken
class WaitsOnAfterResume(GymnasiumDeployment):
    """A prepare that was overtaken by a resume is never answered."""

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        answer = await super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)
        if not answer.prepared and not answer.blockers:
            await asyncio.Event().wait()
        return answer


# --- saving ---------------------------------------------------------------------------------------


class Answering(GymnasiumDeployment):
    """Answers a commit otherwise than it should."""

    def answer(self, answer: GymCheckpointCommitSummary) -> Any:
        return answer

    async def checkpoint_commit(self, *args: Any, **kwargs: Any) -> Any:
        return self.answer(await super().checkpoint_commit(*args, **kwargs))


@broken
class ExportsNothing(Answering):
    """Says that it has saved nothing."""

    def answer(self, answer: GymCheckpointCommitSummary) -> Any:
        return attrs.evolve(answer, exported_episodes=())


@broken
class ExportsEverything(Answering):
    """Says that it has saved whatever runs."""

    def answer(self, answer: GymCheckpointCommitSummary) -> Any:
        live = {one.episode for one in self._table} | {EnvironmentEpisode("r-z", 0)}
        return attrs.evolve(answer, exported_episodes=tuple(live))


@broken
class NewParticipants(Answering):
    """Names its participants otherwise each time."""

    def answer(self, answer: GymCheckpointCommitSummary) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return attrs.evolve(answer, participants=(f"server-{self.count}",))


@broken
class WrongAnswers(Answering):
    """Answers with a plain dict."""

    def answer(self, answer: GymCheckpointCommitSummary) -> Any:
        return attrs.asdict(answer)


@broken
class NamesStrangers(Answering):
    """Says that it has an episode which no server owns."""

    def answer(self, answer: GymCheckpointCommitSummary) -> Any:
        return attrs.evolve(answer, unowned_live_episodes=(EnvironmentEpisode("r-z", 0),))


@broken
class WritesAnew(GymnasiumDeployment):
    """Puts equal files in the place of its files when a commit is repeated."""

    async def checkpoint_commit(self, i: str, root: str, *args: Any, **kwargs: Any) -> Any:
        before = files_below(Path(root))
        answer = await super().checkpoint_commit(i, root, *args, **kwargs)
        for path, content in before.items():
            path.unlink()
            path.write_bytes(content)
        return answer


class Held(GymCheckpointCommitSummary):
    """An answer that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("it holds a lock")


@broken
class AnswersThatStay(Answering):
    """Answers with something that cannot leave its process."""

    def answer(self, answer: GymCheckpointCommitSummary) -> Any:
        return Held(**{field.name: getattr(answer, field.name) for field in attrs.fields(Held)})


@broken
class CommitReopens(GymnasiumDeployment):
    """Reopens as soon as it has written."""

    async def checkpoint_commit(self, checkpoint_id: str, *args: Any, **kwargs: Any) -> Any:
        answer = await super().checkpoint_commit(checkpoint_id, *args, **kwargs)
        await self.checkpoint_resume(checkpoint_id, deadline_ts=kwargs["deadline_ts"])
        return answer


def litter(directory: Path, name: str) -> None:
    directory.mkdir(exist_ok=True, parents=True)
    (directory / name).write_text(name)


@broken
class Litters(GymnasiumDeployment):
    """Leaves a file outside of its own directory, and a new one each time."""

    async def checkpoint_commit(
        self, checkpoint_id: str, root: str, episodes: Any, *, deadline_ts: float
    ) -> Any:
        self.count = getattr(self, "count", 0) + 1
        litter(Path(root), f"log-{self.count}.txt")
        return await super().checkpoint_commit(
            checkpoint_id, root, episodes, deadline_ts=deadline_ts
        )


@broken
class SavesTheFirstState(GymnasiumDeployment):
    """Saves every episode as it was when it was saved for the first time."""

    def records_of(self, server: Server, episodes: Sequence[LiveEpisode]) -> Iterable[Record]:
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault(server.name, list(super().records_of(server, episodes)))


@broken
class RefusesBesideRestarts(GymnasiumDeployment):
    """Cannot save while an episode runs that nobody can capture."""

    async def checkpoint_commit(self, *args: Any, **kwargs: Any) -> Any:
        if any(live.restarts for live in self._table):
            raise GymCheckpointUnavailable("some episode cannot be captured")
        return await super().checkpoint_commit(*args, **kwargs)


@broken
class NoEmptyCalls(GymnasiumDeployment):
    """Takes a call without episodes for a mistake."""

    async def checkpoint_commit(self, i: str, root: str, episodes: Any, **kwargs: Any) -> Any:
        if not episodes:
            raise ValueError("no episodes")
        return await super().checkpoint_commit(i, root, episodes, **kwargs)

    async def checkpoint_restore(self, i: str, root: str, episodes: Any, **kwargs: Any) -> Any:
        if not episodes:
            raise ValueError("no episodes")
        return await super().checkpoint_restore(i, root, episodes, **kwargs)


class Unheard(threading.Event):
    """Is never set, for whoever looks."""

    def is_set(self) -> bool:
        return False


@broken
class WritesToTheEnd(GymnasiumDeployment):
    """Publishes what was given up while it wrote."""

    async def _write(self, work: Work, root: Path, scope: Any) -> Any:
        work.stopped = Unheard()
        return await super()._write(work, root, scope)


@broken
class PublishesLater(WritesToTheEnd):
    """Publishes what was given up while it wrote, and answers a resume before that."""

    async def checkpoint_resume(self, checkpoint_id: str, *, deadline_ts: float) -> None:
        self._servers.resume(checkpoint_id, self._tick())
        self._settle()


@broken
class JoinsWhatWrites(GymnasiumDeployment):
    """Takes any commit for the one that it writes."""

    async def checkpoint_commit(self, i: str, *args: Any, deadline_ts: float) -> Any:
        work = self._workshop.current
        if work is not None and not work.task.done():
            return await self._workshop.result(work, deadline_ts)
        return await super().checkpoint_commit(i, *args, deadline_ts=deadline_ts)


@broken
class BusyWhileWriting(GymnasiumDeployment):
    """Answers no renewal, and no second commit, while it writes."""

    def busy(self) -> bool:
        return self._workshop.current is not None and not self._workshop.current.task.done()

    async def checkpoint_renew(self, *args: Any, **kwargs: Any) -> None:
        if self.busy():
            raise GymCheckpointUnavailable("busy")
        await super().checkpoint_renew(*args, **kwargs)

    async def checkpoint_commit(self, *args: Any, **kwargs: Any) -> Any:
        if self.busy():
            raise GymCheckpointUnavailable("busy")
        return await super().checkpoint_commit(*args, **kwargs)


@broken
class CancelsItsWrites(GymnasiumDeployment):
    """Gives up for good what its caller no longer waits for."""

    async def checkpoint_commit(self, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "given_up", False):
            raise GymCheckpointUnavailable("the commit was cancelled")
        try:
            return await super().checkpoint_commit(*args, **kwargs)
        except BaseException:
            self.given_up = True
            raise


@broken
class ReopensWhenAWriteFails(GymnasiumDeployment):
    """Gives up by itself what it could not write."""

    async def checkpoint_commit(self, checkpoint_id: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().checkpoint_commit(checkpoint_id, *args, **kwargs)
        except Exception:
            await self.checkpoint_resume(checkpoint_id, deadline_ts=0)
            raise


@broken
class RawErrors(GymnasiumDeployment):
    """Lets errors out that no other process can read."""

    async def checkpoint_commit(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().checkpoint_commit(*args, **kwargs)
        except Exception as error:
            raise error.__cause__ or error from None


class HeldRefusal(GymCheckpointUnavailable):
    """A refusal that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("it holds a lock")


@broken
class RefusalsThatStay(GymnasiumDeployment):
    """Refuses with something that cannot leave its process."""

    async def checkpoint_prepare(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().checkpoint_prepare(*args, **kwargs)
        except GymCheckpointUnavailable as error:
            raise HeldRefusal(str(error)) from error


@broken
class ForgetsItsAnswer(GymnasiumDeployment):
    """A repeated prepare gives another answer and undoes the commit."""

    async def checkpoint_prepare(self, checkpoint_id: str, *, deadline_ts: float) -> Any:
        answer = await super().checkpoint_prepare(checkpoint_id, deadline_ts=deadline_ts)
        if checkpoint_id in self.__dict__.setdefault("asked", set()):
            edit(self, lambda state: {"phase": "preparing"})
            return attrs.evolve(answer, restarts=())
        self.asked.add(checkpoint_id)
        return answer


@broken
class TakesAFullDiskForARefusal(GymnasiumDeployment):
    """Refuses what its disk refuses, as if it could pass."""

    async def checkpoint_commit(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().checkpoint_commit(*args, **kwargs)
        except OSError as error:
            raise GymCheckpointUnavailable(str(error)) from error
