"""Creates the records that change topic configs.

| operation | effect                                                            |
| --------- | ----------------------------------------------------------------- |
| SET       | sets the value                                                    |
| DELETE    | removes the topic's value, so that the default applies            |
| APPEND    | adds the elements that the list does not contain (LIST configs)   |
| SUBTRACT  | removes the elements from the list (LIST configs)                 |

Purpose: create the records that change configs. IncrementalAlterConfigs (KIP-339) changes
individual configs. The older AlterConfigs replaces all configs and removes those that the request
does not contain. Invariants: the resulting configs of a topic are validated together, and either
all changes to a topic are applied, or none are. Source: `ConfigurationControlManager`.
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
    """The operations of IncrementalAlterConfigs (see the table in the module docstring)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """An operation on one config of a topic."""

    name: str
    operation: ConfigOperation
    value: str | None


def incremental_changes(
    metadata: ClusterMetadata, topic: str, changes: Sequence[ConfigChange]
) -> list[ConfigRecord]:
    """Return the records of incremental changes (`incrementalAlterConfigs`).

    Raises: ApiError (INVALID_CONFIG, INVALID_REQUEST or UNKNOWN_TOPIC_OR_PARTITION).
    """
    current = _current_configs(metadata, topic)
    altered: dict[str, str | None] = dict(current)
    for change in changes:
        altered[change.name] = _operate(change, current.get(change.name))
    deleted = {change.name for change in changes if change.operation is ConfigOperation.DELETE}
    return _records(metadata, topic, current, _without_deleted(altered, deleted))


def legacy_changes(
    metadata: ClusterMetadata, topic: str, configs: Mapping[str, str | None]
) -> list[ConfigRecord]:
    """Return the records that replace all configs of a topic (`legacyAlterConfigs`).

    Raises: ApiError with the same error codes as `incremental_changes`.
    """
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
    requested: Mapping[str, str | None],
) -> list[ConfigRecord]:
    checked = check_topic_configs(requested)
    if topic not in metadata.topics:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"There is no topic {topic!r}.")
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
