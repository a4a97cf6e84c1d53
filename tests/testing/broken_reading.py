"""Deployments with mistakes in how they read what was saved: each trusts one thing too much."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import attrs

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.participant.servers import Server
from gymckpt.participant.store import MANIFEST_FILE, Record, RecordsStore
from tests.testing.registry import broken, edit


class Lenient(RecordsStore):
    """Reads whatever lies there, and compares it with nothing."""

    def read(
        self, checkpoint_id: str, *, wanted: Callable[[Record], bool] = lambda _: True
    ) -> list[Record]:
        found = sorted(self.directory.glob("records-*.jsonl"))
        lines = [line for path in found for line in path.read_bytes().splitlines()]
        return [record for line in lines if wanted(record := json.loads(line))]


@broken
class TrustsItsFiles(GymnasiumDeployment):
    """Looks at no manifest, digest or count of what was saved."""

    def _store(self, root: Path, server: Server) -> RecordsStore:
        return Lenient(root, self.instance_id, server.kind, server.name)


class Careless(RecordsStore):
    """Looks at its records, and in its manifest for no more than it needs to find them."""

    def read(
        self, checkpoint_id: str, *, wanted: Callable[[Record], bool] = lambda _: True
    ) -> list[Record]:
        manifest = json.loads((self.directory / MANIFEST_FILE).read_bytes())
        if manifest["checkpoint_id"] != checkpoint_id:
            raise ValueError("another checkpoint")
        content = (self.directory / manifest["records_file"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest["records_sha256"]:
            raise ValueError("damaged")
        return [record for line in content.splitlines() if wanted(record := json.loads(line))]


@broken
class TrustsItsManifests(GymnasiumDeployment):
    """Compares its records with their digest, and its manifest with nothing."""

    def _store(self, root: Path, server: Server) -> RecordsStore:
        return Careless(root, self.instance_id, server.kind, server.name)


class AnyCheckpoint(RecordsStore):
    """Checks everything but whose checkpoint it is."""

    def read(self, checkpoint_id: str, **given: Any) -> list[Record]:
        manifest = json.loads((self.directory / MANIFEST_FILE).read_bytes())
        return super().read(manifest["checkpoint_id"], **given)


@broken
class TakesAnyCheckpoint(GymnasiumDeployment):
    """Restores from the checkpoint that lies there, whichever was asked for."""

    def _store(self, root: Path, server: Server) -> RecordsStore:
        return AnyCheckpoint(root, self.instance_id, server.kind, server.name)


@broken
class TakesAnyParticipants(GymnasiumDeployment):
    """Does not look at who took part in what it restores."""

    async def checkpoint_restore(
        self, *args: Any, participants: Collection[str], **kwargs: Any
    ) -> None:
        await super().checkpoint_restore(*args, participants=self._servers.names, **kwargs)


@broken
class SkipsWhatIsMissing(GymnasiumDeployment):
    """Restores those episodes that were saved, and says nothing of the others."""

    def rebuild(self, records: Any, episodes: Iterable[EnvironmentEpisode], wanted: Any) -> Any:
        known = {
            EnvironmentEpisode(record["rollout_id"], record["attempt"])
            for kept in records.values()
            for record in kept
        }
        saved = [episode for episode in episodes if episode in known]
        return super().rebuild(records, saved, wanted)


@broken
class RestoresRetired(GymnasiumDeployment):
    """Installs an attempt that was retired before."""

    async def checkpoint_restore(self, *args: Any, **kwargs: Any) -> None:
        marks = self._servers.all[0].control.state.marks
        edit(self, lambda state: {"marks": type(state.marks)()})
        try:
            await super().checkpoint_restore(*args, **kwargs)
        finally:
            for server in self._servers.all:
                control = server.control
                control._state = attrs.evolve(control._state, marks=marks)
