"""
A history told again as a world: what was answered, when, what the body did, how files fared.

`Past` reads a history; `Retold` is the wire and the handles by which a scheduler meets that past
again. What the history does not know is filled in with the closest that it knows, and counted.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import attrs

from gymckpt.core.effects import SendCall
from gymckpt.core.entry import Entry, JsonFacts
from gymckpt.core.operation import OperationState
from gymckpt.core.settings import RESUME
from gymckpt.diagnosis.facts import note_of
from gymckpt.runtime.wire import Judgement, Message
from gymckpt.wording import text_of

__all__ = ["SUPERSEDE", "AskKey", "Past", "Retold", "Tale", "Verb"]

AskKey = tuple[str, str, int]
"""Call, instance, number."""

TYPICAL_S = 0.05
"""How long an answer takes in a history that knows none."""

HUNG = "did not answer within"
"""What the core says of a file system that hangs."""

SUPERSEDE = "supersede"
"""What a later restore does, whatever the body does."""

_REPLIES = frozenset({"answer", "refuse", "fail", "die", "confirm", "stale"})
_VERBS = frozenset(
    {
        *("prepare", "restore", "run", "insist", "commit", "resume", "keep", "discard", "cancel"),
        SUPERSEDE,
    }
)


@attrs.frozen(kw_only=True)
class Tale:
    """What comes of one ask."""

    after_s: float | None
    """How long after the ask it comes back; None where it never does."""
    outcome: Literal["answered", "refused", "failed"] = "answered"
    facts: JsonFacts = attrs.field(factory=dict[str, Any])
    failure: JsonFacts | None = None


NEVER = Tale(after_s=None)
DEAD = Tale(
    after_s=0.0,
    outcome="failed",
    failure={
        "type": "ActorDiedError",
        "text": "the actor is dead",
        "transient": True,
        "dead": True,
    },
)


@attrs.frozen(kw_only=True)
class Verb:
    """Something that the controller's body, or whoever called it, did."""

    state: str
    after_s: float
    """How long after the operation had entered the state."""
    trigger: str
    facts: JsonFacts


@attrs.frozen(kw_only=True)
class FileTale:
    """What came of a file job."""

    takes_s: float | None
    """How long it took; None where it hung."""
    facts: JsonFacts
    failure: JsonFacts | None = None


class Past:
    """What a history knows of the world around its operation."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Read a history from its first entry."""
        self.tales: dict[AskKey, Tale] = {}
        self.asked_at_s: dict[AskKey, float] = {}
        self.verbs: list[Verb] = []
        self.files: dict[str, FileTale] = {}
        """`sealed` or `withdrawn` to what came of the latest job of that kind."""
        self.dead: set[str] = set()
        self.told_by: dict[int, AskKey] = {}
        """Seq of an entry that records a reply to the ask that it is of."""
        self._died: tuple[str, float] = ("", 0.0)
        """The instance whose resume last told that it is dead, and when."""
        self._cut_short_s: dict[AskKey, float] = {}
        self._entered: tuple[str, float] = ("", 0.0)
        self._file_began_s = 0.0
        for entry in entries:
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        if entry.instance is None:
            self._take_operation(entry)
            return
        key = (str(entry.call), entry.instance, int(entry.ask or 0))
        if entry.trigger in ("ask", "retry"):
            self.asked_at_s[key] = entry.at_s
        elif entry.trigger == "expire":
            if entry.facts.get("abandoned"):
                self._cut_short_s[key] = entry.at_s - self.asked_at_s.get(key, entry.at_s)
        elif entry.trigger == "die" and self._died == (entry.instance, entry.at_s):
            return  # no reply: what is left for it falls away with its death
        elif entry.trigger in _REPLIES and key in self.asked_at_s:
            self.tales[key] = _tale(entry, entry.at_s - self.asked_at_s[key])
            self.told_by[entry.seq] = key
            if entry.dest == "gone":
                self.dead.add(entry.instance)
                self._died = (entry.instance, entry.at_s) if entry.call == RESUME else self._died

    def _take_operation(self, entry: Entry) -> None:
        state, entered_s = self._entered
        if entry.trigger in _VERBS:
            after_s = entry.at_s - entered_s
            verb = Verb(state=state, after_s=after_s, trigger=entry.trigger, facts=entry.facts)
            self.verbs.append(verb)
        kind = {"seal_failed": "sealed", "withdraw_failed": "withdrawn"}.get(
            entry.trigger, entry.trigger
        )
        if kind in ("sealed", "withdrawn"):
            self.files[kind] = _file_tale(entry, entry.at_s - self._file_began_s)
        if entry.dest != entry.source or entry.trigger == "withdraw":
            self._file_began_s = entry.at_s
        if entry.dest != entry.source:
            self._entered = (entry.dest, entry.at_s)

    def tale_of(self, key: AskKey) -> tuple[Tale, bool]:
        """
        Return what comes of an ask, and whether that is assumed.

        Args:
            key: The ask; may be one that the history never made.
        """
        if key in self.tales:
            return self.tales[key], False
        if key in self._cut_short_s:
            waited_s = self._cut_short_s[key]
            return Tale(after_s=max(waited_s, self._typical_s(key[0]))), True
        if key in self.asked_at_s:
            return NEVER, False
        return self._assumed(*key[:2]), True

    def _assumed(self, call: str, instance: str) -> Tale:
        """Return what would come of an ask that was never made."""
        if instance in self.dead:
            return DEAD
        same = [
            tale for (one, name, _), tale in self.tales.items() if (one, name) == (call, instance)
        ]
        if same:
            return same[-1]
        if any((one, name) == (call, instance) for one, name, _ in self.asked_at_s):
            return NEVER
        return Tale(after_s=self._typical_s(call))

    def _typical_s(self, call: str) -> float:
        """Return how long an answer to a call usually took, or to any call."""
        answers = {
            key: tale.after_s
            for key, tale in self.tales.items()
            if tale.outcome == "answered" and tale.after_s is not None
        }
        of_call = [after_s for (one, _, _), after_s in answers.items() if one == call]
        times_s = of_call or list(answers.values())
        return statistics.median(times_s) if times_s else TYPICAL_S


def _tale(entry: Entry, after_s: float) -> Tale:
    if entry.trigger in ("answer", "confirm"):
        return Tale(after_s=after_s, facts=entry.facts)
    if entry.trigger == "refuse":
        return Tale(after_s=after_s, outcome="refused", facts=entry.facts)
    if entry.trigger == "stale":
        outcome = entry.facts.get("outcome")
        said: Literal["refused", "failed"] = "refused" if outcome == "refused" else "failed"
        return (
            Tale(after_s=after_s) if outcome == "answered" else Tale(after_s=after_s, outcome=said)
        )
    facts = {name: fact for name, fact in entry.facts.items() if name != "failure"}
    failure = entry.facts.get("failure")
    return Tale(after_s=after_s, outcome="failed", facts=facts, failure=failure)


def _file_tale(entry: Entry, takes_s: float) -> FileTale:
    failure = entry.facts.get("failure")
    if failure is None:
        return FileTale(takes_s=takes_s, facts=entry.facts)
    hung = HUNG in note_of(entry.facts)
    return FileTale(takes_s=None if hung else takes_s, facts={}, failure=cast("JsonFacts", failure))


def _exception_of(failure: JsonFacts | None) -> Exception:
    """Return an exception that is recorded as the failure was."""
    record = failure or {"type": "RuntimeError", "text": "the call failed", "transient": False}
    name = text_of(record.get("type"), 100) or "RuntimeError"
    bases: tuple[type, ...] = (TimeoutError,) if record.get("transient") else (Exception,)
    if record.get("dead"):
        bases = (type("ActorDiedError", (*bases,), {}),)
    made = type(name, bases, {})
    return cast("Exception", made(text_of(record.get("text"))))


class _Told:
    """The one method of a handle: it answers what the past answered."""

    def __init__(self, retold: Retold) -> None:
        self._retold = retold

    def remote(self, call: str, instance: str) -> asyncio.Future[Any]:
        """Send a call."""
        return self._retold.answer(call, instance)


class _Handle:
    """One instance, as the past knows it."""

    def __init__(self, retold: Retold) -> None:
        self.tell = _Told(retold)


class Retold:
    """The past as the wire and the handles of an operation that goes on from some moment."""

    def __init__(
        self, past: Past, operation: OperationState, edited: Mapping[AskKey, Tale]
    ) -> None:
        """
        Prepare to answer.

        Args:
            past: What the history knows.
            operation: Where it is picked up.
            edited: Asks to what comes of them instead.
        """
        self.assumed = 0
        """How many answers are not the history's own."""
        self.handles: dict[str, Any] = {name: _Handle(self) for name in operation.instances}
        self._past = past
        self._edited = edited
        self._cut_at_s = operation.at_s
        self._asks = {
            (call, name): found.ask
            for call, calls in operation.calls.items()
            for name in operation.instances
            if (found := calls.get(name)).ask
        }
        self._out = {
            (call, name)
            for call in operation.calls
            for name, _ in operation.in_state(call, "asked")
        }

    # --- handles --------------------------------------------------------------------------------

    def answer(self, call: str, instance: str) -> asyncio.Future[Any]:
        """Return the future of one ask; the first of one that is out already is that one."""
        loop = asyncio.get_running_loop()
        picked_up = (call, instance) in self._out
        self._out.discard((call, instance))
        ask = self._asks.get((call, instance), 0) + (0 if picked_up else 1)
        self._asks[call, instance] = ask
        key = (call, instance, ask)
        tale, assumed = self._past.tale_of(key)
        if key in self._edited:
            tale, assumed = self._edited[key], False
        self.assumed += assumed
        future: asyncio.Future[Any] = loop.create_future()
        if tale.after_s is not None:
            since_s = self._cut_at_s - self._past.asked_at_s.get(key, 0.0) if picked_up else 0.0
            loop.call_later(max(0.0, tale.after_s - since_s), _settle, future, tale)
        return future

    # --- wire -----------------------------------------------------------------------------------

    def message(self, ask: SendCall) -> Message:
        """Return one call as the handles here take it."""
        return Message(method="tell", args=(ask.call, ask.instance), kwargs={})

    def judge(self, call: str, instance: str, reply: object) -> Judgement:
        """Return the judgement that the past passed on the reply."""
        return cast("Judgement", reply)

    def publish(self) -> Callable[[], JsonFacts]:
        """Return the job that ends as publishing did."""
        return self._job("sealed")

    def withdraw(self, root: str) -> Callable[[], JsonFacts]:
        """Return the job that ends as withdrawing did."""
        return self._job("withdrawn")

    def job_s(self, name: str) -> float | None:
        """Return how long a file job takes; None where it hangs."""
        tale = self._past.files.get(name.removeprefix("gymckpt-"))
        return TYPICAL_S if tale is None else tale.takes_s

    def _job(self, kind: str) -> Callable[[], JsonFacts]:
        tale = self._past.files.get(kind)
        self.assumed += tale is None

        def job() -> JsonFacts:
            if tale is not None and tale.failure is not None:
                raise _exception_of(tale.failure)
            return {} if tale is None else tale.facts

        return job


def _settle(future: asyncio.Future[Any], tale: Tale) -> None:
    if future.done():
        return
    if tale.outcome == "failed":
        future.set_exception(_exception_of(tale.failure))
    else:
        future.set_result(Judgement(outcome=tale.outcome, facts=tale.facts))
