"""Creates the records that change the configs of topics, brokers, groups and client metrics.

| operation | effect                                                            |
| --------- | ----------------------------------------------------------------- |
| SET       | sets the value                                                    |
| DELETE    | removes the value of the resource, so that the default applies    |
| APPEND    | adds the elements that the list does not contain (LIST configs)   |
| SUBTRACT  | removes the first occurrence of each element (LIST configs)       |

IncrementalAlterConfigs (KIP-339) changes individual configs. The deprecated AlterConfigs replaces
all configs of a resource, and removes the configs that the request does not contain. Invariants:
the resulting configs of a resource are validated together, and either all changes to a resource are
applied, or none are. A broker validates changes to its own configs before it forwards the request.
The controller validates only the values. It must validate them because clients can also send
requests directly to the controller. Sources: `ConfigurationControlManager`,
`ControllerConfigurationValidator`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.broker_configs import CONFIG_KEYS
from broker_ref.client_metrics_configs import check_client_metrics_configs
from broker_ref.config import BrokerConfig
from broker_ref.config_keys import INT32_MAX, InvalidBrokerConfigError
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.controller.min_insync_replicas import check_change
from broker_ref.controller.records import ConfigRecord, ConfigResourceType
from broker_ref.controller.topic_names import check_name
from broker_ref.dynamic_configs import check_values
from broker_ref.frozen import dataclass
from broker_ref.group_configs import check_group_configs
from broker_ref.protocol.errors import ApiError
from broker_ref.topic_configs import TOPIC_CONFIG_KEYS, ConfigType, check_topic_configs

VALUE_BYTES_MAX: Final = 2**15 - 1
"""The maximum size of a config value that every version of DescribeConfigs can return."""


class ConfigOperation(IntEnum):
    """The operations of IncrementalAlterConfigs (see the table in the module docstring)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """An operation on one config of a resource."""

    name: str
    operation: ConfigOperation
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResource:
    """A resource with configs. For the cluster-wide broker defaults, the name is empty."""

    type: ConfigResourceType
    name: str


def incremental_changes(
    metadata: ClusterMetadata,
    resource: ConfigResource,
    changes: Sequence[ConfigChange],
    config: BrokerConfig,
) -> list[ConfigRecord]:
    """Return the records for incremental changes (`incrementalAlterConfigs`).

    Raises: ApiError (INVALID_CONFIG, INVALID_REQUEST, or the error code for a missing resource).
    """
    _check_resource_name(resource)
    current = metadata.configs(resource.type, resource.name)
    altered: dict[str, str | None] = dict(current)
    for change in changes:
        altered[change.name] = _operate(resource.type, change, current.get(change.name))
    changed = {change.name: altered[change.name] for change in changes}
    check_change(metadata, resource.type, resource.name, changed)
    deleted = {change.name for change in changes if change.operation is ConfigOperation.DELETE}
    return _records(metadata, resource, _without_deleted(altered, deleted), config, named=changed)


def legacy_changes(
    metadata: ClusterMetadata,
    resource: ConfigResource,
    configs: Mapping[str, str | None],
    config: BrokerConfig,
) -> list[ConfigRecord]:
    """Return the records that replace all configs of a resource (`legacyAlterConfigs`).

    Raises: ApiError with the same error codes as `incremental_changes`.
    """
    _check_resource_name(resource)
    removed = dict.fromkeys(metadata.configs(resource.type, resource.name))
    check_change(metadata, resource.type, resource.name, {**removed, **configs})
    return _records(metadata, resource, configs, config, named=configs)


def changed_list(
    operation: ConfigOperation, current: str | None, default: str, elements: str | None
) -> str:
    """Return the value of a LIST config after APPEND or SUBTRACT."""
    parts = [part for part in (default if current is None else current).split(",") if part]
    named = _split(elements or "")
    if operation is ConfigOperation.APPEND:
        existing = frozenset(parts)
        parts += [part for part in dict.fromkeys(named) if part not in existing]
    else:
        parts = list(_subtract(parts, named))
    return ",".join(parts)


def _subtract(parts: Iterable[str], named: Iterable[str]) -> Iterator[str]:
    """Yield the parts. Each named element removes its first occurrence (`List.remove`)."""
    removed = Counter(named)
    for part in parts:
        if removed[part]:
            removed[part] -= 1
        else:
            yield part


def _split(elements: str) -> list[str]:
    """Return the elements, without empty elements at the end (Java's `String.split`)."""
    kept = elements.rstrip(",")
    return kept.split(",") if kept or not elements else []


def _operate(
    resource_type: ConfigResourceType, change: ConfigChange, current: str | None
) -> str | None:
    if change.operation is ConfigOperation.SET:
        return change.value
    if change.operation is ConfigOperation.DELETE:
        return None
    default = _list_default(resource_type, change.name)
    if default is None:
        raise ApiError(
            ErrorCode.invalid_config,
            f"Can't {change.operation.name} to key {change.name} because its type is not LIST.",
        )
    return changed_list(change.operation, current, default, change.value)


def _list_default(resource_type: ConfigResourceType, name: str) -> str | None:
    """Return the default of a config of type LIST, or None for other configs."""
    if resource_type is ConfigResourceType.TOPIC:
        topic_key = TOPIC_CONFIG_KEYS.get(name)
        is_list = topic_key is not None and topic_key.type is ConfigType.LIST
        return topic_key.default if is_list and topic_key is not None else None
    if resource_type is ConfigResourceType.BROKER:
        key = CONFIG_KEYS.get(name)
        return str(key.default) if key is not None and key.type is ConfigType.LIST else None
    return None


def _without_deleted(altered: Mapping[str, str | None], deleted: set[str]) -> dict[str, str | None]:
    return {
        name: value for name, value in altered.items() if not (value is None and name in deleted)
    }


def _records(
    metadata: ClusterMetadata,
    resource: ConfigResource,
    requested: Mapping[str, str | None],
    config: BrokerConfig,
    *,
    named: Collection[str],
) -> list[ConfigRecord]:
    """Return the records that change the configs of a resource.

    `requested` contains all configs of the resource after the change. `named` contains the config
    names in the request.
    """
    for name, value in requested.items():
        if value is not None and len(value.encode()) > VALUE_BYTES_MAX:
            raise ApiError(
                ErrorCode.invalid_config,
                f"The value of {name} cannot be stored, because it exceeds the maximum size of "
                f"{VALUE_BYTES_MAX} bytes.",
            )
    checked = _VALIDATORS[resource.type](resource.name, requested, config)
    _check_existence(metadata, resource)
    current = metadata.configs(resource.type, resource.name)
    is_of_broker = resource.type is ConfigResourceType.BROKER
    changed: dict[str, str | None] = {
        name: value
        for name, value in checked.items()
        # Setting a broker config to its current value has an effect, for example on the ELR.
        if current.get(name) != value or (is_of_broker and name in named)
    }
    changed |= {name: None for name in current if name not in checked}
    return [
        ConfigRecord(
            resource_type=resource.type, resource_name=resource.name, name=name, value=value
        )
        for name, value in changed.items()
    ]


def _check_resource_name(resource: ConfigResource) -> None:
    name = resource.name
    match resource.type:
        case ConfigResourceType.TOPIC:
            if not name:
                raise ApiError(
                    ErrorCode.invalid_request, "Default topic resources are not allowed."
                )
            check_name(name)
        case ConfigResourceType.BROKER:
            if name and not _is_int32(name):
                raise ApiError(
                    ErrorCode.invalid_request, "Unable to parse broker name as a base 10 number."
                )
            if name.startswith("-"):
                raise ApiError(ErrorCode.invalid_request, "Invalid negative broker ID.")
        case ConfigResourceType.GROUP if not name:
            raise ApiError(ErrorCode.invalid_request, "Default group resources are not allowed.")
        case ConfigResourceType.CLIENT_METRICS if not name:
            raise ApiError(
                ErrorCode.invalid_request, "The name of a subscription must not be empty."
            )


def _is_int32(text: str) -> bool:
    digits = text.removeprefix("-")
    is_short = len(digits) <= len(str(INT32_MAX)) and digits.isascii()
    return is_short and digits.isdecimal() and int(digits) <= INT32_MAX


def _check_existence(metadata: ClusterMetadata, resource: ConfigResource) -> None:
    name = resource.name
    if resource.type is ConfigResourceType.TOPIC and name not in metadata.topics:
        raise ApiError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
    if resource.type is ConfigResourceType.BROKER and name and int(name) not in metadata.brokers:
        raise ApiError(ErrorCode.broker_id_not_registered, f"No broker with id {name} found.")


def _checked_topic(
    name: str, configs: Mapping[str, str | None], config: BrokerConfig
) -> dict[str, str]:
    del name
    return check_topic_configs(configs, defaults=config.topic_config_defaults())


def _checked_broker(
    name: str, configs: Mapping[str, str | None], config: BrokerConfig
) -> dict[str, str]:
    del name, config
    checked = {key: value for key, value in configs.items() if value is not None}
    try:
        check_values(checked)
    except InvalidBrokerConfigError as error:
        raise ApiError(ErrorCode.invalid_config, str(error)) from error
    return checked


def _checked_group(
    name: str, configs: Mapping[str, str | None], config: BrokerConfig
) -> dict[str, str]:
    del name
    return check_group_configs(configs, config)


def _checked_client_metrics(
    name: str, configs: Mapping[str, str | None], config: BrokerConfig
) -> dict[str, str]:
    del name, config
    return check_client_metrics_configs(configs)


_VALIDATORS: Final[
    Mapping[
        ConfigResourceType,
        Callable[[str, Mapping[str, str | None], BrokerConfig], dict[str, str]],
    ]
] = MappingProxyType(
    {
        ConfigResourceType.TOPIC: _checked_topic,
        ConfigResourceType.BROKER: _checked_broker,
        ConfigResourceType.CLIENT_METRICS: _checked_client_metrics,
        ConfigResourceType.GROUP: _checked_group,
    }
)
"""The functions that validate and return the configs of a resource, by resource type."""

ALTERABLE_RESOURCES: Final = frozenset(_VALIDATORS)
"""The types of resources whose configs are stored in the cluster metadata."""
