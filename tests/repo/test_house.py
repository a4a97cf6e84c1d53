"""The rules of the house hold for every file, and each rule can tell a file that breaks it."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.repo import house
from tests.repo.house import Source

CODE = ("gymckpt", "docs", "examples", "benchmarks", "tests", "tools")

PACKAGE_RULES = [
    house.layer_faults,
    house.foreign_faults,
    house.leftover_faults,
    house.sleep_faults,
    house.log_faults,
]
CODE_RULES = [house.size_faults, house.docstring_faults]


def faults(rule: Callable[[Source], Iterator[str]], found: Iterable[Source]) -> list[str]:
    """Return every fault that a rule finds."""
    return [fault for source in found for fault in rule(source)]


@pytest.mark.parametrize("rule", PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_package_keeps_the_rule(rule: Callable[[Source], Iterator[str]]) -> None:
    """No file of the package breaks the rule."""
    found = house.package_sources()
    assert len(found) > 10
    assert faults(rule, found) == []


@pytest.mark.parametrize("rule", CODE_RULES, ids=lambda rule: rule.__name__)
def test_code_keeps_the_rule(rule: Callable[[Source], Iterator[str]]) -> None:
    """No Python file of the repository breaks the rule."""
    assert faults(rule, house.sources(*CODE)) == []


def test_no_import_cycles() -> None:
    """The modules of the package can be put in an order in which each imports only earlier ones."""
    assert list(house.cycle_faults(house.package_sources())) == []


def test_forbidden_words_stand_nowhere() -> None:
    """No text of the repository names a machine's paths, its registries or how it came about."""
    found = [fault for path, text in house.texts() for fault in house.word_faults(path, text)]
    assert found == []


def test_waivers_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its waiver each waived file would break its rule, so that the lists cannot rot."""
    waived, sleepers = dict(house.WAIVERS), dict(house.SLEEPERS)
    monkeypatch.setattr(house, "WAIVERS", {})
    monkeypatch.setattr(house, "SLEEPERS", {})
    found = {source.path: source for source in house.sources(*CODE)}
    for name in waived:
        assert faults(house.size_faults, [found[name.partition(":")[0]]])
    for path in sleepers:
        assert faults(house.sleep_faults, [found[path]])


def test_importing_does_not_import_ray() -> None:
    """The library and its command line are imported on a laptop without Ray."""
    script = (
        "import sys; import gymckpt; assert 'ray' not in sys.modules; "
        "import gymckpt.cli; assert 'ray' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


LONG = "def long():\n" + "    x = 1\n" * 70

WRONG = [
    (
        house.layer_faults,
        "core/step.py",
        "from gymckpt.journal import Journal",
        "core must not import",
    ),
    (
        house.layer_faults,
        "core/step.py",
        "from gymckpt import journal",
        "core must not import journal",
    ),
    (
        house.layer_faults,
        "core/step.py",
        "from ..runtime import clock",
        "core must not import runtime",
    ),
    (house.layer_faults, "core/__init__.py", "from .. import cli", "core must not import cli"),
    (
        house.layer_faults,
        "chart/load.py",
        "from gymckpt import Nothing",
        "must not import __init__",
    ),
    (house.layer_faults, "cli.py", "import gymckpt.testing.faults", "cli must not import testing"),
    (house.layer_faults, "participant/x.py", "import gymckpt.coordinator", "must not import coord"),
    (
        house.layer_faults,
        "runtime/x.py",
        "def f():\n    import gymckpt.cli",
        ":2: runtime must not",
    ),
    (
        house.layer_faults,
        "core/x.py",
        "from gymckpt.replies import X",
        "core must not import replies",
    ),
    (house.layer_faults, "novel.py", "", "unit 'novel' has no place in MAY_IMPORT"),
    (house.foreign_faults, "core/x.py", "import transitions.core", "imports transitions"),
    (
        house.foreign_faults,
        "chart/load.py",
        "from transitions import Machine",
        "imports transitions",
    ),
    (house.foreign_faults, "cli.py", "def f():\n    import ray", "participant/ import ray"),
    (house.foreign_faults, "runtime/instances.py", "import ray", "when a module is loaded"),
    (
        house.foreign_faults,
        "participant/x.py",
        "try:\n    import ray\nfinally:\n    pass",
        "loaded",
    ),
    (house.foreign_faults, "journal/sql.py", "import asyncio", "must not import asyncio"),
    (house.foreign_faults, "core/x.py", "from time import monotonic", "must not import time"),
    (house.foreign_faults, "core/x.py", "import os.path", "must not import os"),
    (house.size_faults, "x.py", "x = 1\n" * 601, "601 lines, more than 600"),
    (house.size_faults, "x.py", LONG, "long has 71 lines, more than 70"),
    (house.docstring_faults, "x.py", "x = 1", "has no docstring"),
    (house.leftover_faults, "x.py", "x = 1  # TO" + "DO", "is left over"),
    (house.leftover_faults, "x.py", "raise NotImplemented" + "Error", "is left over"),
    (house.leftover_faults, "x.py", "# prob" + "ably fine", "is left over"),
    (house.sleep_faults, "x.py", "import time\ntime.sleep(1)", ":2: time.sleep"),
    (house.sleep_faults, "x.py", "from time import sleep", "from time import sleep"),
    (house.log_faults, "x.py", "logger.error('%r: %s', name, error)", "error goes into the log"),
    (house.log_faults, "x.py", "logger.error(text)", "text is not written out"),
    (house.log_faults, "x.py", "logger.exception('it broke')", "a traceback goes into the log"),
    (house.log_faults, "x.py", "logger.error('x', exc_info=e)", "a traceback goes into the log"),
]


@pytest.mark.parametrize(("rule", "path", "text", "expected"), WRONG)
def test_rule_finds_what_breaks_it(
    rule: Callable[[Source], Iterator[str]], path: str, text: str, expected: str
) -> None:
    """Each rule names the fault in a source that has it."""
    found = list(rule(Source(f"gymckpt/{path}", text)))
    assert [fault for fault in found if expected in fault], found


RIGHT = [
    (house.layer_faults, "core/step.py", "from gymckpt.chart import Chart\nfrom . import entry"),
    (house.layer_faults, "core/step.py", "from __future__ import annotations\nimport attrs"),
    (house.layer_faults, "testing/x.py", "import gymckpt.cli"),
    (house.foreign_faults, "chart/machine.py", "import transitions"),
    (house.foreign_faults, "runtime/instances.py", "def f():\n    import ray"),
    (
        house.foreign_faults,
        "participant/x.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray",
    ),
    (house.foreign_faults, "runtime/x.py", "import asyncio\nimport time"),
    (house.size_faults, "x.py", "x = 1\n" * 600),
    (house.size_faults, "x.py", "def f():\n" + "    x = 1\n" * 69),
    (house.docstring_faults, "__init__.py", ""),
    (house.sleep_faults, "x.py", "import asyncio\nasyncio.sleep(1)"),
    (house.log_faults, "x.py", "logger.error('%r %g: %s', name, 1.5, text_of(error))"),
]


@pytest.mark.parametrize(("rule", "path", "text"), RIGHT)
def test_rule_lets_pass_what_keeps_it(
    rule: Callable[[Source], Iterator[str]], path: str, text: str
) -> None:
    """No rule complains about a source that keeps it."""
    assert list(rule(Source(f"gymckpt/{path}", text))) == []


def test_tests_without_a_claim_are_found() -> None:
    """A test function or method without a docstring is named, a fixture is not."""
    text = (
        '"""M."""\nclass T:\n    async def test_a(self): ...\ndef test_b(): ...\ndef fixture(): ...'
    )
    found = list(house.docstring_faults(Source("tests/test_x.py", text)))
    assert [fault.split(": ")[1].split()[0] for fault in found] == ["test_b", "test_a"]


def test_cycles_are_found() -> None:
    """A cycle of three modules is named once, whether it is closed by a name or a module."""
    found = [
        Source("gymckpt/a.py", "from gymckpt.b import thing"),
        Source("gymckpt/b.py", "import gymckpt.c"),
        Source("gymckpt/c.py", "from gymckpt import a"),
        Source("gymckpt/d.py", "def f():\n    from gymckpt.a import x"),
    ]
    assert list(house.cycle_faults(found)) == [
        "import cycle: gymckpt.a -> gymckpt.b -> gymckpt.c -> gymckpt.a"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "see /wo" + "rk/main",
        "/tmp/ve" + "nv/bin",
        "--index-" + "url",
        "in /ro" + "ot/x",
        "this ses" + "sion",
    ],
)
def test_forbidden_words_are_found(text: str) -> None:
    """A path of one machine is found in any text, with its line."""
    assert [fault.split(": ")[0] for fault in house.word_faults("x.md", f"\n{text}\n")] == [
        "x.md:2"
    ]


def test_ordinary_words_are_not_forbidden() -> None:
    """Relative paths and plain English are let pass."""
    text = "the work goes on in docs/work and https://example.org/work; homework, /rooted"
    text += ", a/ro" + "ot/b"
    assert list(house.word_faults("x.md", text)) == []
