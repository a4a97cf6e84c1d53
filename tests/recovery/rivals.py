"""
Two controllers on one run, killed, stopped and resumed at random, for as long as is asked for.

Each rival is a process of its own, with the real journal, that takes the run whenever it can,
saves, goes back, gives up, and gives the run back. The instances are real deployments in the
process that drives it all, which also cuts them off and lets them begin anew and empty. `Court`
holds what it sees against the promises at once, and what was recorded when all is over:

    python -m tests.recovery.rivals --seconds 3600
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

from gymckpt.coordinator import GymCheckpointCoordinator, load_gym_checkpoint_manifest
from gymckpt.core.replay import replay
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import Fenced, RunHeld
from gymckpt.journal import Selection, open_journal
from gymckpt.recovery import recover
from gymckpt.testing.simulation.stage import EXPECTED
from tests.faults.world import until
from tests.recovery.controller import Deliberate, Handles, RemoteHandle
from tests.recovery.deployments import EPISODES, IDS, Station, Ticking
from tests.recovery.stage import DRIVING, processes

RUN = "contested"
OWNER_TIMEOUT_S = 2.0
CONTROL_TIMEOUT_S = 2.0
SETTLED_WITHIN_S = 90.0
"""How long after all faults something may be tried again: twice, with the pauses of the library."""

RETIRES_LOST = 0.5
"""How many retires never arrive, so that discarded restores still owe them later."""

COURT = "court"
"""The name under which rivals tell what they have done, and ask what runs."""

Episodes = Iterable[EnvironmentEpisode]
Inventory = dict[str, tuple[EnvironmentEpisode, ...]]


# --- a rival ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Order:
    """What one life of a rival needs."""

    name: str
    seed: int
    journal: str
    socket: str
    base: str


class Rival:
    """One life of a controller that does not expect to be alone."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._rng = random.Random(order.seed)
        self._court = RemoteHandle(order.socket, COURT)
        self._count = 0

    async def live(self) -> None:
        """Take the run, use it, give it back, and begin again, until somebody ends this process."""
        while True:
            coordinator = GymCheckpointCoordinator(
                Handles(self._order.socket),
                control_timeout_s=CONTROL_TIMEOUT_S,
                prepare_timeout_s=CONTROL_TIMEOUT_S,
                journal=self._order.journal,
                run=RUN,
                owner_timeout_s=OWNER_TIMEOUT_S,
            )
            for _ in range(self._rng.randint(1, 8)):
                await self._try(coordinator)
                await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.3)))
            with contextlib.suppress(*EXPECTED):
                coordinator.close()
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 0.5)))

    async def _try(self, coordinator: GymCheckpointCoordinator) -> None:
        self._count += 1
        verbs = (self._save, self._save, self._go_back, self._go_back, self._take)
        verb = self._rng.choice(verbs)
        try:
            await verb(coordinator, f"{self._order.name}.{self._count}")
        except Deliberate:
            outcome = "given up"
        except EXPECTED as error:
            outcome = type(error).__name__
            if isinstance(error, RunHeld | Fenced):
                await asyncio.sleep(0.2)
        except Exception as error:
            outcome = f"DEFECT {type(error).__name__}: {error}"
        else:
            outcome = "well"
        await self._tell("did", verb.__name__.lstrip("_"), outcome)

    async def _tell(self, method: str, *args: Any) -> Any:
        return await getattr(self._court, f"checkpoint_{method}").remote(*args)

    async def _body(self) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.01, 0.2, 1.0)))
        if self._rng.random() < 0.25:
            raise Deliberate

    async def _save(self, coordinator: GymCheckpointCoordinator, name: str) -> None:
        root = f"{self._order.base}/{name}"
        async with coordinator.prepared(name):
            await coordinator.commit(name, root, await self._tell("running"), restarts={})
            await self._body()
        await self._tell("saved", root)

    async def _go_back(self, coordinator: GymCheckpointCoordinator, name: str) -> None:
        roots = await self._tell("published")
        if not roots:
            return
        root = self._rng.choice(roots[-3:])
        async with coordinator.restored(name, root, load_gym_checkpoint_manifest(root)):
            await self._body()
            await self._tell("ending", name)
        await self._tell("kept", name)

    async def _take(self, coordinator: GymCheckpointCoordinator, name: str) -> None:
        """Settle what others have left, now and then although they seem alive."""
        await coordinator.recover(force=self._rng.random() < 0.3)


def live(order: Order) -> None:
    """Live one life; called in a process of its own."""
    logging.getLogger("gymckpt").addHandler(logging.NullHandler())
    logging.getLogger("gymckpt").propagate = False
    asyncio.run(Rival(order).live())


# --- what watches them --------------------------------------------------------------------------


class Court(Station):
    """
    The instances of a run that is contested, and what is held against its controllers.

    Attributes:
        problems: The promises that were seen broken.
        did: Verb and outcome to how often.
        roots: The checkpoints that ended well, the latest last.
    """

    def __init__(self, socket: Path, journal: str, rng: random.Random) -> None:
        super().__init__(socket)
        self._rng = rng
        self.retires_lost = RETIRES_LOST
        self._url = journal
        self.problems: list[str] = []
        self.did: Counter[str] = Counter()
        self.roots: list[str] = []
        self.hold_dispatch_until_s = 0.0
        self._lives = dict.fromkeys(IDS, 1)
        self._attempts: Counter[tuple[str, str]] = Counter()
        """Instance and rollout to the first attempt that nothing has used."""
        self.installed: dict[tuple[str, EnvironmentEpisode], tuple[str, int]] = {}
        """Instance and attempt to the restore that installed it last, and the life it did in."""
        self._ending: dict[str, dict[str, int]] = {}
        self._answered: defaultdict[str, set[tuple[str, int, str]]] = defaultdict(set)
        """Wire id to what was answered: the instance, its life, and the call."""
        self._kept: set[tuple[str, EnvironmentEpisode]] = set()
        """What a controller was told is going on, and nothing has ended since."""

    async def call(self, instance: str, method: str, args: Any, kwargs: Any) -> Any:
        """Answer a rival, or make a call and hold it against the promises."""
        op = method.removeprefix("checkpoint_")
        if instance == COURT:
            return getattr(self, f"hear_{op}")(*args)
        life, wire_id = self._lives[instance], args[0]
        closed = (instance, life, "resume") in self._answered[wire_id]
        if op == "commit":
            self._hold_prepared(wire_id)
        if op == "retire" and self._rng.random() < self.retires_lost:
            raise ConnectionError(f"{instance} is not reached")
        reply = await super().call(instance, method, args, kwargs)
        if life != self._lives[instance]:
            raise ConnectionError(f"{instance} has restarted")
        if closed and op in DRIVING:
            self.problems.append(f"S4: {instance} took {op} {wire_id} after its resume")
        self._answered[wire_id].add((instance, life, op))
        if op == "restore":
            self._restored(instance, wire_id, args[2])
        if op == "retire":
            self._retired(instance, wire_id, args[1])
        return reply

    def _hold_prepared(self, wire_id: str) -> None:
        answered = {(one, op) for one, _, op in self._answered[wire_id]}
        for instance in IDS:
            for op in ("prepare", "renew"):
                if (instance, op) not in answered:
                    self.problems.append(
                        f"S1: {wire_id} commits before {instance} has answered {op}"
                    )

    def _restored(self, instance: str, wire_id: str, episodes: Episodes) -> None:
        for episode in episodes:
            following = episode.next_attempt()
            self._use(instance, following)
            self.installed[instance, following] = (wire_id, self._lives[instance])

    def _retired(self, instance: str, wire_id: str, episodes: Episodes) -> None:
        for episode in episodes:
            self._use(instance, episode)
            if (instance, episode) not in self._kept:
                continue
            self._kept.discard((instance, episode))
            installer = self.installed[instance, episode][0]
            if wire_id.removesuffix(".late-retire") not in self._later_than(installer):
                what = f"{wire_id} retires {episode} on {instance}, kept by {installer}"
                self.problems.append(f"S5: {what}")

    def _later_than(self, restore: str) -> set[str]:
        """Return the restores that began after one: any may stop what that has brought back."""
        with open_journal(self._url, read_only=True) as journal:
            opened_ts = {
                one.operation_id: one.opened_ts
                for one in journal.select(Selection(run=RUN, chart="restore"))
            }
        return {one for one, ts in opened_ts.items() if ts > opened_ts[restore]}

    def _use(self, instance: str, episode: EnvironmentEpisode) -> None:
        key = (instance, episode.rollout_id)
        self._attempts[key] = max(self._attempts[key], episode.attempt + 1)

    # --- what rivals tell and ask ---------------------------------------------------------------

    def hear_running(self) -> Inventory:
        return {name: tuple(sorted(one.live)) for name, one in self.deployments.items()}

    def hear_published(self) -> list[str]:
        return self.roots[-5:]

    def hear_saved(self, root: str) -> None:
        self.roots.append(root)

    def hear_did(self, verb: str, outcome: str) -> None:
        self.did[f"{verb}: {outcome}"] += 1
        if outcome.startswith("DEFECT"):
            self.problems.append(f"{verb}: {outcome}")

    def hear_ending(self, wire_id: str) -> None:
        self._ending[wire_id] = dict(self._lives)

    def hear_kept(self, wire_id: str) -> None:
        ending = self._ending[wire_id]
        for (instance, episode), (installer, life) in self.installed.items():
            if installer != wire_id:
                continue
            if life != ending[instance]:
                self.problems.append(f"S5: {wire_id} stands, and {instance} had begun anew before")
            elif life == self._lives[instance]:
                if episode in self.deployments[instance].live:
                    self._kept.add((instance, episode))
                elif not self._later_than(wire_id):
                    self.problems.append(f"S5: {wire_id} stands, and {episode} does not run")

    # --- what happens to instances --------------------------------------------------------------

    async def restart(self, instance: str) -> None:
        """Let an instance begin anew and empty."""
        gone = self.deployments[instance]
        self.deployments[instance] = Ticking(instance)
        self._lives[instance] += 1
        self._kept = {one for one in self._kept if one[0] != instance}
        await gone.close()

    async def dispatch(self) -> None:
        """Keep every rollout running, as a trainer does that starts over what was refused."""
        while True:
            await asyncio.sleep(0.05)
            if time.monotonic() < self.hold_dispatch_until_s:
                continue
            for name, deployment in self.deployments.items():
                running = {episode.rollout_id for episode in deployment.live}
                for index in range(EPISODES if deployment.is_open else 0):
                    rollout = f"r{name[-1]}.{index}"
                    if rollout not in running:
                        episode = EnvironmentEpisode(rollout, self._attempts[name, rollout])
                        self._use(name, episode)
                        deployment.start(episode)
                for kept in [one for one in self._kept if one[0] == name]:
                    if kept[1] not in deployment.live:
                        self._kept.discard(kept)
                        if not self._later_than(self.installed[kept][0]):
                            what = f"{kept[1]} was kept on {name}, and is gone"
                            self.problems.append(f"S5: {what}")


@attrs.define
class Account:
    """How often what has happened."""

    lives: int = 0
    killed: int = 0
    stopped: int = 0
    cut_off: int = 0
    restarted: int = 0


class Contest:
    """Two rivals, and all that happens to them."""

    def __init__(self, base: Path, journal: str, seed: int) -> None:
        self.court = Court(base / "socket", journal, random.Random(seed))
        self.account = Account()
        self._base = base
        self._journal = journal
        self._rng = random.Random(seed)
        self._rivals: list[Any] = []

    async def run(
        self, seconds: float, tell: Callable[[str], None] = lambda _line: None
    ) -> list[str]:
        """
        Let them compete, and return what promises were broken.

        Args:
            seconds: For how long.
            tell: Told how it goes, every ten seconds.
        """
        await self.court.open(dispatch=False)
        dispatching = asyncio.create_task(self.court.dispatch())
        begun_s = told_s = time.monotonic()
        self._rivals = [self._rival(number) for number in (0, 1)]
        try:
            while time.monotonic() < begun_s + seconds and not self.court.problems:
                await asyncio.sleep(self._rng.choice((0.02, 0.1, 0.5, 1.5)))
                await self._happen()
                if time.monotonic() >= told_s + 10:
                    told_s = time.monotonic()
                    tell(f"{told_s - begun_s:6.0f} s  {self.told()}")
        finally:
            for rival in self._rivals:
                rival.kill()
                rival.join()
        self.court.unreachable.clear()
        self.court.retires_lost = 0.0
        await self._settle()
        dispatching.cancel()
        await asyncio.gather(dispatching, return_exceptions=True)
        await self.court.close()
        return self.court.problems

    def told(self) -> str:
        """Return how it goes in one line."""
        counts = {**attrs.asdict(self.account), **dict(sorted(self.court.did.items()))}
        return ", ".join(f"{name} {count}" for name, count in counts.items())

    def _rival(self, number: int) -> Any:
        self.account.lives += 1
        order = Order(
            name=f"rival-{number}-{self.account.lives}",
            seed=self._rng.randrange(1 << 32),
            journal=self._journal,
            socket=str(self.court.socket),
            base=str(self._base),
        )
        process = processes.Process(target=live, args=(order,), daemon=True)
        process.start()
        return process

    async def _happen(self) -> None:
        """Let one thing happen."""
        rng, number = self._rng, self._rng.randrange(2)
        mishaps = (self._kill, self._kill, self._stop, self._cut, self._anew)
        await rng.choice(mishaps)(number)
        for one, rival in enumerate(self._rivals):
            if rival.exitcode is not None:
                if rival.exitcode != -signal.SIGKILL:
                    self.court.problems.append(f"defect: a rival has ended with {rival.exitcode}")
                self._rivals[one] = self._rival(one)

    async def _kill(self, number: int) -> None:
        self.account.killed += 1
        self._rivals[number].kill()
        await until(lambda: self._rivals[number].exitcode is not None, bound_s=30.0)
        await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)))

    async def _stop(self, number: int) -> None:
        self.account.stopped += 1
        os.kill(self._rivals[number].pid, signal.SIGSTOP)
        await asyncio.sleep(
            self._rng.choice((0.05, 0.5, OWNER_TIMEOUT_S * 1.5, OWNER_TIMEOUT_S * 3))
        )
        os.kill(self._rivals[number].pid, signal.SIGCONT)

    async def _cut(self, number: int) -> None:
        self.account.cut_off += 1
        self.court.unreachable.add(IDS[number])
        await asyncio.sleep(self._rng.choice((0.05, 0.5, 3.0)))
        self.court.unreachable.discard(IDS[number])

    async def _anew(self, number: int) -> None:
        if self._rng.random() < 0.7:  # a whole job begins anew, and can go back as far as it likes
            self.court.hold_dispatch_until_s = time.monotonic() + self._rng.choice((0.5, 3.0))
            await self.court.restart(IDS[1 - number])
        self.account.restarted += 1
        await self.court.restart(IDS[number])

    async def _settle(self) -> None:
        """Recover as the next controller does, and hold what was recorded against what is there."""
        problems = self.court.problems
        with open_journal(self._journal) as journal:
            await recover(journal, self.court.handles, run=RUN, force=True)
            with contextlib.suppress(TimeoutError):  # what is still left then is told below
                await until(lambda: not journal.unfinished(RUN), bound_s=SETTLED_WITHIN_S)
            states: dict[str, str] = {}
            for row in journal.operations(RUN):
                operation = replay(journal.read(RUN, row.operation_id))
                states[row.operation_id] = row.state
                if not (row.settled and operation.settled):
                    problems.append(f"L2: {row.operation_id} is left in {operation.state}")
                if operation.state != row.state:
                    problems.append(
                        f"S6: {row.operation_id}: {row.state}, its log {operation.state}"
                    )
        for name, state in states.items():
            stands = (self._base / name / "gym_checkpoint.json").exists()
            if stands and state != "resumed":
                problems.append(f"S2: {name} is {state}, and its manifest exists")
        for root in self.court.roots:
            if load_gym_checkpoint_manifest(root).checkpoint_id != Path(root).name:
                problems.append(f"S2: the manifest in {root} is another's")
        for name, deployment in self.court.deployments.items():
            if not deployment.is_open:
                problems.append(f"S3: {name} is still closed")
            for episode in deployment.live:
                installer = self.court.installed.get((name, episode))
                if installer is not None and states[installer[0]] != "resumed":
                    problems.append(f"S5: {episode} of {installer[0]} goes on on {name}")


def main() -> None:
    """Let them compete for as long as the command line says."""
    parser = argparse.ArgumentParser(description="Two controllers compete for one run.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for how long (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn at random (default: 0)")
    parser.add_argument("--journal", default="", help="a URL; a new file where none is given")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        journal = given.journal or f"sqlite:///{base}/journal.sqlite3"
        contest = Contest(base, journal, given.seed)
        problems = asyncio.run(contest.run(given.seconds, lambda line: print(line, flush=True)))
    print("\n".join(problems) or f"every promise held: {contest.told()}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
