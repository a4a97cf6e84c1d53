"""
Scenario files: how they are written, read, played and written again.

A file begins with comments that say what it shows. Then come blocks, with an empty line between
them: lines of input, a line of dashes, and what must come of them. `README.md` beside this file
lists the inputs.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

from tests.scenarios.instances import fault_of, seconds
from tests.scenarios.stage import Stage, StageLoop

__all__ = ["Block", "Scenario", "parsed", "played", "written"]

DASHES = "----"
NOTHING = "(nothing)"
CALLS = "prepare|renew|commit|resume|restore|retire|forget"


@attrs.frozen
class Block:
    """Some inputs and what must come of them."""

    comments: tuple[str, ...]
    inputs: tuple[str, ...]
    expected: tuple[str, ...]


@attrs.frozen
class Scenario:
    """One file."""

    header: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """All of its inputs."""
        return tuple(line for block in self.blocks for line in block.inputs)


class BadScenario(ValueError):
    """A file that is no scenario, with the line that is wrong."""


def parsed(text: str) -> Scenario:
    """
    Read a scenario.

    Raises:
        BadScenario: It has no header, or a block without dashes.
    """
    header, *rest = [part.strip("\n") for part in re.split(r"\n{2,}", text.strip())]
    if not all(line.startswith("#") for line in header.splitlines()):
        raise BadScenario("a scenario begins with comments that say what it shows")
    blocks: list[Block] = []
    for part in rest:
        lines = part.splitlines()
        if DASHES not in lines:
            raise BadScenario(f"a block has no {DASHES}: {lines[0]!r}")
        at = lines.index(DASHES)
        comments = tuple(line for line in lines[:at] if line.startswith("#"))
        inputs = tuple(line for line in lines[:at] if not line.startswith("#"))
        blocks.append(Block(comments, inputs, tuple(lines[at + 1 :])))
    return Scenario(tuple(header.splitlines()), tuple(blocks))


def written(scenario: Scenario) -> str:
    """Return the text of a scenario."""
    parts = ["\n".join(scenario.header)]
    parts += [
        "\n".join([*block.comments, *block.inputs, DASHES, *block.expected])
        for block in scenario.blocks
    ]
    return "\n\n".join(parts) + "\n"


# --- the inputs ---------------------------------------------------------------------------------

Played = Callable[..., Awaitable[None] | None]
INPUTS: list[tuple[re.Pattern[str], Played]] = []


def _input(pattern: str) -> Callable[[Played], Played]:
    def add(play: Played) -> Played:
        INPUTS.append((re.compile(pattern), play))
        return play

    return add


@_input(r"(\d+) instances?(?:, grace (\S+))?")
def _instances(stage: Stage, count: str, grace: str | None) -> None:
    stage.add_instances(int(count), seconds(grace or "600s"))


@_input(r"settings (.+)")
def _settings(stage: Stage, words: str) -> None:
    names = {"control": "control_timeout_s", "prepare": "prepare_timeout_s"}
    names |= {"settle": "settle_s", "sweep": "sweep_interval_s"}
    for word in words.split(", "):
        name, value = word.split(" ")
        stage.settings[names[name]] = seconds(value)


@_input(rf"retry ({CALLS}): (\d+) tries, (\S+) apart")
def _retry(stage: Stage, call: str, tries: str, pause: str) -> None:
    stage.retry(call, int(tries), seconds(pause))


@_input(rf"(replica-\d+) (always )?({CALLS}): (.+)")
def _script(stage: Stage, name: str, always: str | None, call: str, faults: str) -> None:
    found = [fault_of(text) for text in faults.split("|")]
    instance = stage.instance(name)
    if always and found[0] is not None:
        instance.always(call, found[0])
    else:
        instance.script(call, *found)


@_input(r"(replica-\d+) (dies|restarts empty|cannot park|is not ready|parks after \S+)")
def _misbehave(stage: Stage, name: str, what: str) -> None:
    instance = stage.instance(name)
    if what == "dies":
        instance.die()
    elif what == "restarts empty":
        instance.restart()
    elif what == "cannot park":
        instance.parking_fails = True
    elif what == "is not ready":
        instance.not_ready = True
    else:
        instance.parks_s = seconds(what.rpartition(" ")[2])


@_input(r"(replica-\d+) starts over: (\S+)")
def _restarts(stage: Stage, name: str, rollout: str) -> None:
    from gymckpt.episodes import EnvironmentEpisode

    stage.instance(name).restarts = (EnvironmentEpisode(rollout, 0),)


@_input(rf"a stranger asks (replica-\d+) to ({CALLS}) (\S+)(?: (late|within \S+))?")
def _stranger(stage: Stage, name: str, call: str, wire_id: str, when: str | None) -> None:
    in_s = 60.0 if when is None else -1.0 if when == "late" else seconds(when.split()[1])
    stage.send(stage.instance(name), call, wire_id, in_s)


@_input(r"(write|withdraw): (.+)")
def _file(stage: Stage, kind: str, scripts: str) -> None:
    stage.loop.file_scripts[kind] += [script.strip() for script in scripts.split("|")]


@_input(r"the journal (fails|works|takes \S+)")
def _journal(stage: Stage, what: str) -> None:
    if what.startswith("takes"):
        stage.loop.journal_s = seconds(what.split()[1])
    else:
        stage.controller.journal.fails = what == "fails"


@_input(r"the clock steps by (\S+)")
def _clock(stage: Stage, by: str) -> None:
    stage.clock.step_wall(seconds(by))


@_input(r"(checkpoint|restore|retire|unwanted|forget|resume) (\S+)(?: again, as (\S+))?")
def _begin(stage: Stage, kind: str, name: str, same_as: str | None) -> None:
    stage.call(kind, name, same_as)


@_input(r"(\S+): (commit|end|raise|renew|retire|cancel|try commit|try renew)")
def _order(stage: Stage, name: str, order: str) -> None:
    stage.callers[name].order(order)


@_input(r"the controller crashes(?: (before|after) recording (\S+))?")
def _crash(stage: Stage, when: str | None, trigger: str | None) -> None:
    if when is None or trigger is None:
        stage.controller.crash()
    else:
        stage.controller.journal.crash = (when, trigger)


@_input(r"another controller (begins|recovers|recovers by force)")
def _another(stage: Stage, what: str) -> None:
    stage.begin_controller()
    if what != "begins":
        stage.recover(force=what.endswith("force"))


@_input(r"the controller recovers( by force)?")
def _recover(stage: Stage, force: str | None) -> None:
    stage.recover(force=bool(force))


@_input(r"an operator (discards|sweeps) (\S+)( by force)?")
def _move(stage: Stage, move: str, operation_id: str, force: str | None) -> None:
    stage.move(move.removesuffix("s"), operation_id, None, force=bool(force))


@_input(r"an operator marks (replica-\d+) gone in (\S+)( by force)?")
def _gone(stage: Stage, instance: str, operation_id: str, force: str | None) -> None:
    stage.move("mark_gone", operation_id, instance, force=bool(force))


@_input(r"wait (\d\S*)")
async def _wait(stage: Stage, for_s: str) -> None:
    await stage.wait(seconds(for_s))


@_input(r"wait until (\S+) (has ended|was left)")
async def _wait_until(stage: Stage, name: str, what: str) -> None:
    await (stage.wait_until_ended(name) if what == "has ended" else stage.wait_until_left(name))


@_input(r"(mute|tell)")
def _mute(stage: Stage, word: str) -> None:
    stage.telling.muted = word == "mute"


@_input(rf"hide ({CALLS})")
def _hide(stage: Stage, call: str) -> None:
    stage.telling.hidden.add(call)


@_input(r"tell of the instances")
def _tell_instances(stage: Stage) -> None:
    for instance in stage.instances.values():
        instance.plane.tells = True


@_input(r"state")
def _state(stage: Stage) -> None:
    stage.state()


# --- playing ------------------------------------------------------------------------------------


async def _play(stage: Stage, line: str) -> None:
    for pattern, play in INPUTS:
        match = pattern.fullmatch(line)
        if match is not None:
            doing: Any = play(stage, *match.groups())
            if doing is not None:
                await doing
            await stage.settle()
            return
    raise BadScenario(f"no input is written like {line!r}")


async def _played(stage: Stage, blocks: Iterable[Block]) -> list[Block]:
    found: list[Block] = []
    for block in blocks:
        for line in block.inputs:
            await _play(stage, line)
        told = stage.telling.take()
        found.append(attrs.evolve(block, expected=tuple(told or [NOTHING])))
    return found


def played(
    scenario: Scenario, base: Path, look: Callable[[Stage], None] = Stage.count_transitions
) -> Scenario:
    """
    Play a scenario, and return it with what really came of its inputs.

    Args:
        scenario: What to play.
        base: An empty directory.
        look: Given the stage when all is over; usually holds every history against the charts.

    Raises:
        BadScenario: An input is not known.
    """
    reported: list[dict[str, Any]] = []
    loop = StageLoop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    stage = Stage(loop, base)
    try:
        with stage.known_names():
            blocks = loop.run_until_complete(_played(stage, scenario.blocks))
            look(stage)
            stage.telling.muted = True
            stage.end()
    finally:
        loop.close()
    assert not reported, reported
    return attrs.evolve(scenario, blocks=tuple(blocks))
