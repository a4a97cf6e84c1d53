"""
One write of one checkpoint: what every server saves, and whose state cannot be saved.

All servers write before any of them publishes, so that an episode which one server cannot save is
left out by all. Such an episode starts over after a crash, and the others are saved without it. Who
it was is known from its record where that is no JSON data; where the backend's code raised instead,
each episode is asked for alone. What then fails for no single episode fails the write, as does
whatever the disk refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import cast

import attrs

from gymckpt.checks import require_names
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.episodes import LiveEpisode
from gymckpt.participant.exact_json import Record, encode_record
from gymckpt.participant.servers import Server
from gymckpt.participant.store import RecordsStore, Staged
from gymckpt.participant.work import Work, Workshop
from gymckpt.standins import text_of_failure
from gymckpt.wording import text_of

__all__ = ["Saving"]

REASON_MAX = 300
"""How many characters of the reason are kept why an episode cannot be saved."""

RecordsOf = Callable[[Server, Sequence[LiveEpisode]], Iterable[Record]]


@attrs.define
class _Share:
    """What came of one server's part: staged records, or an error."""

    staged: Staged | None = None
    error: Exception | None = None
    by_backend: bool = False
    """Whether the error came from the records, not from the disk."""


class Saving:
    """
    The write of some parked episodes.

    Attributes:
        unsavable: The episodes that are left out, each with the reason.
    """

    def __init__(
        self,
        work: Work,
        workshop: Workshop,
        stores: Mapping[Server, RecordsStore],
        records_of: RecordsOf,
        *,
        strict: bool,
    ) -> None:
        """
        Begin without having written anything.

        Args:
            work: For which work.
            workshop: Where threads are.
            stores: Every server's files.
            records_of: What a server saves of some episodes; called in the event loop.
            strict: Whether an episode that cannot be saved fails the write instead.
        """
        self.unsavable: dict[EnvironmentEpisode, str] = {}
        self._work = work
        self._workshop = workshop
        self._stores = stores
        self._records_of = records_of
        self._strict = strict

    def rows_of(self, found: Iterable[LiveEpisode]) -> dict[EnvironmentEpisode, tuple[str, ...]]:
        """Return the rows that each episode still needs, as far as it can say."""
        rows: dict[EnvironmentEpisode, tuple[str, ...]] = {}
        for live in found:
            try:
                rows[live.episode] = require_names(tuple(live.body.row_keys), "row_keys")
            except Exception as error:  # a backend's own code
                self._leave_out(live.episode, error)
        return rows

    async def stage(self, found: Sequence[LiveEpisode]) -> dict[RecordsStore, Staged]:
        """
        Write the records of all servers, without those of episodes that cannot be saved.

        Args:
            found: The episodes.

        Raises:
            ParticipantRefused: The work was stopped.
            Exception: The disk refused, or what failed is no single episode's; nothing is staged.
        """
        while True:
            kept = [live for live in found if live.episode not in self.unsavable]
            known = len(self.unsavable)
            shares = await self._shares(kept)
            wanted = not self._work.stopped.is_set()
            if (
                wanted
                and known == len(self.unsavable)
                and not any(share.error for share in shares.values())
            ):
                return {
                    self._stores[server]: share.staged
                    for server, share in shares.items()
                    if share.staged is not None
                }
            staged = [share.staged for share in shares.values() if share.staged is not None]
            await self._in_threads([one.discard for one in staged])
            self._work.require_wanted()
            for server, share in shares.items():
                if share.error is not None and not share.by_backend:
                    raise share.error
                if share.error is not None and known == len(self.unsavable):
                    await self._ask_each(server, kept)
                if share.error is not None and known == len(self.unsavable):
                    raise share.error

    async def publish(self, staged: Mapping[RecordsStore, Staged]) -> None:
        """Make what was staged count."""
        stop = self._work.stopped.is_set
        await self._in_threads([partial(store.publish, one, stop) for store, one in staged.items()])

    async def _shares(self, kept: Sequence[LiveEpisode]) -> dict[Server, _Share]:
        """Let every server write; what fails is kept for the caller to look at."""
        shares: dict[Server, _Share] = {}
        jobs: list[Callable[[], None]] = []
        for server, store in self._stores.items():
            share = shares[server] = _Share()
            self._work.require_wanted()
            try:
                records = self._records_of(server, kept)
            except Exception as error:  # a backend's own code
                share.error, share.by_backend = error, True
                continue
            jobs.append(partial(self._stage, share, store, records, kept))
        await self._in_threads(jobs)
        return shares

    def _stage(
        self,
        share: _Share,
        store: RecordsStore,
        records: Iterable[Record],
        kept: Sequence[LiveEpisode],
    ) -> None:
        """Write one server's share, in a thread."""
        lines = self._lines(share, records, kept)
        try:
            share.staged = store.stage(
                self._work.checkpoint_id, lines, stop=self._work.stopped.is_set
            )
        except Exception as error:
            share.error = error

    def _lines(
        self, share: _Share, records: Iterable[Record], kept: Sequence[LiveEpisode]
    ) -> Iterator[bytes]:
        share.by_backend = True
        for record in records:
            try:
                line = encode_record(record)
            except Exception as error:  # a backend's own data
                owner = _owner_of(record, kept)
                if owner is None:
                    raise
                self._leave_out(owner, error)
                continue
            share.by_backend = False
            yield line
            share.by_backend = True
        share.by_backend = False

    async def _ask_each(self, server: Server, kept: Sequence[LiveEpisode]) -> None:
        """Leave out each episode that fails alone as well."""
        asked: list[tuple[LiveEpisode, Iterable[Record]]] = []
        for live in kept:
            self._work.require_wanted()
            try:
                asked.append((live, self._records_of(server, [live])))
            except Exception as error:  # a backend's own code
                self._leave_out(live.episode, error)

        def take() -> None:
            for live, records in asked:
                self._work.require_wanted()
                try:
                    for record in records:
                        encode_record(record)
                except Exception as error:  # a backend's own code
                    self._leave_out(live.episode, error)

        await self._in_threads([take])

    def _leave_out(self, episode: EnvironmentEpisode, error: Exception) -> None:
        if self._strict:
            raise error
        reason = text_of(text_of_failure(error), REASON_MAX)
        self.unsavable.setdefault(episode, reason)

    async def _in_threads(self, jobs: Sequence[Callable[[], object]]) -> None:
        await self._workshop.in_threads(self._work, jobs, bounded=False)


def _owner_of(record: object, kept: Sequence[LiveEpisode]) -> EnvironmentEpisode | None:
    """Return whose record it is, where it says so."""
    fields = cast("Mapping[str, object]", record if isinstance(record, Mapping) else {})
    named = (fields.get("rollout_id"), fields.get("attempt"))
    for live in kept:
        if (live.episode.rollout_id, live.episode.attempt) == named:
            return live.episode
    return None
