"""Adopt gymckpt in a training loop of your own: `python examples/facade_in_a_training_loop.py`."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

import ray

import gymckpt
from gymckpt.participant.gymnasium import GymnasiumDeployment


class Trainer:
    """A loop that trains on whatever rollouts have finished, and saves before it goes on."""

    def __init__(self, actor):
        self.actor, self.instance, self.running, self.finished = actor, "tools/replica-0", {}, []
        self.dispatching = asyncio.Event()

    # What the facade asks of RL, the protocol `gymckpt.RolloutSource`:
    @contextlib.asynccontextmanager
    async def dispatch_closed(self):
        self.dispatching.clear()
        try:
            yield
        finally:
            self.dispatching.set()

    def episodes_in_flight(self):
        return {self.instance: [gymckpt.EnvironmentEpisode(name, 0) for name in self.running]}

    async def replies_landed(self, expected_later):
        parked = {episode.rollout_id for episode in expected_later}
        await asyncio.gather(*(task for name, task in self.running.items() if name not in parked))

    def ledger_under(self, cut):
        return gymckpt.LedgerUnderCut(unfinished=frozenset(self.running))

    def attempts_refused(self, episodes):
        print("start over as later attempts:", [episode.capture_key for episode in episodes])

    # The loop:
    async def rollout(self, name, seed):
        await self.dispatching.wait()
        reply = await self.actor.run.remote(name, 0, env_id="CartPole-v1", seed=seed)
        self.finished.append(reply.reward_sum)
        del self.running[name]

    async def train(self, environment, snapshots):
        self.dispatching.set()
        for step in range(3):
            for i in range(4):
                name = f"step{step}-{i}"
                self.running[name] = asyncio.create_task(self.rollout(name, seed=10 * step + i))
            await asyncio.wait(self.running.values(), return_when=asyncio.FIRST_COMPLETED)
            async with environment.snapshot(snapshots / f"step-{step}") as snapshot:
                if snapshot is not None:  # save the trainer's own state here
                    print(f"step {step}: {snapshot.continued_rollouts} rollouts saved mid-episode")
        await asyncio.gather(*self.running.values())
        print(f"{len(self.finished)} rollouts, mean reward {sum(self.finished) / 12:.1f}")


async def main(directory):
    actor = GymnasiumDeployment.as_actor("tools/replica-0", turn_pause_s=0.05)
    instances = gymckpt.ShardSet(handles={"tools": [actor]})
    coordinator = gymckpt.GymCheckpointCoordinator(
        instances, control_timeout_s=10, prepare_timeout_s=30
    )
    trainer = Trainer(actor)
    environment = gymckpt.GymEnvironmentCheckpoint(coordinator, trainer)
    await environment.check_startup()
    await trainer.train(environment, Path(directory))


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(temporary))
