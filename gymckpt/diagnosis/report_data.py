"""What the scripts of a report draw from: a picture as compact JSON data."""

from __future__ import annotations

from typing import Any

from gymckpt.diagnosis.lanes import Lane
from gymckpt.diagnosis.picture import Picture
from gymckpt.wording import visible

__all__ = ["data_of"]


class _Numbers:
    """Words, each kept once and called by its number."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._known: dict[str, int] = {}

    def of(self, word: str) -> int:
        """Return the number of a word."""
        number = self._known.setdefault(word, len(self.words))
        if number == len(self.words):
            self.words.append(visible(word))
        return number


def data_of(picture: Picture) -> dict[str, Any]:
    """
    Return what the scripts draw from; numbers stand for words that come often.

    Args:
        picture: What is to be drawn.
    """
    texts, calls, outcomes = _Numbers(), _Numbers(), _Numbers()
    lanes = [_lane_data(lane, texts, calls, outcomes) for lane in picture.lanes]
    states = [
        [visible(span.state), visible(span.trigger), _s(span.entered_at_s), _s(span.left_at_s)]
        for span in picture.states
    ]
    return {
        "opened": picture.first.ts - picture.first.at_s,
        "end": _s(picture.end_at_s),
        "settled": picture.settled,
        "states": states,
        "means": {name: row.means for name, row in picture.chart.states.items()}
        if picture.chart
        else {},
        "marks": [[_s(mark.at_s), mark.kind, visible(mark.label)] for mark in picture.marks],
        "medians": {visible(call): _s(seconds) for call, seconds in picture.medians_s.items()},
        "lanes": lanes,
        "texts": texts.words,
        "calls": calls.words,
        "outcomes": outcomes.words,
    }


def _lane_data(lane: Lane, texts: _Numbers, calls: _Numbers, outcomes: _Numbers) -> list[Any]:
    spans = [
        [
            calls.of(span.call),
            span.ask,
            _s(span.began_at_s),
            _s(span.ended_at_s),
            outcomes.of(span.outcome),
            texts.of(span.note) if span.note else -1,
            span.count,
        ]
        for span in lane.spans
    ]
    ticks = [
        [
            _s(tick.at_s),
            tick.kind,
            calls.of(tick.call),
            tick.ask,
            texts.of(tick.note) if tick.note else -1,
        ]
        for tick in lane.ticks
    ]
    slow = [calls.of(call) for call in lane.slow]
    return [visible(lane.instance), _s(lane.leased_until_s), slow, spans, ticks]


def _s(seconds: float | None) -> float | None:
    """Return seconds as exactly as a picture needs them."""
    return None if seconds is None else round(seconds, 4)
