"""
The verbs of the coordinator's API document, each one a path through a chart.

A verb checks its arguments, opens or finds its operation, brings one trigger in and waits where
that leads. What is sent, retried, renewed and reopened is decided by the core and done by the
scheduler; nothing here keeps a phase of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gymckpt.calls import (
    Calls,
    CheckpointCalls,
    GymCheckpointCommitResult,
    Offer,
    RestoreCalls,
    RestoreSource,
)
from gymckpt.checks import copied, require_names
from gymckpt.core.entry import Entry
from gymckpt.core.settings import (
    OWNER_TIMEOUT_S,
    RESUME,
    RetryPolicy,
    Settings,
    require_duration,
    require_policies,
)
from gymckpt.episodes import EnvironmentEpisode, require_operation_id
from gymckpt.errors import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    IllegalTransition,
    is_transient_gym_checkpoint_failure,
)
from gymckpt.journal import Journal, default_run, warn_of_generated
from gymckpt.manifest import (
    GYM_CHECKPOINT_MANIFEST_FILENAME,
    GYM_CHECKPOINT_SCHEMA_VERSION,
    GymCheckpointManifest,
    load_gym_checkpoint_manifest,
    make_checkpoint_root,
    write_gym_checkpoint_manifest,
)
from gymckpt.operations import Operations
from gymckpt.recovery import Recovered
from gymckpt.replies import (
    GymCheckpointCommitSummary,
    GymCheckpointPrepareSummary,
    staging_keys_of,
)
from gymckpt.roots import require_root
from gymckpt.running import BodyGuard, Running
from gymckpt.runtime.clock import Clock, SystemClock
from gymckpt.runtime.instances import ask_all, cancel_remote, require_handles
from gymckpt.runtime.worker import run_bounded
from gymckpt.standins import forbid_retry
from gymckpt.topology import (
    require_disjoint,
    require_inventory,
    require_no_restart,
    require_topology,
    to_facts,
)
from gymckpt.values import plain
from gymckpt.visibility import Visibility, Written, require_written

__all__ = [
    "GYM_CHECKPOINT_MANIFEST_FILENAME",
    "GYM_CHECKPOINT_SCHEMA_VERSION",
    "GymCheckpointCommitResult",
    "GymCheckpointCommitSummary",
    "GymCheckpointCoordinator",
    "GymCheckpointManifest",
    "GymCheckpointNotReady",
    "GymCheckpointOperationError",
    "GymCheckpointPrepareSummary",
    "is_transient_gym_checkpoint_failure",
    "load_gym_checkpoint_manifest",
    "staging_keys_of",
    "write_gym_checkpoint_manifest",
]

_MAX_REPLY_GRACE_S = 5.0
_RESUME_ATTEMPTS = 2
_RESUME_RETRY_PAUSE_S = 1.0

Episodes = Mapping[str, tuple[EnvironmentEpisode, ...]]


def _cancel_remote(reference: Any) -> None:
    """Ask Ray to stop a control call RL stopped waiting for; best effort."""
    cancel_remote(reference)


class GymCheckpointCoordinator:
    """
    Drive one Gym checkpoint operation across every NeMo-Gym actor.

    Every operation is a persisted state machine: each transition is durable in the journal before
    it is acted on, and each instance that may have been closed is reopened, whatever happens. One
    coordinator has at most one open checkpoint or restore.

    It may be used in one event loop after another, as with one `asyncio.run` per snapshot. What an
    earlier loop left under way, such as an instance that has not confirmed its resume, goes on with
    the next verb; between two loops nothing does, not even the renewal of leases. Used in a second
    loop while the first is not closed, such an operation raises `RuntimeError`.
    """

    def __init__(
        self,
        shard_set: Any,
        *,
        control_timeout_s: float,
        prepare_timeout_s: float,
        journal: Journal | str | Path | None = None,
        run: str | None = None,
        retry: Mapping[str, RetryPolicy] | None = None,
        lease_grace_s: float = 600.0,
        settle_s: float = 1.0,
        sweep_interval_s: float = 30.0,
        journal_timeout_s: float = 10.0,
        owner_timeout_s: float = OWNER_TIMEOUT_S,
        written: Written = "auto",
        clock: Clock | None = None,
    ) -> None:
        """
        Drive the instances of a shard set; nothing is sent or opened yet.

        Args:
            shard_set: Anything with `checkpoint_handles`: instance id to handle, a Ray actor or
                any object whose `checkpoint_*` methods have a `.remote` that gives an awaitable.
            control_timeout_s: Budget of every call but prepare, in seconds.
            prepare_timeout_s: Budget of prepare, in seconds.
            journal: A journal or its URL; None is `$GYMCKPT_JOURNAL`, else a file in the
                platform's state directory.
            run: Names the training run, which one process holds at a time; None is
                `$GYMCKPT_RUN`, else generated, which keeps no other process away.
            retry: Call to its retry policy, over the defaults: resume twice, others once.
            lease_grace_s: How long after the last deadline an instance stays parked without its
                controller; must be at least the instances' own.
            settle_s: How long other replies are waited for once a call can no longer succeed.
            sweep_interval_s: Pause between background tries to reopen what is unconfirmed.
            journal_timeout_s: How long one journal call may take before it counts as unavailable.
            owner_timeout_s: How long this process must be silent before another one may take the
                run over; it gives a heartbeat more often than that.
            written: Whose files must be seen below the root before the manifest is written.
                `auto`: of every instance that says `written_below_root`; of the others all that
                exported something or none, with a warning once where none is seen. `require`: of
                every instance that says so or exported something. `ignore`: it does not look.
            clock: The clocks; None is the host's.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: A duration is not positive and finite, there is no instance, an id is
                malformed, or `written` is another word.
        """
        self._handles = require_handles(shard_set)
        self._live = tuple(self._handles)
        self._retry = require_policies({} if retry is None else retry)
        self._fixed = {
            "control_timeout_s": require_duration(control_timeout_s, "control_timeout_s"),
            "prepare_timeout_s": require_duration(prepare_timeout_s, "prepare_timeout_s"),
            "lease_grace_s": require_duration(lease_grace_s, "lease_grace_s"),
            "settle_s": require_duration(settle_s, "settle_s", zero=True),
            "sweep_interval_s": require_duration(sweep_interval_s, "sweep_interval_s"),
        }
        # Half of what sealing may take: the rest is for the manifest.
        bound_s = self._fixed["control_timeout_s"] / 2
        self._visibility = Visibility(require_written(written), bound_s=bound_s)
        self._operations = Operations(
            handles=self._handles,
            run=default_run() if run is None else require_operation_id(run, "run"),
            journal=journal,
            journal_timeout_s=require_duration(journal_timeout_s, "journal_timeout_s"),
            owner_timeout_s=require_duration(owner_timeout_s, "owner_timeout_s"),
            clock=clock or SystemClock(),
            settings=self._settings,
            cancel_reference=lambda reference: _cancel_remote(reference),  # noqa: PLW0108 - looked up late
        )
        if run is None:
            warn_of_generated(self.run)

    def close(self) -> None:
        """
        Give the run back, so that another process may have it at once, and let the journal go.

        What instances have not confirmed yet is left to the next recovery. A verb that comes after
        this claims the run again.

        Raises:
            OperationOpen: A checkpoint or restore is open; nothing was done.
        """
        self._operations.close()

    # --- what it is -----------------------------------------------------------------------------

    @property
    def instance_ids(self) -> frozenset[str]:
        """The instances that every checkpoint and restore concerns."""
        return frozenset(self._handles)

    @property
    def handles(self) -> Mapping[str, Any]:
        """Instance id to the handle behind which it is."""
        return MappingProxyType(self._handles)

    @property
    def control_timeout_s(self) -> float:
        """Maximum wall-clock budget for one coordinated control call but prepare."""
        return self._fixed["control_timeout_s"]

    @property
    def owner_timeout_s(self) -> float:
        """How long this process must be silent before another one may take the run over."""
        return self._operations.owner_timeout_s

    @property
    def run(self) -> str:
        """The training run under which the journal keeps the operations."""
        return self._operations.run

    def require_none_open(self, wanted: str) -> None:
        """
        Pass unless a checkpoint or restore is open on this coordinator.

        Args:
            wanted: What would begin, for the error.

        Raises:
            OperationOpen: One is.
        """
        self._operations.require_none_open(wanted)

    def has_opened(self, operation_id: str) -> bool:
        """
        Whether a checkpoint or restore was opened here last, so that something may have been sent.

        Args:
            operation_id: Its id.
        """
        last = self._operations.last
        return last is not None and last.wire_id == operation_id

    def stands(self, operation_id: str) -> bool:
        """
        Whether a checkpoint or restore that was opened here last has succeeded.

        Args:
            operation_id: Its id.
        """
        last = self._operations.last
        ended_well = last is not None and last.operation.state in ("resuming", "resumed")
        return ended_well and self.has_opened(operation_id)

    # --- verbs ----------------------------------------------------------------------------------

    async def prepare(self, checkpoint_id: str) -> dict[str, GymCheckpointPrepareSummary]:
        """
        Park every instance and renew its lease once; leases are renewed until resume.

        Args:
            checkpoint_id: Never used before in this run.

        Returns:
            Instance id to what it answered.

        Raises:
            ValueError: The id is malformed or was used before.
            OperationOpen: Another operation is open on this coordinator.
            RunHeld: Another process holds the run and is alive; nothing was sent.
            Fenced: Another process has taken the run over; nothing was sent.
            GymCheckpointNotReady: Some instance could not park in time; all were reopened.
            GymCheckpointOperationError: A call failed on some instance; all were reopened.
            JournalError: The journal cannot be written; nothing was sent, or all were reopened.
        """
        async with self._checkpoint(checkpoint_id) as (_, calls):
            return dict(calls.prepared)

    async def renew(self, checkpoint_id: str) -> None:
        """
        Renew the lease of every instance now, besides the renewals that go on by themselves.

        Args:
            checkpoint_id: The open checkpoint or restore.

        Raises:
            ValueError: The id is malformed.
            IllegalTransition: No operation of that id is parked on this coordinator.
            GymCheckpointOperationError: A lease was lost; all instances were reopened.
        """
        checkpoint_id = require_operation_id(checkpoint_id, "checkpoint id")
        running = self._operations.require_open(checkpoint_id, "renew")
        if not running.operation.row.renews:
            raise _illegal(running, "renew")
        with running.in_verb():
            if not await running.scheduler.renewed():
                await running.end(running.error())

    async def restart_only_servers(self) -> dict[str, list[str]]:
        """
        Return each instance's Gym participants whose rollouts start over after a crash.

        Raises:
            GymCheckpointOperationError: Some instance did not answer, or not with names.
        """
        settings = self._settings()
        replies, failures = await ask_all(
            self._handles,
            "checkpoint_restart_only_servers",
            timeout_s=settings.control_timeout_s + settings.reply_grace_s,
            cancel_reference=lambda reference: _cancel_remote(reference),  # noqa: PLW0108 - looked up late
        )
        servers: dict[str, list[str]] = {}
        for instance, reply in replies.items():
            try:
                servers[instance] = list(require_names(copied(reply), "restart-only servers"))
            except (TypeError, ValueError) as error:
                failures[instance] = error
        if failures:
            raise GymCheckpointOperationError("restart_only_servers", failures)
        return servers

    async def commit(
        self,
        checkpoint_id: str,
        checkpoint_root: str | Path,
        episodes_by_instance: Episodes,
        *,
        restarts: Mapping[str, Collection[EnvironmentEpisode]],
    ) -> GymCheckpointCommitResult:
        """
        Save `episodes_by_instance` and record `restarts` as starting over.

        Args:
            checkpoint_id: The checkpoint, parked.
            checkpoint_root: The unpublished snapshot's directory; the manifest is written there
                last, after every instance's reply was validated. A relative path or `~` is
                resolved on this host, and instances are told the absolute path.
            episodes_by_instance: Every instance to the episodes to save.
            restarts: Instance to the episodes that it reported as starting over, as `prepared`
                yields them.

        Returns:
            The manifest and every instance's summary. An episode whose state its instance could
            not save is a restart in the manifest; `unsavable` of the result says why.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The topology does not match, a rollout is named twice, or the root is a URL
                or unsafe; nothing was sent.
            IllegalTransition: The checkpoint is not parked on this coordinator; nothing was sent.
            GymCheckpointOperationError: A call failed; no manifest appears, all were reopened.
            RecordsNotVisible: What an instance wrote is not visible from here, see `written`; no
                manifest appears, all were reopened.
            OSError: The directory could not be made, or the manifest not be made durable; none
                appears, all were reopened.
        """
        checkpoint_id = require_operation_id(checkpoint_id, "checkpoint id")
        root = require_root(checkpoint_root)
        offered = require_inventory(
            episodes_by_instance, self._live, "episodes_by_instance", whole=True
        )
        left_out = require_inventory(restarts, self._live, "restarts", whole=False)
        require_disjoint(offered, left_out)
        running = self._operations.require_open(checkpoint_id, "commit")
        calls = running.calls
        legal = "commit" in running.operation.declared.legal(running.operation.state)
        if not isinstance(calls, CheckpointCalls) or calls.offer is not None or not legal:
            raise _illegal(running, "commit")
        require_no_restart(offered, calls.restarts)
        calls.offer = Offer(root=root, episodes=offered, restarts=left_out)
        with running.in_verb():
            try:
                await run_bounded(
                    lambda: make_checkpoint_root(root),
                    "gymckpt-checkpoint-root",
                    timeout_s=self.control_timeout_s,
                )
            except BaseException as error:
                await running.give_up(_giving_up(error), error)
                raise
        counts = {instance: len(episodes) for instance, episodes in offered.items()}
        facts = {"root": root, "offered": counts}
        await running.advance("commit", "committed", facts)
        return calls.result

    async def retire(self, checkpoint_id: str, episodes_by_instance: Episodes) -> None:
        """
        Retire selected physical attempts from every Gym deployment.

        Args:
            checkpoint_id: A new id, or that of the restore which is open.
            episodes_by_instance: Every instance to the attempts to stop, with all earlier ones.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The topology does not match or the id was used; nothing was sent.
            OperationOpen: A checkpoint is open: stopping an episode would wait for its resume.
            GymCheckpointOperationError: Some instance failed.
        """
        inventory = require_inventory(
            episodes_by_instance, self._live, "episodes_by_instance", whole=True
        )
        await self._operations.sweep("retire", checkpoint_id, inventory)

    async def forget(self, checkpoint_id: str, episodes_by_instance: Episodes) -> None:
        """
        Let Gym stop refusing these rollouts: RL will never send them again.

        Args:
            checkpoint_id: A new id.
            episodes_by_instance: Instance to episodes of finished rollouts; each rollout is named
                once to each instance that has something to forget, the others get no call.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An instance is unknown, or the id was used; nothing was sent.
            OperationOpen: A checkpoint or restore is open.
            GymCheckpointOperationError: Some instance failed.
        """
        inventory = require_inventory(
            episodes_by_instance, self._live, "episodes_by_instance", whole=False, repeats=True
        )
        rollouts = {
            instance: tuple(dict.fromkeys(episode.rollout_id for episode in episodes))
            for instance, episodes in inventory.items()
            if episodes
        }
        await self._operations.sweep("forget", checkpoint_id, rollouts)

    async def retire_restored(self, restore_id: str, manifest: GymCheckpointManifest) -> None:
        """
        Retire the replacement attempts installed by a successful restore.

        Args:
            restore_id: The restore, open or not.
            manifest: What it restored.

        Raises:
            TypeError: `manifest` is no manifest.
            ValueError: Its topology does not match; nothing was sent.
            GymCheckpointOperationError: Some instance failed.
        """
        self._require_manifest(manifest)
        self._operations.note_retired(restore_id)
        await self.retire(restore_id, manifest.next_attempts())

    async def retire_unwanted(
        self, episodes_by_instance: Episodes
    ) -> Mapping[str, tuple[EnvironmentEpisode, ...]]:
        """
        Retire attempts that nobody wants any more, now or once what is open has ended.

        Args:
            episodes_by_instance: Instance to those attempts.

        Returns:
            What is not confirmed yet. It is tried again now and then while nothing is open, until
            the lease grace has passed; a controller that recovers goes on with that.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An instance is unknown; nothing was sent.
        """
        unwanted = require_inventory(
            episodes_by_instance, self._live, "episodes_by_instance", whole=False
        )
        return await self._operations.retire_unwanted(unwanted)

    async def restore(
        self, restore_id: str, checkpoint_root: str | Path, manifest: GymCheckpointManifest
    ) -> None:
        """
        Install every saved episode as its next attempt, parked until `resume`, or none at all.

        Args:
            restore_id: Never used before in this run.
            checkpoint_root: The committed snapshot; only read.
            manifest: What it holds.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The topology does not match, the id was used, or the root is a URL or
                unsafe; nothing was sent.
            OperationOpen: Another operation is open on this coordinator.
            GymCheckpointOperationError: Some instance failed; the restored attempts were retired
                and all instances reopened.
        """
        async with self._restore(restore_id, checkpoint_root, manifest):
            pass

    async def resume(self, checkpoint_id: str) -> None:
        """
        Reopen every deployment, retrying the ones a transient failure left closed.

        Args:
            checkpoint_id: The open operation, which it ends; any other id is fenced everywhere,
                so that a call of it that is still on its way is refused.

        Raises:
            ValueError: The id is malformed.
            OperationOpen: Another operation is open.
            GymCheckpointOperationError: Some instance is not confirmed open after the tries; it is
                tried again in the background until its lease reopens it.
        """
        checkpoint_id = require_operation_id(checkpoint_id, "resume id")
        running = self._operations.open
        if running is None or running.wire_id != checkpoint_id:
            await self._operations.sweep(RESUME, checkpoint_id, None)
            return
        await running.end_well()
        failures = running.scheduler.unconfirmed(RESUME)
        if failures:
            raise GymCheckpointOperationError(RESUME, failures)

    async def recover(self, *, force: bool = False) -> tuple[Recovered, ...]:
        """
        Settle what an earlier controller of this run left unfinished.

        Args:
            force: Whether to take the run from another process that is alive.

        Returns:
            What came of each operation. Without force, the run is claimed only if there is one.

        Raises:
            JournalError: The journal cannot be read or written.
        """
        return await self._operations.recover(force=force)

    async def history(self, operation_id: str) -> tuple[Entry, ...]:
        """
        Return the journal's entries of one operation of this run, in order.

        Args:
            operation_id: A checkpoint, restore or sweep.

        Raises:
            JournalError: The journal cannot be read, or there is no such operation.
        """
        return await self._operations.history(plain(operation_id))

    # --- context managers -----------------------------------------------------------------------

    @asynccontextmanager
    async def prepared(
        self, checkpoint_id: str
    ) -> AsyncIterator[dict[str, frozenset[EnvironmentEpisode]]]:
        """
        Prepare every deployment, renew its lease, and always release it.

        Args:
            checkpoint_id: Never used before in this run.

        Yields:
            Each instance's restarts: the episodes that a commit must leave out.

        Raises:
            BaseException: What `prepare` raises, or what the body raised, after every instance
                was reopened. A body whose lease is lost is cancelled, and the renewal's error
                leaves. A resume that still fails after a good body is reported, not raised.
        """
        async with self._checkpoint(checkpoint_id) as (running, calls), _body(running):
            yield calls.restarts

    @asynccontextmanager
    async def restored(
        self, restore_id: str, checkpoint_root: str | Path, manifest: GymCheckpointManifest
    ) -> AsyncIterator[None]:
        """
        Restore every deployment for the body, then always reopen it once.

        Args:
            restore_id: Never used before in this run.
            checkpoint_root: The committed snapshot; only read.
            manifest: What it holds.

        Raises:
            BaseException: What `restore` raises, or what the body raised, after the restored
                attempts were retired and every instance was reopened.
        """
        async with self._restore(restore_id, checkpoint_root, manifest) as running, _body(running):
            yield

    # --- small parts ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _checkpoint(
        self, checkpoint_id: str
    ) -> AsyncIterator[tuple[Running, CheckpointCalls]]:
        """Yield a checkpoint that is parked."""
        checkpoint_id = require_operation_id(checkpoint_id, "checkpoint id")
        calls = CheckpointCalls(checkpoint_id, self._handles, self._visibility)
        async with self._begun("checkpoint", checkpoint_id, calls, {}) as running:
            await running.advance("prepare", "parked")
            yield running, calls

    @asynccontextmanager
    async def _restore(
        self, restore_id: str, checkpoint_root: str | Path, manifest: GymCheckpointManifest
    ) -> AsyncIterator[Running]:
        """Yield a restore that has installed everything."""
        restore_id = require_operation_id(restore_id, "restore id")
        self._require_manifest(manifest)
        source = RestoreSource(root=require_root(checkpoint_root), manifest=manifest)
        calls = RestoreCalls(restore_id, manifest.instances, source)
        facts = {
            "root": source.root,
            "source_checkpoint_id": manifest.checkpoint_id,
            "inventory": to_facts(manifest.instances),
        }
        async with self._begun("restore", restore_id, calls, facts) as running:
            await running.advance(
                "restore", "restored", begun=lambda: self._operations.supersede(running)
            )
            yield running

    @asynccontextmanager
    async def _begun(
        self, chart: str, wire_id: str, calls: Calls, facts: Mapping[str, Any]
    ) -> AsyncIterator[Running]:
        """Open an operation; whatever is raised from here on gives it up and reopens everything."""
        running = await self._operations.begin(chart, wire_id, calls, facts)
        try:
            yield running
        except BaseException as error:
            closed = isinstance(error, GeneratorExit)  # what is closed may await nothing any more
            if not (closed or running.ending or running.operation.cleaning):
                await running.give_up(_giving_up(error), error)
            _forbid_retry_of_restore(running, error)
            raise

    def _settings(self) -> Settings:
        """Return what bounds an operation that is opened now."""
        resume = RetryPolicy(attempts=_RESUME_ATTEMPTS, pause_s=_RESUME_RETRY_PAUSE_S)
        return Settings(
            **self._fixed,
            reply_grace_s=min(self.control_timeout_s, _MAX_REPLY_GRACE_S),
            retries={RESUME: resume, **self._retry},
        )

    def _require_manifest(self, manifest: object) -> None:
        if not isinstance(manifest, GymCheckpointManifest):
            raise TypeError(f"a GymCheckpointManifest is needed, not {type(manifest).__name__}")
        require_topology(list(manifest.instances), self.instance_ids, "the manifest")


@asynccontextmanager
async def _body(running: Running) -> AsyncIterator[None]:
    """Watch over a body, and end the operation as the body ends."""
    guard = BodyGuard(running)
    try:
        guard.watch()
        yield
    except BaseException as error:
        await running.after_failed_body(guard, error)
        raise
    await running.after_body(guard)


def _forbid_retry_of_restore(running: Running, error: BaseException) -> None:
    """Mark what would seem transient of a restore that may have installed something."""
    operation, calls = running.operation, running.calls
    if not isinstance(calls, RestoreCalls) or "restore" not in operation.calls:
        return
    if not is_transient_gym_checkpoint_failure(error):
        return
    count = sum(
        len(episodes)
        for instance, episodes in calls.saved.items()
        if operation.call_state("restore", instance).state != "gone"
    )
    if count and operation.state not in ("resuming", "resumed"):
        forbid_retry(
            error,
            f"the {count} attempt(s) that restore {running.wire_id!r} was to install are refused "
            "from now on, so trying it again cannot succeed: start their rollouts over as later "
            "attempts, forget them, or restore another snapshot",
        )


def _illegal(running: Running, verb: str) -> IllegalTransition:
    """Return the error of a verb that the open operation cannot take now."""
    operation = running.operation
    return IllegalTransition(
        operation.chart,
        operation.chart_version,
        operation.state,
        verb,
        operation.declared.legal(operation.state),
        subject=running.wire_id,
    )


def _giving_up(error: BaseException) -> str:
    """Return the trigger that gives an operation up because of an error."""
    return "discard" if isinstance(error, Exception) else "cancel"
