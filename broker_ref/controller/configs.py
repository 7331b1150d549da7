"""Changes of topics' configs.

| operation | does                                                              |
| --------- | ----------------------------------------------------------------- |
| SET       | gives the config this value                                       |
| DELETE    | takes its own value away: the default holds                       |
| APPEND    | adds to a list what is not in it (LIST configs alone)             |
| SUBTRACT  | takes from a list what is in it (LIST configs alone)              |

Purpose: the records that alter configs, one at a time (KIP-339) or all of a topic (the older
AlterConfigs, which takes away what is not named). Invariant: what the topic's configs come to is
checked as a whole, and a topic is altered as asked or not at all. What it must not know: requests,
the journal. Source: ConfigurationControlManager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.records import ConfigRecord
from broker_ref.controller.topic_names import check_name
from broker_ref.protocol.errors import ApiError
from broker_ref.topic_configs import TOPIC_CONFIG_KEYS, ConfigType, check_topic_configs


class ConfigOperation(IntEnum):
    """As IncrementalAlterConfigs numbers them; see the table above."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One config of a topic, and what is to become of it."""

    name: str
    operation: ConfigOperation
    value: str | None


def incremental_changes(
    metadata: ClusterMetadata, topic: str, changes: Sequence[ConfigChange]
) -> list[ConfigRecord]:
    """The records that make the changes; INVALID_CONFIG, INVALID_REQUEST, unknown topic."""
    current = _current_configs(metadata, topic)
    altered: dict[str, str | None] = dict(current)
    for change in changes:
        altered[change.name] = _operate(change, current.get(change.name))
    deleted = {change.name for change in changes if change.operation is ConfigOperation.DELETE}
    return _records(metadata, topic, current, _without_deleted(altered, deleted))


def legacy_changes(
    metadata: ClusterMetadata, topic: str, configs: Mapping[str, str | None]
) -> list[ConfigRecord]:
    """The records that give a topic these configs and no others; refuses as the other one."""
    return _records(metadata, topic, _current_configs(metadata, topic), configs)


def _current_configs(metadata: ClusterMetadata, topic: str) -> Mapping[str, str]:
    if not topic:
        raise ApiError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
    check_name(topic)
    found = metadata.topics.get(topic)
    return found.configs if found is not None else {}


def _operate(change: ConfigChange, current: str | None) -> str | None:
    if change.operation is ConfigOperation.SET:
        return change.value
    if change.operation is ConfigOperation.DELETE:
        return None
    key = TOPIC_CONFIG_KEYS.get(change.name)
    if key is None or key.type is not ConfigType.LIST:
        raise ApiError(
            ErrorCode.invalid_config,
            f"Can't {change.operation.name} to key {change.name} because its type is not LIST.",
        )
    parts = [part for part in (key.default if current is None else current).split(",") if part]
    named = (change.value or "").split(",")
    if change.operation is ConfigOperation.APPEND:
        parts += [part for part in dict.fromkeys(named) if part not in parts]
    else:
        parts = [part for part in parts if part not in named]
    return ",".join(parts)


def _without_deleted(altered: Mapping[str, str | None], deleted: set[str]) -> dict[str, str | None]:
    return {
        name: value for name, value in altered.items() if not (value is None and name in deleted)
    }


def _records(
    metadata: ClusterMetadata,
    topic: str,
    current: Mapping[str, str],
    wanted: Mapping[str, str | None],
) -> list[ConfigRecord]:
    checked = check_topic_configs(wanted)
    if topic not in metadata.topics:
        raise ApiError(
            ErrorCode.unknown_topic_or_partition, f"There is no topic {topic!r} to alter."
        )
    return [
        *(
            ConfigRecord(topic=topic, name=name, value=value)
            for name, value in checked.items()
            if current.get(name) != value
        ),
        *(
            ConfigRecord(topic=topic, name=name, value=None)
            for name in current
            if name not in checked
        ),
    ]
