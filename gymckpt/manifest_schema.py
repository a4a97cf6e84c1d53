"""
What the outer manifest of one checkpoint says, and how its JSON form is taken apart.

The same checks of meaning run on a manifest that is made and on one that is read. What is read may
have been torn, edited or written by another version: every fault in it is a `ValueError` that names
the place, such as `instances["a/replica-0"][3].attempt`. Files are the business of
`gymckpt.manifest`, which offers the public names of this module too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import orjson

from gymckpt.checks import copied_rows, require_episodes, require_mapping, require_names
from gymckpt.episodes import (
    EnvironmentEpisode,
    require_instance_id,
    require_operation_id,
    require_rollout_id,
)
from gymckpt.strict_json import key_path, located, require_fields, require_list, require_object
from gymckpt.values import plain_text
from gymckpt.wording import sample, show

__all__ = [
    "GYM_CHECKPOINT_SCHEMA_VERSION",
    "GymCheckpointManifest",
    "episodes_by_instance",
    "require_schema_version",
]

GYM_CHECKPOINT_SCHEMA_VERSION = 2
"""The one version of the manifest that this release writes and reads."""

_FIELDS = (
    "schema_version",
    "checkpoint_id",
    "instances",
    "staging_keys",
    "restarts",
    "participants",
)
_MAPS = ("instances", "staging_keys", "restarts", "participants")
_LATER_FIELDS = ("restarts", "participants")
"""Fields that schema 2 did not have from its beginning."""

_Episodes = dict[str, tuple[EnvironmentEpisode, ...]]
_Names = dict[str, tuple[str, ...]]


def require_schema_version(version: Any) -> None:
    """
    Refuse every schema version but this release's own; 2.0, "2" and True are none.

    Args:
        version: A field of a parsed file: anything.

    Raises:
        ValueError: It is another version or no int.
    """
    if type(version) is not int or version != GYM_CHECKPOINT_SCHEMA_VERSION:
        raise ValueError(
            f"schema_version must be the int {GYM_CHECKPOINT_SCHEMA_VERSION}, not {show(version)}; "
            "read the manifest with the release that wrote it"
        )


def _episodes(value: Mapping[str, Iterable[EnvironmentEpisode]]) -> _Episodes:
    return copied_rows(value)


def _names(value: Mapping[str, Iterable[str]]) -> _Names:
    return copied_rows(value)


def _check_version(_manifest: object, _attribute: object, value: Any) -> None:
    require_schema_version(value)


def _check_checkpoint_id(_manifest: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    require_operation_id(value, attribute.name)


def _check_episodes(_manifest: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    for instance, episodes in require_mapping(value, str, attribute.name):
        require_episodes(episodes, key_path(attribute.name, instance))


def _check_names(_manifest: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    for instance, names in require_mapping(value, str, attribute.name):
        require_names(names, key_path(attribute.name, instance))


def _check_participants(_manifest: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    for instance, names in require_mapping(value, str, attribute.name):
        path = key_path(attribute.name, instance)
        if not require_names(names, path):
            raise ValueError(f"{path} must not be empty: a deployment has at least one server")


@attrs.frozen
class GymCheckpointManifest:
    """
    Which episodes of which instance one checkpoint continues, and what a restore needs for that.

    All four maps name the same instances, and a rollout occurs once in all of them: in one
    instance, with one attempt, continued or restarted.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: The version is another one, an id is unsafe, no instance is named, the maps
            differ in their instances, or something occurs twice.
    """

    schema_version: int = attrs.field(validator=_check_version)
    """`GYM_CHECKPOINT_SCHEMA_VERSION`."""

    checkpoint_id: str = attrs.field(converter=plain_text, validator=_check_checkpoint_id)
    """The checkpoint that wrote it; every participant's state names it too."""

    instances: _Episodes = attrs.field(converter=_episodes, validator=_check_episodes)
    """Instance id to the episodes that it saved and that a restore continues."""

    staging_keys: _Names = attrs.field(converter=_names, validator=_check_names)
    """Instance id to the stored rows that these episodes still need."""

    restarts: _Episodes = attrs.field(converter=_episodes, validator=_check_episodes)
    """Instance id to the episodes that could not be captured and start over from their tasks, in
    the order in which they were given."""

    participants: _Names = attrs.field(converter=_names, validator=_check_participants)
    """Instance id to the servers that took part; a restore demands exactly these."""

    def __attrs_post_init__(self) -> None:
        if not self.instances:
            raise ValueError("instances must not be empty: a checkpoint has at least one instance")
        for instance in self.instances:
            require_instance_id(instance)
        for name in _MAPS[1:]:
            self._require_same_instances(name)
        self._require_rollouts_once()

    def _require_same_instances(self, name: str) -> None:
        named, wanted = set[str](getattr(self, name)), set(self.instances)
        if named != wanted:
            missing, unknown = sorted(wanted - named), sorted(named - wanted)
            raise ValueError(
                f"{name} must name the same instances as instances: it lacks {len(missing)} "
                f"({sample(missing)}) and has {len(unknown)} more ({sample(unknown)})"
            )

    def _require_rollouts_once(self) -> None:
        places: dict[str, str] = {}
        repeated: list[str] = []
        for path, episode in self._placed_episodes():
            if episode.rollout_id in places:
                repeated.append(f"{episode.rollout_id} in {places[episode.rollout_id]} and {path}")
            else:
                places[episode.rollout_id] = path
        if repeated:
            raise ValueError(
                "a rollout must occur once in a manifest, in one instance, with one attempt, "
                f"continued or restarted: {sample(repeated)}"
            )

    def _placed_episodes(self) -> Iterator[tuple[str, EnvironmentEpisode]]:
        """Yield every episode with the path of the list that names it."""
        for name, episodes_of in (("instances", self.instances), ("restarts", self.restarts)):
            for instance, episodes in sorted(episodes_of.items()):
                path = key_path(name, instance)
                yield from ((path, episode) for episode in episodes)

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """The instances of the checkpoint, sorted."""
        return tuple(sorted(self.instances))

    def next_attempts(self) -> dict[str, tuple[EnvironmentEpisode, ...]]:
        """Return the attempts that a restore of this manifest creates, by instance."""
        return {
            instance: tuple(episode.next_attempt() for episode in episodes)
            for instance, episodes in self.instances.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: instances sorted, lists in their order."""
        form: dict[str, Any] = {
            "schema_version": self.schema_version,
            "checkpoint_id": self.checkpoint_id,
        }
        for name in _MAPS:
            rows: dict[str, tuple[Any, ...]] = getattr(self, name)
            form[name] = {instance: _plain(rows[instance]) for instance in sorted(rows)}
        return form

    def encode(self) -> bytes:
        """Return the one text in which this manifest is ever written."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any]) -> GymCheckpointManifest:
        """
        Parse the JSON form.

        Args:
            raw: What a manifest file holds: anything.

        Raises:
            ValueError: It is no manifest that this release wrote; the error names the place.
        """
        fields = require_object(raw, "the manifest")
        if "schema_version" in fields:
            require_schema_version(fields["schema_version"])
        _require_present_schema(fields)
        fields = require_fields(fields, "the manifest", _FIELDS)
        try:
            return cls(
                fields["schema_version"],
                fields["checkpoint_id"],
                episodes_by_instance(fields["instances"], "instances"),
                _names_by_instance(fields["staging_keys"], "staging_keys"),
                episodes_by_instance(fields["restarts"], "restarts"),
                _names_by_instance(fields["participants"], "participants"),
            )
        except TypeError as error:
            raise ValueError(str(error)) from error


def _plain(items: tuple[Any, ...]) -> list[Any]:
    return [item.to_dict() if isinstance(item, EnvironmentEpisode) else item for item in items]


# --- its JSON form -------------------------------------------------------------------------------


def _require_present_schema(fields: Mapping[str, Any]) -> None:
    """Tell a manifest of an older version, which has the same schema number, from a broken one."""
    missing = [name for name in _LATER_FIELDS if name not in fields]
    if missing and all(name in fields for name in _FIELDS if name not in _LATER_FIELDS):
        raise ValueError(
            f"the manifest lacks {' and '.join(missing)}: it was written by an older version, "
            "which did not record what a safe restore must know; restore it with that version, "
            "or restore a later checkpoint"
        )


def episodes_by_instance(
    raw: Mapping[str, list[Mapping[str, Any]]], field: str = "instances"
) -> dict[str, tuple[EnvironmentEpisode, ...]]:
    """
    Parse the JSON form of a map from instances to episodes.

    Args:
        raw: A field of a parsed file: anything.
        field: Its name, for the error.

    Raises:
        ValueError: It is none.
    """
    parsed: _Episodes = {}
    for instance, items in require_object(raw, field).items():
        path = key_path(field, instance)
        parsed[instance] = tuple(
            _episode(item, f"{path}[{index}]")
            for index, item in enumerate(require_list(items, path))
        )
    return parsed


def _episode(raw: object, path: str) -> EnvironmentEpisode:
    fields = require_fields(raw, path, ("rollout_id", "attempt"))
    with located(f"{path}.rollout_id"):
        rollout_id = require_rollout_id(fields["rollout_id"])
    with located(f"{path}.attempt"):
        return EnvironmentEpisode(rollout_id, fields["attempt"])


_OLDER_RECORDS = "; a manifest with records here was written by an older version"


def _names_by_instance(raw: object, field: str) -> _Names:
    """Parse a map of names; participants were records once, under the same schema number."""
    parsed: _Names = {}
    for instance, items in require_object(raw, field).items():
        path = key_path(field, instance)
        for index, item in enumerate(require_list(items, path)):
            if not isinstance(item, str):
                raise ValueError(  # noqa: TRY004 - a file
                    f"{path}[{index}]: must be a string, not {show(item)}"
                    f"{_OLDER_RECORDS if field == 'participants' else ''}"
                )
        parsed[instance] = tuple(items)
    return parsed
