"""
The public names are those of the two API documents, with their parameters, types and kinds.

The tables below are the documents as data. What is ours besides may only be added in ways that a
caller who knows the documents alone cannot notice: keyword-only parameters with a default.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import typing
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
import pytest

import gymckpt
from gymckpt import interfaces
from gymckpt.coordinator import GymCheckpointCoordinator
from gymckpt.episodes import EnvironmentEpisode
from gymckpt.errors import (
    GymCheckpointNotReady,
    GymCheckpointOperationError,
    GymCheckpointUnavailable,
)
from gymckpt.manifest import GymCheckpointManifest
from gymckpt.replies import GymCheckpointCommitSummary, GymCheckpointPrepareSummary

NOTHING = type(None)
Root = str | Path
Episodes = Mapping[str, tuple[EnvironmentEpisode, ...]]
Names = dict[str, tuple[str, ...]]
Inventory = dict[str, tuple[EnvironmentEpisode, ...]]
Restarts = dict[str, frozenset[EnvironmentEpisode]]


@attrs.frozen
class Signature:
    """One function or method of a document."""

    parameters: Mapping[str, Any]
    """Positional parameters to their types, in their order."""
    returns: Any
    keyword_only: Mapping[str, Any] = {}
    kind: str = "plain"
    """`plain`, `async`, or `context` for an asynchronous context manager."""


CONSTANTS = {
    "GYM_CHECKPOINT_MANIFEST_FILENAME": "gym_checkpoint.json",
    "GYM_CHECKPOINT_SCHEMA_VERSION": 2,
    "_MAX_REPLY_GRACE_S": 5.0,
    "_RESUME_ATTEMPTS": 2,
    "_RESUME_RETRY_PAUSE_S": 1.0,
}

FUNCTIONS = {
    "gymckpt.coordinator.is_transient_gym_checkpoint_failure": Signature(
        {"error": BaseException}, bool
    ),
    "gymckpt.coordinator.staging_keys_of": Signature(
        {"summary": GymCheckpointCommitSummary, "episodes": Iterable[EnvironmentEpisode]},
        tuple[str, ...],
    ),
    "gymckpt.coordinator.load_gym_checkpoint_manifest": Signature(
        {"checkpoint_root": Root}, GymCheckpointManifest
    ),
    "gymckpt.coordinator.write_gym_checkpoint_manifest": Signature(
        {"checkpoint_root": Root, "manifest": GymCheckpointManifest}, NOTHING
    ),
    "gymckpt.coordinator._cancel_remote": Signature({"reference": Any}, NOTHING),
    "gymckpt.manifest.GymCheckpointManifest.to_dict": Signature({}, dict[str, Any]),
    "gymckpt.manifest.GymCheckpointManifest.from_mapping": Signature(
        {"raw": Mapping[str, Any]}, GymCheckpointManifest
    ),
    "gymckpt.interfaces.EnvironmentEpisode.next_attempt": Signature({}, EnvironmentEpisode),
    "gymckpt.interfaces.EnvironmentSnapshot.check_against_cut": Signature(
        {"cut": interfaces.DataPlaneMutationCut}, NOTHING, kind="async"
    ),
    "gymckpt.interfaces.EnvironmentSnapshot.metrics": Signature(
        {"paused_seconds": float}, dict[str, float]
    ),
    "gymckpt.interfaces.EnvironmentCheckpoint.check_startup": Signature({}, NOTHING, kind="async"),
    "gymckpt.interfaces.EnvironmentCheckpoint.snapshot": Signature(
        {"checkpoint_path": Path},
        AbstractAsyncContextManager[interfaces.EnvironmentSnapshot | None],
    ),
    "gymckpt.interfaces.EnvironmentCheckpoint.restored": Signature(
        {"checkpoint_path": Path},
        AbstractAsyncContextManager[interfaces.RestoredEnvironmentRollouts],
    ),
    "gymckpt.interfaces.EnvironmentCheckpoint.is_unavailable": Signature(
        {"error": BaseException}, bool
    ),
    "gymckpt.interfaces.NoEnvironmentCheckpoint.check_startup": Signature(
        {}, NOTHING, kind="async"
    ),
    "gymckpt.interfaces.NoEnvironmentCheckpoint.snapshot": Signature(
        {"checkpoint_path": Path},
        AsyncIterator[interfaces.EnvironmentSnapshot | None],
        kind="context",
    ),
    "gymckpt.interfaces.NoEnvironmentCheckpoint.restored": Signature(
        {"checkpoint_path": Path},
        AsyncIterator[interfaces.RestoredEnvironmentRollouts],
        kind="context",
    ),
    "gymckpt.interfaces.NoEnvironmentCheckpoint.is_unavailable": Signature(
        {"error": BaseException}, bool
    ),
}

OUR_FUNCTIONS = {
    "gymckpt.manifest._require_schema_version": ["version"],
    "gymckpt.manifest._episodes_by_instance": ["raw"],
}
"""Private ones that only the names and leading parameters are kept of."""

VERBS = {
    "prepare": Signature(
        {"checkpoint_id": str}, dict[str, GymCheckpointPrepareSummary], kind="async"
    ),
    "renew": Signature({"checkpoint_id": str}, NOTHING, kind="async"),
    "restart_only_servers": Signature({}, dict[str, list[str]], kind="async"),
    "commit": Signature(
        {"checkpoint_id": str, "checkpoint_root": Root, "episodes_by_instance": Episodes},
        gymckpt.GymCheckpointCommitResult,
        keyword_only={"restarts": Episodes},
        kind="async",
    ),
    "retire": Signature(
        {"checkpoint_id": str, "episodes_by_instance": Episodes}, NOTHING, kind="async"
    ),
    "forget": Signature(
        {"checkpoint_id": str, "episodes_by_instance": Episodes}, NOTHING, kind="async"
    ),
    "retire_restored": Signature(
        {"restore_id": str, "manifest": GymCheckpointManifest}, NOTHING, kind="async"
    ),
    "restore": Signature(
        {"restore_id": str, "checkpoint_root": Root, "manifest": GymCheckpointManifest},
        NOTHING,
        kind="async",
    ),
    "restored": Signature(
        {"restore_id": str, "checkpoint_root": Root, "manifest": GymCheckpointManifest},
        AsyncIterator[None],
        kind="context",
    ),
    "resume": Signature({"checkpoint_id": str}, NOTHING, kind="async"),
    "prepared": Signature({"checkpoint_id": str}, AsyncIterator[Restarts], kind="context"),
}
FUNCTIONS |= {
    f"gymckpt.coordinator.GymCheckpointCoordinator.{name}": verb for name, verb in VERBS.items()
}

PROPERTIES = {
    "gymckpt.coordinator.GymCheckpointCoordinator.instance_ids": frozenset[str],
    "gymckpt.coordinator.GymCheckpointCoordinator.control_timeout_s": float,
    "gymckpt.interfaces.EnvironmentEpisode.capture_key": str,
    "gymckpt.interfaces.EnvironmentSnapshot.restarted_rollouts": int,
    "gymckpt.interfaces.EnvironmentCheckpoint.holds_rollout_state": bool,
    "gymckpt.interfaces.NoEnvironmentCheckpoint.holds_rollout_state": bool,
}

FIELDS: dict[str, dict[str, Any]] = {
    "gymckpt.coordinator.GymCheckpointManifest": {
        "schema_version": int,
        "checkpoint_id": str,
        "instances": Inventory,
        "staging_keys": Names,
        "restarts": Inventory,
        "participants": Names,
    },
    "gymckpt.coordinator.GymCheckpointCommitResult": {
        "manifest": GymCheckpointManifest,
        "instances": dict[str, GymCheckpointCommitSummary],
    },
    "gymckpt.interfaces.EnvironmentEpisode": {"rollout_id": str, "attempt": int},
    "gymckpt.interfaces.RestoredEnvironmentRollouts": {
        "continued_attempts": frozenset[tuple[str, str, int]],
        "staging_keys": frozenset[str],
    },
}
"""Data class to its fields, in the order in which they may be given by position."""

ERRORS: dict[type[RuntimeError], dict[str, Any]] = {
    GymCheckpointOperationError: {
        "operation": str,
        "failures": Mapping[str, BaseException],
    },
    GymCheckpointNotReady: {"blockers": Mapping[str, Mapping[str, tuple[str, ...]]]},
}

PUBLIC = """
    GYM_CHECKPOINT_MANIFEST_FILENAME GYM_CHECKPOINT_SCHEMA_VERSION GymCheckpointCommitResult
    GymCheckpointCoordinator GymCheckpointManifest GymCheckpointNotReady
    GymCheckpointOperationError is_transient_gym_checkpoint_failure load_gym_checkpoint_manifest
    staging_keys_of write_gym_checkpoint_manifest
    """.split()  # noqa: SIM905 - a list of words reads better as words

NOT_OURS = """
    _collect _deadline _discard_restore _renew_until_stopped _validate_inventory
    """.split()  # noqa: SIM905 - likewise
"""Private steps of straight-line code; with charts there is nothing that they would do."""


def found(path: str) -> Any:
    """Return what a dotted path names, as it is declared in its class."""
    names = path.split(".")
    module = importlib.import_module(".".join(names[:2]))
    owner: Any = module
    for name in names[2:-1]:
        owner = getattr(owner, name)
    return (
        inspect.getattr_static(owner, names[-1])
        if owner is not module
        else owner.__dict__[names[-1]]
    )


def function_of(path: str) -> Callable[..., Any]:
    """Return the function at a path, also where it is a class method."""
    raw = found(path)
    return raw.__func__ if isinstance(raw, classmethod) else raw


def own_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that a caller gives."""
    parameters = dict(inspect.signature(function).parameters)
    for first in ("self", "cls"):
        parameters.pop(first, None)
    return parameters


def kind_of(function: Callable[..., Any]) -> str:
    """Tell how a function is called."""
    if inspect.isasyncgenfunction(getattr(function, "__wrapped__", None)):
        return "context"
    return "async" if inspect.iscoroutinefunction(function) else "plain"


WIDER = {
    "gymckpt.coordinator.GymCheckpointCoordinator.commit": {
        "restarts": Mapping[str, Collection[EnvironmentEpisode]]
    }
}
"""Parameters that take more than the document says. Its `commit` takes tuples, and its `prepared`
yields frozensets for it: a caller who passes on what was yielded would fail every type check."""


@pytest.mark.parametrize("path", FUNCTIONS)
def test_function_has_the_documented_signature(path: str) -> None:
    """Names, order, keyword-only-ness, defaults, types and kind are those of the document."""
    function, expected = function_of(path), FUNCTIONS[path]
    documented = {**expected.parameters, **expected.keyword_only}
    parameters = own_parameters(function)
    assert [one.name for one in parameters.values() if one.default is one.empty] == [*documented]
    by_name = [one.name for one in parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert [name for name in by_name if name in documented] == [*expected.keyword_only]
    by_position = [one.name for one in parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert by_position == [*expected.parameters]
    assert len(parameters) == len(by_position) + len(by_name)
    assert kind_of(function) == expected.kind
    hints = typing.get_type_hints(function)
    wanted = {**documented, "return": expected.returns, **WIDER.get(path, {})}
    assert {name: hints[name] for name in wanted} == wanted


@pytest.mark.parametrize("path", OUR_FUNCTIONS)
def test_private_function_takes_what_it_takes_in_the_document(path: str) -> None:
    """A private function of the document can be called with the document's arguments."""
    parameters = own_parameters(function_of(path))
    leading = OUR_FUNCTIONS[path]
    assert list(parameters)[: len(leading)] == leading
    assert [n for n, one in parameters.items() if one.default is one.empty] == leading


@pytest.mark.parametrize("path", PROPERTIES)
def test_property_has_the_documented_type(path: str) -> None:
    """What the document calls a property is one, can be read only, and has its type."""
    declared = found(path)
    assert isinstance(declared, property)
    assert declared.fset is None
    assert typing.get_type_hints(declared.fget)["return"] == PROPERTIES[path]


@pytest.mark.parametrize("path", FIELDS)
def test_data_class_has_the_documented_fields(path: str) -> None:
    """A data class has exactly the document's fields, in order, by position, and is frozen."""
    cls = found(path)
    fields = attrs.fields(cls)
    hints = typing.get_type_hints(cls)
    assert {field.name: hints[field.name] for field in fields} == FIELDS[path]
    assert [field.name for field in fields] == list(FIELDS[path])
    assert not any(field.kw_only for field in fields)
    blank = object.__new__(cls)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(blank, fields[0].name, None)


def test_restored_rollouts_default_to_nothing() -> None:
    """The document's two defaults are empty frozen sets."""
    nothing = interfaces.RestoredEnvironmentRollouts()
    assert (nothing.continued_attempts, nothing.staging_keys) == (frozenset(), frozenset())


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_error_is_made_as_documented(cls: type[RuntimeError]) -> None:
    """An error takes the document's arguments by position, keeps them, and survives pickling."""
    assert issubclass(cls, RuntimeError)
    assert list(own_parameters(cls)) == list(ERRORS[cls])
    hints = typing.get_type_hints(cls.__init__)
    assert {name: hints[name] for name in ERRORS[cls]} == ERRORS[cls]
    example: dict[str, Any] = {
        "operation": "commit",
        "failures": {"a/replica-0": TimeoutError("late")},
        "blockers": {"a/replica-0": {"agent": ("r-1",)}},
    }
    error = cls(*(example[name] for name in ERRORS[cls]))
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is cls
    assert str(back) == str(error)
    assert back.__dict__.keys() >= ERRORS[cls].keys()
    assert repr(back.__dict__) == repr(error.__dict__)


def test_unavailable_is_a_runtime_error_with_one_text() -> None:
    """The actor's own error carries one text and nothing that could not be pickled."""
    error = pickle.loads(pickle.dumps(GymCheckpointUnavailable("HTTP 409")))
    assert isinstance(error, RuntimeError)
    assert error.args == ("HTTP 409",)


def test_constructor_is_the_documented_one_with_more_settings() -> None:
    """The coordinator takes the document's arguments, and whatever else it takes has a default."""
    parameters = own_parameters(GymCheckpointCoordinator)
    documented = ["shard_set", "control_timeout_s", "prepare_timeout_s"]
    assert list(parameters)[:3] == documented
    first, *others = parameters.values()
    assert first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert {one.kind for one in others} == {inspect.Parameter.KEYWORD_ONLY}
    assert [one.name for one in parameters.values() if one.default is one.empty] == documented
    hints = typing.get_type_hints(GymCheckpointCoordinator.__init__)
    assert (hints["control_timeout_s"], hints["prepare_timeout_s"]) == (float, float)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constant_has_the_documented_value(name: str) -> None:
    """A constant has the document's value and type."""
    value = found(f"gymckpt.coordinator.{name}")
    assert value == CONSTANTS[name]
    assert type(value) is type(CONSTANTS[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_offered_in_both_places(name: str) -> None:
    """Every public name is one and the same object at the top and in the document's module."""
    module = importlib.import_module("gymckpt.coordinator")
    assert getattr(gymckpt, name) is getattr(module, name)
    assert name in gymckpt.__all__
    assert name in module.__all__


@pytest.mark.parametrize("name", NOT_OURS)
def test_private_steps_of_the_document_are_not_imitated(name: str) -> None:
    """No private method is kept that would be there for its name only."""
    assert not hasattr(GymCheckpointCoordinator, name)
