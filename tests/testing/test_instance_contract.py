"""The shipped deployment keeps the whole instance contract, and each check can fail."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymckpt.episodes import EnvironmentEpisode
from gymckpt.participant.gymnasium import GymnasiumDeployment
from gymckpt.testing import case, checks_damage, instance_report
from gymckpt.testing.gymnasium import GymnasiumUnderTest
from gymckpt.testing.instance import InstanceUnderTest, Make, NotOffered, handle_of
from gymckpt.testing.instance_contract import InstanceContract
from gymckpt.testing.instance_report import LEVELS, Check, ContractReport, Result, checks, run_check
from tests.repo.documents import between, rows_of
from tests.testing.broken import BROKEN
from tests.testing.caught import ALSO_CAUGHT, CAUGHT

ALL = {one.name: one for one in checks()}


async def _passes(_case: case.Case) -> None:
    """It keeps it."""


class TestGymnasiumDeployment(InstanceContract):
    """The shipped deployment, in this process."""

    def make_instance(self) -> InstanceUnderTest:
        return GymnasiumUnderTest()


# --- each check can fail --------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call that is never answered fail soon, and what comes too late come in time."""
    monkeypatch.setattr(case, "LATE_S", 1.0)
    monkeypatch.setattr(case, "ANSWER_S", 1.0)
    monkeypatch.setattr(instance_report, "CHECK_S", 5.0)


def test_every_check_has_a_deployment_that_fails_it() -> None:
    """The table of what catches what has each check and each broken deployment, and no other."""
    assert sorted(CAUGHT) == sorted(ALL)
    also = {name for _, name in ALSO_CAUGHT}
    assert set(CAUGHT.values()) | also == set(BROKEN)
    assert also.isdisjoint(CAUGHT.values())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("name", "broken"), [*sorted(CAUGHT.items()), *ALSO_CAUGHT])
def test_the_check_can_fail(name: str, broken: str) -> None:
    """A deployment that is broken in the very thing fails the check, and the report says how."""
    deployment = BROKEN[broken]
    result = run_check(ALL[name], lambda: GymnasiumUnderTest(deployment))
    assert result.outcome == "failed"
    assert result.why


@given(
    contents=st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5),
    large=st.sampled_from([0, 1, 5_000]),
)
def test_bits_are_flipped_in_all_files(contents: list[bytes], large: int) -> None:
    """Each damage is one bit; they are a bounded number, in every file, and all that there are."""
    files = {Path(str(number)): content for number, content in enumerate(contents)}
    files[Path("large")] = b"turn 2 " + bytes(large)
    flips = list(checks_damage._flips(files))
    for path, damaged in flips:
        assert damaged is not None
        apart = int.from_bytes(damaged) ^ int.from_bytes(files[path])
        assert (len(damaged), apart.bit_count()) == (len(files[path]), 1)
    assert len(set(flips)) == len(flips)
    assert len(flips) == min(checks_damage.FLIPS_MAX, sum(map(len, files.values())))
    assert {path for path, _ in flips} == set(files)
    assert (Path("large"), b"turn 3 " + bytes(large)) in flips


# --- the report -----------------------------------------------------------------------------------


def results(**outcomes: str) -> ContractReport:
    """Return a report of one check a level."""
    found = []
    for level in LEVELS:
        check = Check(f"check_{level}", level, f"It keeps {level}.", _passes)
        found.append(Result(check=check, outcome=outcomes.get(level, "passed"), why="it did not"))
    return ContractReport(tuple(found))


@pytest.mark.parametrize(
    ("outcomes", "level"),
    [
        ({}, "faulty"),
        ({"faulty": "failed"}, "fenced"),
        ({"fenced": "failed"}, "basic"),
        ({"basic": "failed"}, None),
        ({"basic": "failed", "faulty": "failed"}, None),
        ({"faulty": "not tried"}, "fenced"),
    ],
)
def test_a_level_is_reached_with_all_before_it(outcomes: dict[str, str], level: str) -> None:
    """The level is the highest one of which all was tried and kept, and of all below too."""
    report = results(**outcomes)
    assert report.level == level
    assert f"reaches level: {level or 'none'}" in str(report)


def test_a_report_says_in_words_what_is_broken() -> None:
    """It has the claim that does not hold, what was seen instead, and what was not tried."""
    said = str(results(fenced="failed", faulty="not tried"))
    assert "broken: It keeps fenced." in said
    assert "it did not [check_fenced]" in said
    assert "not tried: It keeps faulty. (it did not)" in said


class WithoutTime(GymnasiumUnderTest):
    """An adapter that cannot make time pass."""

    async def advance(self, by_s: float) -> None:
        raise NotOffered(f"no {by_s} s pass here")


class WithoutRestarts(GymnasiumUnderTest):
    """An adapter of a backend all of whose episodes can be captured."""

    async def start(self, episode: EnvironmentEpisode, *, restart_only: bool = False) -> None:
        if restart_only:
            raise NotOffered("all can be captured")
        await super().start(episode)


def test_what_an_adapter_cannot_arrange_is_not_tried() -> None:
    """A check that needs what the adapter does not offer is neither kept nor broken."""
    result = run_check(ALL["the_lease_ends"], WithoutTime)
    assert (result.outcome, "pass here" in result.why) == ("not tried", True)


def test_a_level_of_which_something_was_not_tried_is_not_reached() -> None:
    """A backend without a lease does not pass for one with a lease because its hands are weak."""
    chosen = [ALL[name] for name in ("reopens", "a_late_renew_is_refused", "the_lease_ends")]
    chosen.append(ALL["a_resume_is_never_late"])
    assert instance_report.run(GymnasiumUnderTest, chosen).level == "faulty"
    report = instance_report.run(WithoutTime, chosen)
    assert report.level == "fenced"
    assert "faulty: 1 of 2 kept, 1 not tried" in str(report)


def test_what_a_backend_does_not_have_it_does_not_owe() -> None:
    """A backend without restart-only episodes reaches a level without the checks about them."""
    chosen = [ALL[name] for name in ("reopens", "restart_only_episodes_do_not_block")]
    report = instance_report.run(WithoutRestarts, chosen)
    assert report.level == "basic"
    assert "basic: 1 of 1 kept, 1 do not apply" in str(report)
    assert "(all can be captured)" in str(report)


def test_a_repeated_prepare_is_tried_without_restart_only_episodes_too() -> None:
    """What is no business of such episodes is tried where there are none."""
    check = ALL["prepare_again_is_the_same"]
    assert run_check(check, WithoutRestarts).outcome == "passed"


# --- what never ends ------------------------------------------------------------------------------


class NeverEnds(GymnasiumUnderTest):
    """Hands one of whose methods waits for ever, as a call of an actor does that takes one only."""

    async def turn(self, episode: EnvironmentEpisode) -> bool:
        await asyncio.Event().wait()
        raise AssertionError(f"the turn of {episode} has no end")


class NeverCloses(GymnasiumUnderTest):
    """Hands that cannot let go of their instance."""

    async def close(self) -> None:
        await asyncio.Event().wait()


class Hangs(GymnasiumUnderTest):
    """A backend that does in its event loop what has no end."""

    async def start(self, episode: EnvironmentEpisode, *, restart_only: bool = False) -> None:
        threading.Event().wait()
        raise AssertionError(f"{episode} starts, {restart_only}")


class Blocks(GymnasiumUnderTest):
    """A backend that does in its event loop what takes a while."""

    async def turn(self, episode: EnvironmentEpisode) -> bool:
        threading.Event().wait(0.3)
        return not episode.rollout_id


@pytest.mark.parametrize(("hands", "named"), [(NeverEnds, "turn"), (NeverCloses, "close")])
def test_hands_that_do_not_end_are_told(
    hands: type[GymnasiumUnderTest], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method of the hands that never ends fails the check, by its name and with a hint."""
    monkeypatch.setattr(case, "ANSWER_S", 2.0)
    result = run_check(ALL["reopens"], hands)
    assert result.outcome == "failed"
    assert f"{named} of the hands did not end within 2 s" in result.why


@pytest.mark.usefixtures("impatient")
def test_a_check_that_blocks_the_event_loop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no timeout can end is interrupted, and the place where it hung is told."""
    monkeypatch.setattr(instance_report, "CHECK_S", 0.2)
    monkeypatch.setattr(instance_report, "END_S", 0.1)
    before = signal.getsignal(signal.SIGALRM)
    result = run_check(ALL["reopens"], Hangs)
    assert result.outcome == "failed"
    assert result.why.startswith("it hangs: after 0.5 s it was in wait (")
    assert f"in start ({__file__}:" in result.why
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_timer_of_somebody_else_goes_off_all_the_same() -> None:
    """A bound that pytest or a plugin has set upon the test is there when the check has ended."""
    signal.setitimer(signal.ITIMER_REAL, 1_000.0)
    run_check(ALL["reopens"], GymnasiumUnderTest)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    assert 0 < left_s < 1_000.0


def test_a_check_outside_of_the_main_thread_is_run_too() -> None:
    """Where no signal is heard the check is run without that bound."""
    found = []
    thread = threading.Thread(
        target=lambda: found.append(run_check(ALL["reopens"], GymnasiumUnderTest))
    )
    thread.start()
    thread.join()
    assert [result.outcome for result in found] == ["passed"]


def test_a_loop_that_stood_still_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that failed says that something blocked the event loop meanwhile."""
    monkeypatch.setattr(instance_report, "STILL_S", 0.2)
    result = run_check(ALL["reopens"], Blocks)
    assert "does not run on an open instance; something blocked the event loop" in result.why


def test_a_level_that_is_none_is_told_at_once() -> None:
    """A class that claims a level with a typo cannot be made, and the levels are named."""
    said = "TestMine.level is 'fencd', it is one of basic, fenced, faulty"
    with pytest.raises(ValueError, match=said):
        type("TestMine", (InstanceContract,), {"level": "fencd"})


# --- handles and factories ------------------------------------------------------------------------


class Halfway:
    """An object that a newcomer may take for a handle."""

    def checkpoint_prepare(self, _id: str, *, deadline_ts: float) -> str:
        return f"at once, by {deadline_ts}"


class Slow:
    """An object whose store gives up by itself."""

    async def checkpoint_prepare(self, _id: str, *, deadline_ts: float) -> None:
        raise TimeoutError(f"the store is slow, at {deadline_ts}")


@pytest.mark.parametrize(
    ("handle", "said"),
    [
        (object(), "the handle has no method checkpoint_prepare"),
        (Halfway(), "has no .remote; handle_of(object) makes one"),
        (handle_of(Halfway()), "gave 'at once, by"),
        (handle_of(Slow()), "TimeoutError: the store is slow"),
    ],
)
def test_a_handle_that_is_none_is_told_in_words(handle: object, said: str) -> None:
    """The report says what a handle lacks, not how the kit stumbled over it."""

    class WithoutHandle(GymnasiumUnderTest):
        def __init__(self) -> None:
            super().__init__()
            self.handle = handle

    result = run_check(ALL["parks_when_nothing_runs"], WithoutHandle)
    assert result.outcome == "failed"
    assert said in result.why


def test_a_factory_of_something_else_is_told_in_words() -> None:
    """What makes no hands is named, whatever it makes."""
    result = run_check(ALL["parks_when_nothing_runs"], cast("Make", lambda: "an instance"))
    assert result.why == "the factory gave 'an instance', which is no InstanceUnderTest"


def test_a_factory_may_be_a_coroutine() -> None:
    """Instances may be made by a coroutine, as actors are."""

    async def make() -> InstanceUnderTest:
        await asyncio.sleep(0)
        return GymnasiumUnderTest()

    assert run_check(ALL["reopens"], make).outcome == "passed"


async def test_the_hands_tell_a_parked_episode_from_a_running_one(tmp_path: Path) -> None:
    """A turn is played by an episode that runs, and by none that is parked or not here."""
    episode = EnvironmentEpisode("r-a", 0)
    async with case.Case(GymnasiumUnderTest, tmp_path) as one:
        assert not await one.one.turn(episode)
        await one.play(episode)
        assert await one.one.turns(episode) == 1
        await one.park(episode)
        assert not await one.one.turn(episode)
        await one.resume()
        assert await one.one.turn(episode)


@pytest.mark.parametrize(
    ("argument", "code", "said"),
    [
        ("gymckpt.testing.gymnasium:GymnasiumUnderTest", 0, "reaches level: faulty"),
        ("nothing", 2, "usage"),
        ("no_such_module:make", 2, "no_such_module:make cannot be had: No module named"),
        ("gymckpt.testing.gymnasium:Nobody", 2, "has no attribute 'Nobody'"),
    ],
)
def test_the_report_from_a_shell(argument: str, code: int, said: str) -> None:
    """The command prints the report and exits 0 if all is kept; it says how it is called."""
    done = subprocess.run(
        [sys.executable, "-m", "gymckpt.testing.instance_report", argument],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("hands", "code", "said"),
    [
        ("WithoutRestarts", 0, ""),
        ("WithoutTime", 1, ""),
        ("NeverEnds", 1, "broken: the_lease_ends\n"),
    ],
)
def test_the_command_fails_where_a_level_is_not_reached(
    hands: str,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was not tried counts as not kept; what is broken is named as soon as that is known."""
    chosen = ("parks_when_nothing_runs", "a_late_renew_is_refused", "the_lease_ends")
    monkeypatch.setattr(instance_report, "checks", lambda: tuple(ALL[name] for name in chosen))
    assert instance_report.main([f"{__name__}:{hands}"]) == code
    printed = capsys.readouterr()
    assert printed.err == said
    assert f"reaches level: {'fenced' if code else 'faulty'}" in printed.out


def test_the_kit_is_optional() -> None:
    """Neither the package nor the report needs pytest or Hypothesis."""
    script = (
        "import sys, gymckpt, gymckpt.cli, gymckpt.testing.instance_report as r; r.checks(); "
        "print({'pytest', 'hypothesis'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_unbroken_deployments_are_not_among_the_broken() -> None:
    """Every entry of the table of broken deployments is a class of its own."""
    assert len(set(BROKEN.values())) == len(BROKEN)
    assert GymnasiumDeployment not in BROKEN.values()


MINE = """
from gymckpt.testing.gymnasium import GymnasiumUnderTest
from gymckpt.testing.instance_contract import InstanceContract
from tests.repo.documents import between, rows_of
from tests.testing.broken import BROKEN


class TestMine(InstanceContract):
    level = "basic"

    def make_instance(self):
        return GymnasiumUnderTest(BROKEN["NamesNoServers"])
"""


def test_pytest_prints_the_report_of_a_class(tmp_path: Path) -> None:
    """One test fails, the checks above the claimed level are skipped, the report is printed."""
    script = tmp_path / "test_mine.py"
    script.write_text(MINE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    skipped = sum(one.level != "basic" for one in ALL.values())
    kept = len(ALL) - skipped - 1
    assert f"1 failed, {kept} passed, {skipped} skipped" in done.stdout, done.stdout
    assert "instance contract: TestMine" in done.stdout
    assert "reaches level: none" in done.stdout
    assert "it answered {'resources': True} [names_restart_only_servers]" in done.stdout


def test_the_document_counts_the_checks() -> None:
    """The table of levels in the tutorial, and the README, have the true numbers of checks."""
    root = Path(__file__).parents[2]
    table = between((root / "docs" / "testing.md").read_text(encoding="utf-8"), "levels")
    stated = {row[0].strip("`"): int(row[1]) for row in rows_of(table)}
    counts = {level: sum(one.level == level for one in ALL.values()) for level in LEVELS}
    assert stated == counts
    assert f"{len(ALL)} checks in three" in (root / "README.md").read_text(encoding="utf-8")
