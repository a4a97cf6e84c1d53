"""
The rules of the house as functions from source text to faults.

Each rule is pure, so that the tests can show it a wrong source as well as the real ones. A fault is
one line: the file, the line where there is one, what is wrong.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "gymckpt"

# --- who may import whom ------------------------------------------------------------------------

VOCABULARY = frozenset(
    {"checks", "episodes", "errors", "failures", "files", "roots", "standins", "strict_json"}
    | {"transience", "unread", "values", "wording"}
)
"""Words, ids and small checks that everybody may use, and that use only each other."""

STORED = frozenset({"manifest", "manifest_schema", "replies", "topology", "visibility"})
"""What instances answer and what files hold; beside the core, which does not know it."""

CONTROLLER = frozenset(
    {"calls", "coordinator", "moves", "operations", "recovery", "running", "superseding"}
    | {"unreadable"}
)
"""The verbs of the coordinator, taking over from a controller that is gone, operators' moves."""

FACADE = frozenset({"environment", "interfaces", "snapshot", "startup", "unattached"})
"""What a trainer holds."""

_KNOWN_TO_CONTROLLER = VOCABULARY | STORED | {"chart", "core", "diagnosis", "journal", "runtime"}
_KNOWN_TO_FACADE = _KNOWN_TO_CONTROLLER | CONTROLLER

MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(VOCABULARY, VOCABULARY),
    **dict.fromkeys(STORED, VOCABULARY | STORED),
    **dict.fromkeys(CONTROLLER, _KNOWN_TO_CONTROLLER | CONTROLLER),
    "chart": VOCABULARY,
    "core": VOCABULARY | {"chart"},
    "journal": VOCABULARY | {"chart", "core"},
    "runtime": VOCABULARY | {"chart", "core", "journal"},
    **dict.fromkeys(FACADE, _KNOWN_TO_FACADE | FACADE),
    "participant": VOCABULARY | STORED | {"chart"},
    "diagnosis": VOCABULARY | STORED | {"chart", "core", "journal", "runtime"},
    "cli": _KNOWN_TO_FACADE | FACADE | {"participant"},
    "__init__": _KNOWN_TO_FACADE | FACADE,
}
"""Unit of the package to the units that it may import besides itself; `testing` may import all."""

ASYNCIO_BELOW_RUNTIME = frozenset(
    {"gymckpt/errors.py", "gymckpt/standins.py", "gymckpt/transience.py"}
)
"""Files below the runtime that may import asyncio, for its CancelledError."""

NO_ASYNCIO = VOCABULARY | STORED | {"chart", "core", "journal"}

IMPURE = frozenset(
    """
    asyncio concurrent datetime io logging multiprocessing os pathlib random secrets socket
    subprocess tempfile threading time uuid
    """.split()  # noqa: SIM905 - a list of words reads better as words
)
"""What the core must not import: time, ids, randomness and the world arrive inside events."""

# --- sizes and words ----------------------------------------------------------------------------

MODULE_LINES_MAX = 600
TEST_LINES_MAX = 600
"""A suite may be longer than a module: its tests are read one by one."""
FUNCTION_LINES_MAX = 70

WAIVERS: dict[str, str] = {
    "tests/faults/test_ray_faults.py:make_actor_class": "a class that Ray carries by value",
}
"""`path` or `path:function` to why it may be longer than the rule."""

SLEEPERS: dict[str, str] = {
    "gymckpt/journal/sqlite.py": "waits for another process's lock, on the recorder's thread",
}
"""Files of the package that may call `time.sleep`, with the thread that needs it."""

LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")

_SLASH = "/"
FORBIDDEN = re.compile(
    "|".join(
        [
            rf"(?<![\w.]){_SLASH}work\b",
            rf"{_SLASH}tmp{_SLASH}venv",
            rf"(?<!\w){_SLASH}(?:home|Users){_SLASH}\w",
            rf"(?<![\w.]){_SLASH}root{_SLASH}",
            "index[-_]" + "url",
            "work" + "place",
            r"\b(?:this|helper|agent) " + r"session\b",
        ]
    ),
    re.IGNORECASE,
)
"""Paths and registries of one machine, and how the files came about: none of it belongs here."""

HEDGES = re.compile(r"\b(probably|hopefully|for now|quick hack|temporary hack)\b", re.IGNORECASE)
"""Words with which a comment admits a doubt; a known doubt is an issue."""


@attrs.frozen
class Import:
    """One import statement, for one module."""

    module: str
    line: int
    lazy: bool
    """Whether it runs only when some function is called, or never, for type checkers alone."""


@attrs.frozen(slots=False)
class Source:
    """One Python file."""

    path: str
    """Relative to the root, with slashes."""
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        """The dotted name under which it is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def unit(self) -> str:
        """The package's direct child that it belongs to."""
        parts = self.module.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    @property
    def imports(self) -> tuple[Import, ...]:
        """Every import, with relative ones made absolute."""
        return tuple(self._imports(self.tree, lazy=False))

    def _imports(self, node: ast.AST, *, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, lazy)
            elif isinstance(child, ast.ImportFrom):
                base = self._absolute(child)
                for alias in child.names:
                    yield Import(f"{base}.{alias.name}", child.lineno, lazy)
            else:
                yield from self._imports(child, lazy=lazy or _is_lazy(child))

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = (
            self.module if self.path.endswith("__init__.py") else self.module.rpartition(".")[0]
        )
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return f"{package}.{node.module}" if node.module else package


def _is_lazy(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


@functools.cache
def sources(*directories: str, root: Path = ROOT) -> tuple[Source, ...]:
    """Read every Python file below the directories."""
    return tuple(
        Source(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))
        for directory in directories
        for path in sorted((root / directory).rglob("*.py"))
    )


def package_sources() -> tuple[Source, ...]:
    """Read the package."""
    return sources(PACKAGE)


def _unit_of(module: str) -> str | None:
    """Return the unit of the package that an import reaches, None outside of the package."""
    parts = module.split(".")
    if parts[0] != PACKAGE:
        return None
    name = parts[1] if len(parts) > 1 else "__init__"
    return name if name in MAY_IMPORT or name == "testing" or len(parts) > 2 else "__init__"


def layer_faults(source: Source) -> Iterator[str]:
    """Imports inside the package go one way, and nothing imports `testing`."""
    if source.unit == "testing":
        return
    if source.unit not in MAY_IMPORT:
        yield f"{source.path}: unit {source.unit!r} has no place in MAY_IMPORT; give it one"
        return
    for found in source.imports:
        unit = _unit_of(found.module)
        if unit not in {None, source.unit} | MAY_IMPORT[source.unit]:
            yield f"{source.path}:{found.line}: {source.unit} must not import {unit}"


def cycle_faults(found: Iterable[Source]) -> Iterator[str]:
    """No module of the package imports itself by way of others when it is loaded."""
    by_module = {source.module: source for source in found}
    edges: dict[str, set[str]] = {}
    for name, source in by_module.items():
        wanted = [one.module for one in source.imports if not one.lazy]
        reached = {one if one in by_module else one.rpartition(".")[0] for one in wanted}
        edges[name] = {one for one in reached if one in by_module and one != name}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> Iterator[str]:
        if name in trail:
            yield "import cycle: " + " -> ".join((*trail[trail.index(name) :], name))
        elif name not in done:
            for following in sorted(edges[name]):
                yield from walk(following, (*trail, name))
            done.add(name)

    for name in sorted(edges):
        yield from walk(name, ())


def foreign_faults(source: Source) -> Iterator[str]:
    """The state machine library, Ray, asyncio and the world are imported only in their places."""
    for found in source.imports:
        top = found.module.partition(".")[0]
        where = f"{source.path}:{found.line}"
        if top == "transitions" and source.path != "gymckpt/chart/machine.py":
            yield f"{where}: only gymckpt/chart/machine.py imports transitions"
        if top == "ray":
            if source.path != "gymckpt/runtime/instances.py" and source.unit != "participant":
                yield f"{where}: only runtime/instances.py and participant/ import ray"
            elif not found.lazy:
                yield f"{where}: ray is imported where it is used, not when a module is loaded"
        if (
            top == "asyncio"
            and source.unit in NO_ASYNCIO
            and source.path not in ASYNCIO_BELOW_RUNTIME
        ):
            yield f"{where}: {source.unit} is below the runtime and must not import asyncio"
        if top in IMPURE and source.unit == "core":
            yield f"{where}: the core must not import {top}"


def size_faults(source: Source) -> Iterator[str]:
    """No module has more than 600 lines of code, and no function more than 70."""
    code = _code_lines(source)
    lines = len(code)
    most = TEST_LINES_MAX if source.path.startswith("tests/") else MODULE_LINES_MAX
    if lines > most and source.path not in WAIVERS:
        yield f"{source.path}: {lines} lines, more than {most}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            length = sum(node.lineno <= number <= node.end_lineno for number in code)
            if length > FUNCTION_LINES_MAX and f"{source.path}:{node.name}" not in WAIVERS:
                where = f"{source.path}:{node.lineno}"
                yield f"{where}: {node.name} has {length} lines, more than {FUNCTION_LINES_MAX}"


def _code_lines(source: Source) -> list[int]:
    """Return the numbers of the lines that are neither blank nor part of a docstring."""
    told: set[int] = set()
    for node in ast.walk(source.tree):
        quoted = node.value if isinstance(node, ast.Expr) else None
        if isinstance(quoted, ast.Constant) and isinstance(quoted.value, str):
            told.update(range(quoted.lineno, (quoted.end_lineno or quoted.lineno) + 1))
    lines = enumerate(source.text.splitlines(), 1)
    return [number for number, line in lines if line.strip() and number not in told]


def docstring_faults(source: Source) -> Iterator[str]:
    """Every module says what it is, and every test says what it claims."""
    if source.text.strip() and ast.get_docstring(source.tree) is None:
        yield f"{source.path}: has no docstring"
    if not source.path.startswith("tests/"):
        return
    for node in ast.walk(source.tree):
        is_test = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        )
        if is_test and ast.get_docstring(node) is None:
            yield f"{source.path}:{node.lineno}: {node.name} claims nothing; give it a docstring"


def leftover_faults(source: Source) -> Iterator[str]:
    """The package holds no marks of unfinished work and no hedges."""
    for number, line in enumerate(source.text.splitlines(), 1):
        for found in (LEFTOVERS.search(line), HEDGES.search(line)):
            if found:
                yield f"{source.path}:{number}: {found.group()!r} is left over"


def sleep_faults(source: Source) -> Iterator[str]:
    """Nothing in the package sleeps on a thread, where it would hold up the loop."""
    if source.path in SLEEPERS:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep":
            yield f"{source.path}:{node.lineno}: time.sleep"
    for found in source.imports:
        if found.module == "time.sleep":
            yield f"{source.path}:{found.line}: from time import sleep"


LEGIBLE = frozenset({"text_of", "sample", "show", "GymCheckpointOperationError"})
"""What makes a text that a log line may hold as it is; `%r` and numbers need nothing."""


def log_faults(source: Source) -> Iterator[str]:
    """A log line quotes nothing that could command a terminal, and prints no foreign traceback."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) not in {"logger", "logging"}:
            continue
        where = f"{source.path}:{node.lineno}"
        if node.func.attr == "exception" or any(one.arg == "exc_info" for one in node.keywords):
            yield f"{where}: a traceback goes into the log as its raising module wrote it"
        if node.func.attr not in {"debug", "info", "warning", "error", "critical"}:
            continue
        if not isinstance(node.args[0], ast.Constant):
            yield f"{where}: {ast.unparse(node.args[0])} is not written out, so nobody can check it"
            continue
        conversions = re.findall(r"%[-#0-9.]*([a-z])", str(node.args[0].value))
        for conversion, quoted in zip(conversions, node.args[1:], strict=False):
            made_by = ast.unparse(quoted.func) if isinstance(quoted, ast.Call) else ""
            if conversion == "s" and made_by not in LEGIBLE:
                yield f"{where}: {ast.unparse(quoted)} goes into the log as it is; use text_of"


def word_faults(path: str, text: str) -> Iterator[str]:
    """No file names the machine or the place where it was written."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := FORBIDDEN.search(line):
            yield f"{path}:{number}: {found.group()!r} does not belong here"


def texts(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yield every text file that the repository ships, with its path."""
    suffixes = {".cfg", ".html", ".ini", ".json", ".jsonl", ".md", ".py", ".toml", ".txt", ".yml"}
    suffixes |= {".yaml", ".sql", ".sh"}
    names = {"Makefile", "LICENSE", "run"}
    tops = ("gymckpt", "statecharts", "docs", "examples", "tests", "tools", "benchmarks", ".ci")
    paths = [path for path in root.iterdir() if path.is_file()]
    paths += [path for top in tops if (root / top).is_dir() for path in (root / top).rglob("*")]
    for path in sorted(paths):
        if (path.suffix in suffixes or path.name in names) and path.is_file():
            yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
