"""Which instances an operation waits for, or that brought it down, with reason and behaviour."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs

from gymckpt.core.settings import RENEW
from gymckpt.diagnosis.case import Case
from gymckpt.diagnosis.explanation import Behaviour, BlockGroup, Blocking, Progress
from gymckpt.diagnosis.stories import Story
from gymckpt.diagnosis.words import count_of, duration, listed

__all__ = ["behaviour_of", "blocking_of", "blocking_stories", "groups_of", "progress_of"]

BLOCKING_MAX = 5
"""How many instances an explanation describes one by one."""

GROUPS_MAX = 5
SAMPLE_MAX = 5

_WORST_FIRST = ("gone", "refused", "failed", "unanswered", "asked")
_DONE = frozenset({"answered", "lapsed"})


def progress_of(case: Case) -> Progress | None:
    """Return how far the present state's call is; of a settled operation, its last call."""
    operation = case.operation
    call = operation.phase_call or (_last_call(case) if operation.settled else None)
    if case.besides and (call is None or not _is_reopening(case)):
        call = operation.also_call
    if call is None or call not in operation.calls:
        return None
    calls = operation.calls[call]
    return Progress(
        call=call,
        done=calls.count("answered"),
        total=len(operation.instances),
        tally={state: count for state, count in calls.tally.items() if count},
    )


def _is_reopening(case: Case) -> bool:
    """Whether some instance has not confirmed yet that it is open again."""
    phase = case.operation.phase
    return phase.count("answered", "gone", "lapsed") < len(case.operation.instances)


def _last_call(case: Case) -> str | None:
    for entry in reversed(case.entries):
        if entry.call is not None and entry.call != RENEW:
            return entry.call
    return None


def blocking_stories(case: Case) -> list[Story]:
    """Return every instance in the way, the worst first."""
    operation = case.operation
    if operation.settled:
        return []
    found: list[Story] = []
    call = operation.phase_call
    if call is not None:
        found = [
            story
            for story in _of_call(case, call)
            if story.state not in _DONE and not (operation.row.reopens and story.state == "gone")
        ]
    if case.besides:
        closed = {story.instance for story in found}
        stories = ((str(operation.also_call), name) for name in case.besides if name not in closed)
        found += [case.stories[key] for key in stories if key in case.stories]
    if operation.row.renews:
        found += [story for story in _of_call(case, RENEW) if _is_trouble(story)]
    return sorted(found, key=_badness)


def _of_call(case: Case, call: str) -> Iterable[Story]:
    stories = (case.stories.get((call, name)) for name in case.operation.instances)
    return (story for story in stories if story is not None)


def _is_trouble(story: Story) -> bool:
    """Whether a renewal went wrong; one that is merely under way is nothing to look at."""
    return story.state not in _DONE and (story.failure is not None or story.state != "asked")


def _badness(story: Story) -> tuple[int, float]:
    rank = _WORST_FIRST.index(story.state) if story.state in _WORST_FIRST else len(_WORST_FIRST)
    return rank, story.asked_at_s if story.failed_at_s is None else story.failed_at_s


def groups_of(stories: Sequence[Story]) -> tuple[BlockGroup, ...]:
    """Put instances that are in the same way for the same reason together."""
    found: dict[tuple[str, str], list[str]] = {}
    for story in stories:
        reason = story.reason.replace(story.instance, "INSTANCE")
        found.setdefault((story.state, reason), []).append(story.instance)
    biggest = sorted(found.items(), key=lambda item: -len(item[1]))
    return tuple(
        BlockGroup(state=state, reason=reason, count=len(names), sample=tuple(names[:SAMPLE_MAX]))
        for (state, reason), names in biggest[:GROUPS_MAX]
    )


def blocking_of(case: Case, stories: Sequence[Story]) -> tuple[Blocking, ...]:
    """Describe the worst of some instances one by one."""
    grace_s = case.operation.settings.reply_grace_s
    return tuple(
        Blocking(
            instance=story.instance,
            call=story.call,
            state=story.state,
            asks=story.asks,
            asked_ts=story.asked_ts,
            age_s=case.now_at_s - story.asked_at_s,
            due_ts=story.deadline_ts + grace_s if story.state == "asked" else None,
            reason=story.reason,
            behaviour=behaviour_of(case, story),
            words=_in_words(case, story),
        )
        for story in stories[:BLOCKING_MAX]
    )


def _in_words(case: Case, story: Story) -> str:
    """Say what the matter is with one instance."""
    age = duration(case.now_at_s - story.asked_at_s)
    asked = f"was asked to {story.call} {age} ago"
    if story.asks > 1:
        asked += f" and {story.asks} times in all"
    ended = "" if story.took_s is None else f" after {duration(story.took_s)}"
    if story.state == "asked":
        before = f"; before that: {story.reason}" if story.failure is not None else ""
        return f"{asked} and has not answered{before}"
    if story.state == "unanswered":
        return (
            f"{asked}; what became of it is unknown, it may have run or may still ({story.reason})"
        )
    if story.state == "gone":
        return f"{asked}; its actor is dead{ended} ({story.reason})"
    return f"{asked} and {story.state}{ended}: {story.reason}"


def behaviour_of(case: Case, story: Story) -> Behaviour | None:
    """Say how an instance took a call in earlier operations; None where there are none."""
    if not case.history:
        return None
    past = [told[story.call, story.instance] for told in case.history if _has(told, story)]
    times_s = [one.took_s for one in past if one.state == "answered" and one.took_s is not None]
    tally = Counter(one.state for one in past if not one.abandoned)
    found = Behaviour(
        operations=len(case.history),
        asked=len(past),
        answered=tally["answered"],
        refused=tally["refused"],
        failed=tally["failed"] + tally["gone"],
        unanswered=tally["unanswered"] + tally["asked"],
        usual_s=statistics.median(times_s) if times_s else None,
        slowest_s=max(times_s, default=None),
        blockers=_blockers_over_time([story, *past]),
        words="",
    )
    return attrs.evolve(found, words=_behaviour_in_words(story.call, found))


def _has(told: Mapping[tuple[str, str], Story], story: Story) -> bool:
    return (story.call, story.instance) in told


def _blockers_over_time(stories: Sequence[Story]) -> Literal["none", "same", "changing"]:
    """Whether what kept an instance from parking was the same each time."""
    named = [
        frozenset(name for one in story.blockers for name in one.sample)
        for story in stories
        if story.state == "refused" and story.blockers
    ]
    if len(named) < 2:
        return "none"
    always = named[0].intersection(*named[1:])
    return "same" if always else "changing"


def _behaviour_in_words(call: str, found: Behaviour) -> str:
    operations = count_of(found.operations, "operation")
    if not found.asked:
        return f"it was not sent a {call} in the last {operations}"
    tally = {
        "answered": found.answered,
        "refused": found.refused,
        "failed": found.failed,
        "left unanswered": found.unanswered,
    }
    parts = [f"{verb} {count}" for verb, count in tally.items() if count]
    done = listed(parts) if parts else "none was waited for to its end"
    times = ""
    if found.usual_s is not None and found.slowest_s is not None:
        usual, slowest = duration(found.usual_s), duration(found.slowest_s)
        times = f", usually after {usual}, at most {slowest}"
    said = {
        "same": "; the same blocker each time",
        "changing": "; other blockers each time",
    }.get(found.blockers, "")
    return f"in the last {operations}, of {found.asked} {call} calls: {done}{times}{said}"
