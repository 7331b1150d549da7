"""Topic configs, and requests of both APIs that change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from integration.raw import RawConnection
from tests.conformance.wire import only

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, UNKNOWN_RESOURCE = 2, 4, 8, 16, 32, 99
SET, DELETE, APPEND, SUBTRACT, UNKNOWN_OPERATION = 0, 1, 2, 3, 9
DYNAMIC_TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5

Operation = tuple[str, int, str | None]
"""Config name, operation and value."""


def replace_settings(
    raw: RawConnection,
    name: str,
    settings: Mapping[str, str | None],
    *,
    resource_type: int = TOPIC,
    validate_only: bool = False,
    version: int = 2,
) -> Any:
    """Send AlterConfigs for one resource, which replaces all its configs."""
    resource = {
        "resource_type": resource_type,
        "resource_name": name,
        "configs": [{"name": n, "value": v} for n, v in settings.items()],
    }
    return only(
        raw.call(
            "alter_configs", version, resources=[resource], validate_only=validate_only
        ).responses
    )


def change(
    raw: RawConnection,
    name: str,
    *operations: Operation,
    resource_type: int = TOPIC,
    validate_only: bool = False,
    version: int = 1,
) -> Any:
    resource = changes(name, *operations, resource_type=resource_type)
    return only(
        raw.call(
            "incremental_alter_configs",
            version,
            resources=[resource],
            validate_only=validate_only,
        ).responses
    )


def changes(name: str, *operations: Operation, resource_type: int = TOPIC) -> dict[str, Any]:
    """Return one resource of an IncrementalAlterConfigs request."""
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "configs": [
            {"name": config, "config_operation": operation, "value": value}
            for config, operation, value in operations
        ],
    }


def settings(raw: RawConnection, name: str, keys: Sequence[str] | None = None) -> dict[str, str]:
    """Return the configs `keys` of a topic, or all of them, including defaults."""
    return {config.name: config.value for config in _configs(raw, name, keys)}


def own_settings(raw: RawConnection, name: str) -> dict[str, str]:
    return {
        config.name: config.value
        for config in _configs(raw, name, None)
        if config.config_source == DYNAMIC_TOPIC_CONFIG
    }


def _configs(raw: RawConnection, name: str, keys: Sequence[str] | None) -> Any:
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys}
    return only(raw.call("describe_configs", 4, resources=[resource]).results).configs
