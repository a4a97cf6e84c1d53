"""
An account of one explored operation that the core does not keep, and what must hold of it.

It notes which calls left, what came back for those that were waited for and what was done to the
file, and holds S1 to S5 against that. It shares no code with `gymckpt.core.invariants`, which looks
at entries: what one of the two misses, the other may find.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gymckpt.core.events import Replied

__all__ = ["Account", "Broken", "Notes", "began_file", "note_cancel", "note_reply", "note_send"]

DRIVING = frozenset({"prepare", "renew", "commit", "restore"})
CLOSING = frozenset({"prepare", "restore"})
BEFORE_COMMIT = frozenset({"prepare", "renew"})

FINE, SHAKY, LOST = 0, 1, 2
"""How a renewal stands: in no trouble, in trouble, its lease known to be lost."""


class Broken(Exception):
    """
    A promise does not hold.

    Attributes:
        promise: Which one.
        what: What was seen.
    """

    def __init__(self, promise: str, what: str) -> None:
        self.promise = promise
        self.what = what
        super().__init__(f"{promise}: {what}")


class Notes(NamedTuple):
    """What is known of one instance, from what left and what came back."""

    waiting: tuple[tuple[str, int, float], ...] = ()
    """The asks that are waited for: call, number, deadline by the operation's clock."""
    sent: frozenset[str] = frozenset()
    """The calls that were ever sent."""
    answered: frozenset[str] = frozenset()
    """The calls that were answered while waited for; a prepare takes the renewal before it away."""
    trouble: int = FINE
    acknowledged_at_s: float = 0.0
    confirmed: bool = False
    """Whether an answer to a resume has come, whichever ask it was of."""
    dead: bool = False
    ends_at_s: float = 0.0
    """The deadline of the latest retire, until that came back: it may arrive as long as that."""
    superseded: bool = False
    """Whether a later restore retires its attempts from now on."""


class Account(NamedTuple):
    """What is known of one operation."""

    notes: tuple[Notes, ...]
    writes: int = 0
    kept: bool = False
    """Whether the caller took a restore over, so that nothing is to be retired."""

    def sent(self, *calls: str) -> frozenset[int]:
        """Return the instances to which one of the calls was sent."""
        asked = frozenset(calls)
        return frozenset([i for i, one in enumerate(self.notes) if not asked.isdisjoint(one.sent)])

    def ever_sent(self, call: str) -> bool:
        """Whether a call was sent to any instance."""
        return any(call in one.sent for one in self.notes)

    def changed(self, instance: int, notes: Notes) -> Account:
        """Return the account with one instance's notes replaced."""
        return self._replace(notes=(*self.notes[:instance], notes, *self.notes[instance + 1 :]))

    def keeping(self) -> Account:
        """Return the account when the caller has taken a restore over: only new renewals count."""
        notes = tuple(
            one._replace(
                answered=one.answered - {"renew"},
                waiting=tuple(ask for ask in one.waiting if ask[0] != "renew"),
            )
            for one in self.notes
        )
        return self._replace(notes=notes, kept=True)

    def hold_reopening(self) -> None:
        """Require S5 when a resume leaves: a restore stands, or everybody is asked to retire."""
        if not self.ever_sent("restore") or (self.kept and self.all_answered("renew")):
            return
        if left := self.sent("restore") - self.sent("retire"):
            raise Broken("S5", f"it stands, but instance {min(left)} has not proved what it holds")

    def hold_anew(self, instance: int, *, at_s: float, grace_s: float, is_open: bool) -> None:
        """Require S5 when a retire leaves under an id of its own."""
        one = self.notes[instance]
        if one.superseded:
            raise Broken("S5", f"attempts of instance {instance} are retired that are superseded")
        if not is_open:
            raise Broken("S5", f"instance {instance} is asked to retire anew before it is open")
        if one.ends_at_s and at_s < one.ends_at_s + grace_s:
            raise Broken("S5", f"two retires are on their way to instance {instance}")

    def hold_retired(self, runs: Iterable[bool], *, horizon_passed: bool) -> None:
        """Require S5 of what has ended: nothing that was to be retired goes on."""
        for number, (one, goes_on) in enumerate(zip(self.notes, runs, strict=True)):
            if one.superseded or one.dead:
                continue
            if "retire" in one.answered:
                if goes_on:
                    raise Broken("S5", f"instance {number} goes on with an attempt it has retired")
            elif not horizon_passed:
                raise Broken("S5", f"ended while instance {number} may go on with its attempt")

    def hold_released(self) -> None:
        """Require S3 at the moment when the caller is let go."""
        left = self.sent(*CLOSING) - self.sent("resume")
        if left:
            raise Broken("S3", f"released, but instance {min(left)} was never asked to resume")

    def hold_ended(self, chart: str, state: str, *, manifest: bool, horizon_passed: bool) -> None:
        """Require S2, S3 and S5 of an operation that has reached a final state."""
        if chart == "checkpoint" and manifest != (state == "resumed"):
            raise Broken("S2", f"ended in {state} and the manifest {_exists(manifest)}")
        unsure = [
            number
            for number in self.sent(*CLOSING)
            if not (self.notes[number].confirmed or self.notes[number].dead or horizon_passed)
        ]
        if unsure:
            raise Broken("S3", f"ended in {state} while instance {unsure[0]} may still be closed")
        if chart == "restore" and state == "resumed" and not self.all_answered("restore"):
            raise Broken("S5", "the restore stands, though not every instance has installed it")

    def all_answered(self, call: str) -> bool:
        """Whether every instance has answered a call while it was waited for."""
        return all(call in one.answered for one in self.notes)


def _exists(manifest: bool) -> str:
    return "exists" if manifest else "does not exist"


def note_send(
    account: Account, instance: int, call: str, ask: int, now: tuple[float, float]
) -> Account:
    """
    Note that an ask leaves, after holding it against S1, S4 and S5.

    Args:
        account: What is known before.
        instance: Whom it goes to.
        call: What is asked.
        ask: The number of the ask.
        now: The operation's clock, and the deadline of the ask by it.

    Raises:
        Broken: It must not leave.
    """
    at_s, ends_at_s = now
    if call in DRIVING and account.ever_sent("resume"):
        raise Broken("S4", f"{call} is sent to instance {instance} after a resume was sent")
    if call == "commit":
        _hold_commit(account, at_s)
    if call == "resume" and not account.kept and account.ever_sent("restore"):
        left = account.sent("restore") - account.sent("retire")
        if left:
            raise Broken("S5", f"instance {min(left)} is not asked to retire before the reopening")
    before = account.notes[instance]
    others = [one for one in before.waiting if one[0] != call]
    if call != "resume" and len(others) < len(before.waiting):
        raise Broken("S6", f"two {call} to instance {instance} at once")
    waiting = tuple(sorted([*others, (call, ask, ends_at_s)]))
    after = before._replace(waiting=waiting, sent=before.sent | {call})
    if call == "retire":
        after = after._replace(ends_at_s=ends_at_s)
    return account.changed(instance, after)


def _hold_commit(account: Account, at_s: float) -> None:
    for number, one in enumerate(account.notes):
        if not one.answered >= BEFORE_COMMIT:
            missing = min(BEFORE_COMMIT - one.answered)
            raise Broken("S1", f"commit is sent; instance {number} has not answered {missing}")
        if one.trouble == LOST or (one.trouble == SHAKY and one.acknowledged_at_s <= at_s):
            raise Broken("S1", f"commit is sent; the lease of instance {number} is lost")


def note_cancel(account: Account, instance: int, call: str) -> Account:
    """Note that nobody waits for a call to an instance any more."""
    before = account.notes[instance]
    if all(name != call for name, _, _ in before.waiting):
        return account
    trouble = max(before.trouble, SHAKY) if call == "renew" else before.trouble
    waiting = tuple(one for one in before.waiting if one[0] != call)
    return account.changed(instance, before._replace(waiting=waiting, trouble=trouble))


def note_reply(account: Account, instance: int, reply: Replied) -> Account:
    """Note what came back; what nobody waits for proves no more than a death or a resume."""
    before = account.notes[instance]
    failure, answered = reply.failure, reply.outcome == "answered"
    new: dict[str, Any] = {
        "dead": before.dead or (failure is not None and failure.dead),
        "confirmed": before.confirmed or (reply.call == "resume" and answered),
    }
    awaited = [one for one in before.waiting if one[:2] == (reply.call, reply.ask)]
    if awaited:
        new["waiting"] = tuple([one for one in before.waiting if one not in awaited])
        if reply.call == "retire":
            new["ends_at_s"] = 0.0
        if answered:
            known = before.answered - {"renew"} if reply.call == "prepare" else before.answered
            proves = not reply.facts.get("empty")  # what it does not hold it cannot answer for
            new["answered"] = known | {reply.call} if proves else known
            new["acknowledged_at_s"] = max(before.acknowledged_at_s, awaited[0][2])
        if reply.call == "renew":
            lost = failure is None or failure.dead or not failure.transient
            worse = max(before.trouble, LOST if lost else SHAKY)
            new["trouble"] = FINE if answered else worse
    return account.changed(instance, before._replace(**new))


def began_file(account: Account) -> Account:
    """
    Note that the manifest is to be written.

    Raises:
        Broken: It is written twice or early.
    """
    if account.writes:
        raise Broken("S2", "the manifest is written a second time")
    if not account.all_answered("commit"):
        left: Iterable[int] = (
            number for number, one in enumerate(account.notes) if "commit" not in one.answered
        )
        raise Broken("S2", f"the manifest is written before instance {min(left)} has committed")
    return account._replace(writes=1)
