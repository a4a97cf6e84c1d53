"""
The controllers of a run: each a process with a coordinator, a facade and things to do.

What a verb may end with is known: an error of the library's vocabulary, the body's own error, a
cancellation that was asked for. Anything else is a defect. And each must end in bounded time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.environment import GymEnvironmentCheckpoint
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import GymCheckpointOperationError, JournalError, text_of
from gymckpt.journal import Journal
from gymckpt.manifest import load_gym_checkpoint_manifest
from gymckpt.runtime.holding import as_process
from gymckpt.runtime.virtual import VirtualClock
from gymckpt.snapshot import GymEnvironmentSnapshot
from gymckpt.testing.account import Broken
from gymckpt.testing.simulation.loop import Process
from gymckpt.testing.simulation.network import Handle
from gymckpt.testing.simulation.plan import Fault, Verb
from gymckpt.testing.simulation.stage import (
    EXPECTED,
    SETTINGS,
    STARTUP_BOUND_S,
    STARTUP_TRIES_MAX,
    VERB_BOUND_S,
    BodyFailed,
    Run,
    Stage,
)
from gymckpt.testing.simulation.storage import Disk
from gymckpt.testing.simulation.watch import holds_manifest

__all__ = ["Controller"]


@attrs.frozen(kw_only=True)
class _Cut:
    live: bool = True


class _Shards:
    def __init__(self, handles: dict[str, Handle]) -> None:
        self.checkpoint_handles = handles


class Controller:
    """
    One controller.

    Attributes:
        process: Where it runs.
        clock: Its clocks.
        disk: What is wrong with its journal and the files that it writes.
        coordinator: What drives the instances.
        passed: How many points its startup has passed, and each of its verbs after that.
        armed: The faults that are still to happen in the present verb.
        verb_task: The verb that runs.
        body_fails: Whether the body of the present verb is to raise.
        paused_s: For how long it was paused.
        beside_under_way: How many checkpoints were begun beside its verbs and have not ended.
    """

    def __init__(
        self,
        stage: Stage,
        run: Run,
        *,
        process: Process,
        clock: VirtualClock,
        disk: Disk,
        journal: Journal,
        handles: dict[str, Handle],
    ) -> None:
        self.process = process
        self.clock = clock
        self.disk = disk
        self.passed: list[int] = []
        self.armed: list[Fault] = []
        self.verb_task: asyncio.Task[Any] | None = None
        self.body_fails = False
        self.cancelled = False
        self.paused_s = 0.0
        self.beside_under_way = 0
        self._may_fail = False
        """Whether the present verb restores what runs on already, which instances refuse."""
        self._stage = stage
        self._run = run
        with as_process(process.name):
            self.coordinator = GymCheckpointCoordinator(
                _Shards(handles), journal=journal, clock=clock, **SETTINGS
            )
        self.facade = GymEnvironmentCheckpoint(self.coordinator, stage.ledger)

    # --- its life -------------------------------------------------------------------------------

    async def life(self, verbs: deque[Verb], startup_faults: Sequence[Fault]) -> None:
        """
        Recover what there is, and do what is left to do.

        Args:
            verbs: What is left to do.
            startup_faults: What happens while it recovers.
        """
        self._arm(startup_faults)
        await self.bounded("startup", self.started(), STARTUP_BOUND_S)
        while verbs:
            verb = verbs.popleft()
            self._arm(verb.faults)
            self.body_fails = verb.body_fails
            self._stage.ledger.dispatch()
            name = f"{verb.kind}-{len(self._stage.used) + 1}"
            self._stage.used.append(name)
            await self.bounded(name, self.perform(verb, name), VERB_BOUND_S + verb.body_s)
            await asyncio.sleep(0.01 + (verb.choice % 7) * 0.2)

    def _arm(self, faults: Sequence[Fault]) -> None:
        """Begin to count points anew, with the faults that are to happen at them."""
        self.passed.append(0)
        self.armed = list(faults)
        self.cancelled = self._may_fail = self.body_fails = False

    async def started(self, *, force: bool = False) -> None:
        """Recover, and try again while another controller is alive, then by force."""
        for number in range(STARTUP_TRIES_MAX):
            try:
                if force or number == STARTUP_TRIES_MAX - 1:
                    await self.coordinator.recover(force=True)
                else:
                    await self.facade.check_startup()
            except (JournalError, GymCheckpointOperationError) as error:
                self._say(f"could not start: {type(error).__name__}: {text_of(error, 200)}")
                await asyncio.sleep(2.0)
            else:
                return

    async def bounded(self, name: str, doing: Any, bound_s: float) -> bool:
        """Do something, judge what it ends with, and hold L1; return whether it ended well."""
        loop = asyncio.get_running_loop()
        self._say(f"begins {name}")
        began_s, paused_s = loop.time(), self.paused_s
        task = self.verb_task = asyncio.ensure_future(doing)
        while not task.done():
            left_s = bound_s + self.paused_s - paused_s - (loop.time() - began_s)
            if left_s <= 0:
                self._run.broken(Broken("L1", f"{name} has not ended within {bound_s:g} s"))
                return False
            await asyncio.wait({task}, timeout=left_s)
        self.verb_task = None
        return self._judge(name, task)

    def _judge(self, name: str, task: asyncio.Task[Any]) -> bool:
        if task.cancelled():
            self._say(f"ends {name}: cancelled")
            if not self.cancelled:
                self._run.broken(Broken("S9", f"{name} was cancelled by nobody"))
            return False
        error = task.exception()
        if error is None:
            self._say(f"ends {name}: well")
            return True
        notes: list[str] = getattr(error, "__notes__", [])
        words = [f"{type(error).__name__}: {text_of(error, 300)}", *notes]
        self._say(f"ends {name}: {'; '.join(words)}")
        if isinstance(error, BodyFailed):
            if not self.body_fails:
                self._run.broken(Broken("S9", f"{name} raised what its body did not raise"))
        elif not isinstance(error, EXPECTED):
            kind = type(error).__name__
            self._run.broken(Broken("defect", f"{name} ended with {kind}: {text_of(error)}"))
        elif not self._run.faulty and not self._may_fail:
            self._run.broken(Broken("defect", f"without any fault {name} failed: {words[0]}"))
        return False

    def _say(self, what: str) -> None:
        self._stage.timeline.note(self.process.name, what)

    # --- what it does ---------------------------------------------------------------------------

    async def perform(self, verb: Verb, name: str) -> None:
        """Do one verb."""
        await getattr(self, f"_do_{verb.kind}")(verb, name)

    async def _body(self, verb: Verb) -> None:
        await asyncio.sleep(verb.body_s)
        if self.body_fails:
            raise BodyFailed

    def _published(self, path: Path, wire_id: str) -> None:
        """Take note of a checkpoint that its verb says is good; hold S2 against it."""
        try:
            stands = holds_manifest(str(path), wire_id)
        except (OSError, ValueError, KeyError) as error:
            what = f"{wire_id} ended well, and its manifest cannot be read: {error}"
            self._run.broken(Broken("S2", what))
            return
        if not stands:
            self._run.broken(Broken("S2", f"{wire_id} ended well, and its manifest is not there"))
        self._stage.published.append((path, wire_id))

    async def _do_snapshot(self, verb: Verb, name: str) -> None:
        path, wire_id = self._stage.base / name, None
        async with self.facade.snapshot(path) as snapshot:
            await self._body(verb)
            if snapshot is not None:
                await snapshot.check_against_cut(_Cut())
            if isinstance(snapshot, GymEnvironmentSnapshot):
                wire_id = snapshot.result.manifest.checkpoint_id
        if wire_id is not None:
            self._published(path, wire_id)

    async def _do_checkpoint(self, verb: Verb, name: str) -> None:
        path = self._stage.base / name
        async with (
            self._stage.ledger.dispatch_closed(),
            self.coordinator.prepared(name) as restarts,
        ):
            offered, left_out = self._split(restarts)
            await self.coordinator.commit(name, path, offered, restarts=left_out)
            if verb.choice % 3 == 0:
                await self.coordinator.renew(name)
            await self._body(verb)
        self._published(path, name)

    def _split(self, restarts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is to be saved and what starts over, of all that is wanted."""
        wanted = self._stage.ledger.episodes_in_flight()
        live = self.coordinator.instance_ids
        offered = {
            instance: tuple(
                one for one in wanted.get(instance, ()) if one not in restarts.get(instance, ())
            )
            for instance in sorted(live)
        }
        left_out = {
            instance: tuple(
                one for one in wanted.get(instance, ()) if one in restarts.get(instance, ())
            )
            for instance in sorted(live)
        }
        return offered, left_out

    async def beside(self, name: str) -> None:
        """Begin a checkpoint although a verb is under way; it is refused, or comes in between."""
        self.beside_under_way += 1
        try:
            async with self.coordinator.prepared(name):
                pass
        except EXPECTED as error:
            self._say(f"refuses {name}: {type(error).__name__}")
        finally:
            self.beside_under_way -= 1

    async def _do_uncommitted(self, verb: Verb, name: str) -> None:
        async with self.coordinator.prepared(name):
            await self._body(verb)

    def _source(self, verb: Verb) -> Path | None:
        """Choose what to restore, and now and then let all instances begin anew before."""
        published = self._stage.published
        if not published:
            return None
        forgotten = self._stage.ledger.forgotten  # nothing refuses what is behind these any more
        self._may_fail = verb.choice % 4 == 0 and not forgotten
        if not self._may_fail:
            self._run.renew_instances()
            forgotten.clear()
        return published[-1 if verb.choice % 8 else verb.choice % len(published)][0]

    async def _do_restored(self, verb: Verb, name: str) -> None:
        path = self._source(verb)
        if path is None:
            return
        async with self.facade.restored(path) as restored:
            for instance, episode in sorted(restored.replacements()):
                self._stage.ledger.attach(instance, episode)
            await self._body(verb)
            self._run.keeps(self.process)

    async def _do_restore(self, verb: Verb, name: str) -> None:
        path = self._source(verb)
        if path is None:
            return
        manifest = load_gym_checkpoint_manifest(path)
        following = [
            (instance, episode.next_attempt())
            for instance, episodes in sorted(manifest.instances.items())
            for episode in episodes
        ]
        try:
            async with self.coordinator.restored(name, path, manifest):
                await self._body(verb)
                self._run.keeps(self.process)
        except BaseException:
            self._stage.ledger.attempts_refused([episode for _, episode in following])
            raise
        for instance, episode in following:
            self._stage.ledger.attach(instance, episode)

    def _each(self, chosen: dict[str, list[EnvironmentEpisode]]) -> dict[str, Any]:
        ids = sorted(self.coordinator.instance_ids)
        return {instance: tuple(chosen.get(instance, ())) for instance in ids}

    async def _do_retire(self, verb: Verb, name: str) -> None:
        ledger = self._stage.ledger
        rollouts = sorted(ledger.wanted)
        rollout = rollouts[verb.choice % len(rollouts)]
        instance, attempt = ledger.wanted[rollout]
        episode = EnvironmentEpisode(rollout, attempt)
        ledger.attempts_refused([episode])
        await self.coordinator.retire(name, self._each({instance: [episode]}))
        ledger.dispatch()

    async def _do_forget(self, verb: Verb, name: str) -> None:
        ledger = self._stage.ledger
        finished: dict[str, list[EnvironmentEpisode]] = {}
        for rollout, instance in sorted(ledger.finished.items()):
            finished.setdefault(instance, []).append(EnvironmentEpisode(rollout, 0))
        if finished:
            each = {instance: tuple(episodes) for instance, episodes in finished.items()}
            ledger.forgotten.update(ledger.finished)
            await self.coordinator.forget(name, each)
            for rollout in [one.rollout_id for each in finished.values() for one in each]:
                ledger.finished.pop(rollout, None)

    async def _do_resume(self, verb: Verb, name: str) -> None:
        used = self._stage.used
        await self.coordinator.resume(used[verb.choice % len(used)])
