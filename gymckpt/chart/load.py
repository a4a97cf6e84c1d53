"""
Read charts from TOML files, and refuse every file that is not a sound chart.

Three stages, each of which reports all that it finds: is it TOML, has it the shape of a chart (no
key missing, unknown or of another type), and does it make sense (`check.py`). A later stage runs
only where the earlier ones found nothing, since it would only repeat their findings in other
words. Every problem is one line of one `ChartError`: the file, the path into it, the way out.

The shipped charts stand in `statecharts/` at the top of the repository and inside the package in
a wheel.
"""

from __future__ import annotations

import functools
import tomllib
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, cast, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import list_structure_factory
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError
from cattrs.gen import make_dict_structure_fn, override

from gymckpt.chart.check import check_chart, path_to
from gymckpt.chart.model import Chart, Edge, State
from gymckpt.errors import ChartError, did_you_mean, text_of

__all__ = ["chart_names", "load_chart", "load_chart_file", "parse_chart"]

DIRECTORY = "statecharts"
SUFFIX = ".toml"

_Hook = Callable[[Any, Any], Any]
"""How cattrs structures one value: from the raw value and the expected type."""

PROBLEMS_SHOWN_MAX = 50
"""How many problems of one file an error lists; the rest are counted."""


def chart_names() -> tuple[str, ...]:
    """Return the names of the shipped charts, sorted."""
    return tuple(
        sorted(
            entry.name.removesuffix(SUFFIX)
            for entry in _shipped().iterdir()
            if entry.name.endswith(SUFFIX)
        )
    )


def load_chart(name: str) -> Chart:
    """
    Return a shipped chart; it is read once per process.

    Args:
        name: One of `chart_names()`.

    Raises:
        ChartError: There is no such chart, or its file is wrong.
    """
    return _load_shipped(name)


def load_chart_file(path: str | Path) -> Chart:
    """
    Return the chart of a file, read anew.

    Args:
        path: A TOML file in the grammar of `statecharts/README.md`.

    Raises:
        ChartError: The file cannot be read, or is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ChartError(f"{path}: cannot be read as a chart: {text_of(error)}") from error
    return parse_chart(text, str(path))


def parse_chart(text: str, source: str) -> Chart:
    """
    Return the chart that a text declares.

    Args:
        text: TOML in the grammar of `statecharts/README.md`.
        source: What to call the text in errors, usually its path.

    Raises:
        ChartError: The text is no chart; one line for each problem.
    """
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ChartError(f"{source}: is not TOML: {text_of(error)}") from error
    try:
        chart = _CONVERTER.structure(_with_names(raw), Chart)
    except ClassValidationError as error:
        raise _fault(source, _shape_problems(error, ())) from None
    if problems := check_chart(chart):
        raise _fault(source, problems)
    return chart


@functools.cache
def _load_shipped(name: str) -> Chart:
    names = chart_names()
    if name not in names:
        raise ChartError(f"there is no chart {name!r:.100}{did_you_mean(name, names)}")
    text = (_shipped() / f"{name}{SUFFIX}").read_text(encoding="utf-8")
    return parse_chart(text, f"{DIRECTORY}/{name}{SUFFIX}")


def _shipped(package: Traversable | None = None) -> Traversable:
    """Return the directory of the shipped charts, beside or inside `package`."""
    package = package or resources.files("gymckpt")
    inside = package / DIRECTORY
    beside = Path(str(package)).parent / DIRECTORY
    for directory in (inside, beside):
        if directory.is_dir():
            return directory
    raise ChartError(f"gymckpt is installed without its charts: neither {inside} nor {beside}")


def _fault(source: str, problems: Iterable[str]) -> ChartError:
    listed = list(problems)
    lines = [f"{source}: {problem}" for problem in listed[:PROBLEMS_SHOWN_MAX]]
    if len(listed) > PROBLEMS_SHOWN_MAX:
        lines.append(f"{source}: and {len(listed) - PROBLEMS_SHOWN_MAX} more problems")
    return ChartError("\n".join(lines))


# --- the shape of a file ------------------------------------------------------------------------

_NAME_KEY = "[name]"
"""Where a state's name is put while it is structured; in the file it is the name of its table."""

_TOML_TYPES: Mapping[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a float",
    bool: "a boolean",
    dict: "a table",
    list: "an array",
}


class _ShapeError(ValueError):
    """A value that is not of the kind that its key asks for."""


def _with_names(raw: dict[str, Any]) -> dict[str, Any]:
    states = raw.get("states")
    if not isinstance(states, dict):
        return raw
    rows = cast("dict[str, Any]", states)
    return {**raw, "states": {name: _with_name(name, row) for name, row in rows.items()}}


def _with_name(name: str, row: Any) -> Any:
    return {_NAME_KEY: name} | cast("dict[str, Any]", row) if isinstance(row, dict) else row


def _require(raw: object, expected: type) -> None:
    if type(raw) is not expected:
        found = _TOML_TYPES.get(type(raw), "a date or time")
        raise _ShapeError(f"must be {_TOML_TYPES[expected]}, not {found}: {raw!r:.100}")


def _structure_plain(raw: Any, expected: type) -> Any:
    _require(raw, expected)
    return raw


def _structure_word(raw: Any, expected: Any) -> Any:
    _require(raw, str)
    words = get_args(expected)
    if raw not in words:
        raise _ShapeError(
            f"{raw!r:.100} is not one of {', '.join(words)}{did_you_mean(raw, words)}"
        )
    return raw


def _shape_problems(error: BaseException, path: tuple[str | int, ...]) -> Iterator[str]:
    """Turn what cattrs raised into one line for each thing that is wrong."""
    if isinstance(error, ClassValidationError | IterableValidationError):
        for key, cause in _causes(error):
            yield from _shape_problems(cause, path if key is None else (*path, key))
    elif isinstance(error, ForbiddenExtraKeysError):
        known = [field.name for field in attrs.fields(error.cl)]
        if error.cl is State:
            known.remove("name")
        for key in sorted(error.extra_fields):
            yield f"{path_to(*path, key)}: is an unknown key{did_you_mean(key, known)}"
    elif isinstance(error, KeyError):
        yield f"{path_to(*path)}: is missing"
    else:
        yield f"{path_to(*path)}: {text_of(error)}"


def _causes(
    error: ClassValidationError | IterableValidationError,
) -> Iterator[tuple[str | int | None, Exception]]:
    """Yield what is wrong one level down, each with its key; with none for the level itself."""
    if isinstance(error, ClassValidationError):
        by_name, bare = error.group_exceptions()
        yield from ((note.name, cause) for cause, note in by_name)
    else:
        by_index, bare = error.group_exceptions()
        yield from ((note.index, cause) for cause, note in by_index)
    yield from ((None, cause) for cause in bare)


def _has_origin(origin: object) -> Callable[[Any], bool]:
    return lambda expected: get_origin(expected) is origin


def _table_first(structure: _Hook) -> _Hook:
    """Refuse what is no table before `structure` looks into it."""

    def hook(raw: Any, expected: Any) -> Any:
        _require(raw, dict)
        return structure(raw, expected)

    return hook


def _edges_hook(converter: cattrs.Converter) -> _Hook:
    structure_list = list_structure_factory(list[Edge], converter)

    def hook(raw: Any, _: Any) -> tuple[Edge, ...]:
        if isinstance(raw, str):
            return (Edge(to=raw),)
        if not isinstance(raw, list):
            raise _ShapeError(f"must be a state or an array of tables: {raw!r:.100}")
        return tuple(structure_list(raw, list[Edge]))

    return hook


def _make_converter() -> cattrs.Converter:
    """
    Return the one converter of chart files.

    - No value is converted: a string is a string, `1` is not `true`.
    - Unknown keys are refused.
    - A state's name is the name of its table.
    - `on.X = "state"` is short for `on.X = [{ to = "state" }]`.
    """
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)

    def mapping_hook(expected: Any) -> _Hook:
        as_dict = GenericAlias(dict, get_args(expected))
        return _table_first(converter.get_structure_hook(as_dict))

    for plain in (str, int, bool):
        converter.register_structure_hook(plain, _structure_plain)
    converter.register_structure_hook_func(_has_origin(Literal), _structure_word)
    converter.register_structure_hook_factory(_has_origin(abc.Mapping), mapping_hook)
    converter.register_structure_hook(Edge, _table_first(make_dict_structure_fn(Edge, converter)))
    converter.register_structure_hook_func(
        lambda expected: expected == tuple[Edge, ...], _edges_hook(converter)
    )
    state = make_dict_structure_fn(State, converter, name=override(rename=_NAME_KEY))
    converter.register_structure_hook(State, _table_first(state))
    converter.register_structure_hook(Chart, _table_first(make_dict_structure_fn(Chart, converter)))
    return converter


_CONVERTER = _make_converter()
