"""
Mutate what mutmut leaves alone: tables, fields and defaults, properties, whatever is decorated.

mutmut changes the bodies of plain functions only. This changes all else in a module, with mutmut's
own operators, one change at a time. Each change gets a forked process that imports the changed
text in place of the module and runs tests until one fails. A change that no test fails for is
printed; `docs/mutation.md` says what became of it.

    python tools/mutate_tables.py [--share 0.5] MODULE.py [MODULE.py …] -- TEST [TEST …]

The tests are those of the core and the charts if none are given.
With `--share` only that part of each module's changes is made, always the same ones.
Types are not changed, nor is `__all__`: the tests do not depend on them, type checkers do.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import attrs
import cattrs
import hypothesis.stateful
import libcst as cst
import pytest
import transitions
from libcst.metadata import MetadataWrapper
from mutmut.mutation.mutators import mutation_operators

PRELOADED = (attrs, cattrs, hypothesis.stateful, transitions)
"""Imported once, so that no process has to."""

MEMORY_MAX = 8 << 30
"""Bytes; a change may make a loop that never ends."""

OPTIONS = (
    *("-x", "-q", "-p", "no:cacheprovider"),
    *("-p", "tools.mutation_profile", "--hypothesis-profile=mutation"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # Hypothesis is there already
)
_TYPE_NAME = re.compile(r"_?[A-Z][a-z]\w*")
_NOT_MUTATED = (cst.Import, cst.ImportFrom, cst.Annotation, cst.Decorator)


class _Sites(cst.CSTVisitor):
    """Collects every change that can be made outside of plain functions."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Note the changes of a node, and look into it unless it is left alone."""
        if isinstance(node, _NOT_MUTATED) or _is_plain_function(node) or _is_about_types(node):
            return False
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                self.changes += [(node, changed) for changed in operator(node)]
        return True


def _is_plain_function(node: cst.CSTNode) -> bool:
    """Whether mutmut changes it, as a function or as a method."""
    if not isinstance(node, cst.FunctionDef):
        return False
    names = [one.decorator.value for one in node.decorators if isinstance(one.decorator, cst.Name)]
    return not node.decorators or names in (["staticmethod"], ["classmethod"])


def _is_about_types(node: cst.CSTNode) -> bool:
    """Whether it names a type, or lists the public names."""
    if not isinstance(node, cst.Assign):
        return False
    [target, *_] = node.targets
    name = target.target.value if isinstance(target.target, cst.Name) else ""
    return name == "__all__" or bool(_TYPE_NAME.fullmatch(name))


def changed_texts(text: str) -> Iterator[str]:
    """Yield a module's text with one change after the other."""
    module = MetadataWrapper(cst.parse_module(text)).module
    sites = _Sites()
    module.visit(sites)
    for node, changed in sites.changes:
        replaced = module.deep_replace(node, changed)
        assert isinstance(replaced, cst.Module)
        if replaced.code != text:
            yield replaced.code


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a text in place of one module."""

    def __init__(self, name: str, text: str, path: Path) -> None:
        self.name = name
        self.text = text
        self.path = path
        self.was_imported = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Claim the module."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the text."""
        self.was_imported = True
        exec(compile(self.text, str(self.path), "exec"), module.__dict__)  # noqa: S102


def outcome_of(path: Path, text: str, tests: Sequence[str], limit_s: int) -> str:
    """Return what tests say of a module's text: `survived`, `killed` or `timeout`."""
    assert "gymckpt" not in sys.modules
    pid = os.fork()
    if pid == 0:
        _test(_Planted(".".join(path.with_suffix("").parts), text, path), tests, limit_s)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
    code = os.WEXITSTATUS(status)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        sys.exit(f"no test is selected by {' '.join(tests)}, or none imports {path}")
    return "killed" if code else "survived"


def _test(planted: _Planted, tests: Sequence[str], limit_s: int) -> None:
    """Run tests in this process with a text planted, and leave it with their exit code."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    signal.alarm(limit_s)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY_MAX if hard == resource.RLIM_INFINITY else min(MEMORY_MAX, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    sys.meta_path.insert(0, planted)
    code = int(pytest.main([*OPTIONS, *tests]))
    os._exit(code if planted.was_imported else int(pytest.ExitCode.NO_TESTS_COLLECTED))


def _difference(text: str, changed: str) -> str:
    """Return the lines that differ, with the number of the first of them."""
    lines = list(difflib.unified_diff(text.splitlines(), changed.splitlines(), lineterm="", n=0))
    place = lines[2].split()[1].lstrip("-").partition(",")[0]
    return f"{place}\n" + "\n".join(f"    {line}" for line in lines[3:])


def main(modules: Sequence[str], tests: Sequence[str], share: float) -> None:
    """Change each module in every way, or in a share of them; print what no test fails for."""
    sys.path.insert(0, str(Path.cwd()))
    began_s = time.monotonic()
    if outcome_of(Path(modules[0]), Path(modules[0]).read_text("utf-8"), tests, 600) != "survived":
        sys.exit(f"the tests fail without a change, or do not import {modules[0]}")
    limit_s = int(10 + 3 * (time.monotonic() - began_s))
    for module in modules:
        path = Path(module)
        text = path.read_text("utf-8")
        counts: Counter[str] = Counter()
        texts = list(changed_texts(text))
        chosen = random.Random(module).sample(texts, round(len(texts) * share))  # noqa: S311
        for changed in chosen:
            outcome = outcome_of(path, changed, tests, limit_s)
            counts[outcome] += 1
            if outcome == "survived":
                print(f"{module}:{_difference(text, changed)}", flush=True)
        said = ", ".join(f"{counts[name]} {name}" for name in ("killed", "timeout", "survived"))
        print(f"{module}: {counts.total()} of {len(texts)} mutants: {said}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage="%(prog)s [--share SHARE] MODULE.py … -- TEST …")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("modules", nargs="+")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:split])
    main(given.modules, sys.argv[split + 1 :] or ["tests/core", "tests/chart"], given.share)
