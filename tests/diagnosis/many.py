"""Many operations in one journal, for the history of a run."""

import random
from collections.abc import Callable, Sequence

import attrs

from gymckpt.core.entry import Entry
from gymckpt.journal import Journal, OperationRow
from tests.diagnosis.pictured import DIED, FULL, Answer, Story, but, names, played, prompt


def lived(number: int) -> tuple[Entry, ...]:
    """Return one of several small histories, most of which end well; the same for a number."""
    chance = random.Random(number)
    few = names(3, ("swe", "tools"))
    pace = chance.lognormvariate(0.0, 0.4)

    def answering(instance: str, call: str, ask: int) -> Answer:
        answer = prompt(instance, f"{call} {number}", ask)
        return attrs.evolve(answer, after_s=answer.after_s * pace)

    story = Story(instances=few, answering=answering)
    kind = number % 23
    if kind == 3:
        facts = {"blockers": {"agent": {"count": 1, "sample": ["math-17"]}}}
        story = attrs.evolve(
            story, answering=but({(few[0], "prepare"): Answer(110.0, "refused", facts)}, answering)
        )
    elif kind == 7:
        died = {
            (few[1], call): Answer(1.0, "failed", failure=DIED) for call in ("commit", "resume")
        }
        story = attrs.evolve(story, answering=but(died, answering))
    elif kind == 11:
        story = attrs.evolve(story, seal_failure=FULL)
    elif kind == 13:
        body = {"open": (0.0, "prepare"), "parked": (9.0, "cancel", {"reason": "CancelledError: "})}
        story = attrs.evolve(story, body=body)
    elif kind == 17:
        story = attrs.evolve(
            story, chart="restore", body={"open": (0, "restore"), "restored": (1.0, "keep")}
        )
    return played(story)


def own(history: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries of the operation itself, numbered anew, as if it had made no call."""
    kept = [entry for entry in history if entry.instance is None]
    return tuple(attrs.evolve(entry, seq=seq) for seq, entry in enumerate(kept, 1))


def fill(
    journal: Journal,
    count: int,
    *,
    run: str = "llama-grpo-7",
    kinds: int = 46,
    take: Callable[[Sequence[Entry]], Sequence[Entry]] = tuple,
) -> None:
    """Store many settled operations, opened every ten minutes; of each what `take` leaves."""
    templates = [take(lived(number)) for number in range(min(kinds, count))]
    for number in range(count):
        template = templates[number % len(templates)]
        shift_s = number * 600.0
        entries = [
            attrs.evolve(entry, run=run, operation_id=f"step-{number}", ts=entry.ts + shift_s)
            for entry in template
        ]
        first, last = entries[0], entries[-1]
        state = next(entry.dest for entry in reversed(entries) if entry.instance is None)
        row = OperationRow(
            run=run,
            operation_id=first.operation_id,
            chart=first.facts["chart"],
            chart_version=first.facts["chart_version"],
            state=state,
            settled=True,
            epoch=1,
            owner="controller-1",
            last_seq=last.seq,
            opened_ts=first.ts,
            updated_ts=last.ts,
        )
        journal.insert_operation(row, entries)
