"""IncrementalAlterConfigs (44), versions 0 and 1: change configs of resources (KIP-339).

The operations are SET, DELETE, APPEND and SUBTRACT. The last two require a config of type LIST.
Configs that are not in the request do not change. Either all changes to a resource are applied, or
none are. With `validate_only`, no changes are applied. The errors are:

- INVALID_CONFIG: a config is invalid, or APPEND or SUBTRACT is used on a config that is not of type
  LIST.
- UNKNOWN_TOPIC_OR_PARTITION: the topic does not exist.
- INVALID_REQUEST: a config is repeated, an operation is unknown, a value is missing, or the
  resource type is unknown (see `config_resources`).

Source: `kafka.server.ControllerApis.handleIncrementalAlterConfigs`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.configs import ConfigChange, ConfigOperation, ConfigResource
from broker_ref.controller.records import ConfigRecord
from broker_ref.controller_api.config_resources import (
    AlterConfigsResponse,
    alter_each,
    check_configs,
)
from broker_ref.controller_api.contract import Api, Call, ControllerContext
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    """A config with the operation and its value."""

    name: str
    config_operation: int
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredResource:
    """A resource with its config changes."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    """An IncrementalAlterConfigs request."""

    resources: tuple[AlteredResource, ...]
    validate_only: bool


def handle(
    context: ControllerContext, call: Call, request: IncrementalAlterConfigsRequest
) -> AlterConfigsResponse:
    """Apply the config changes of each resource."""

    def changes(target: ConfigResource, resource: AlteredResource) -> list[ConfigRecord]:
        return context.controller.incremental_config_records(target, config_changes(resource))

    return alter_each(
        context, call.auth, request.resources, changes, validate_only=request.validate_only
    )


def config_changes(resource: AlteredResource) -> list[ConfigChange]:
    """Return the config changes for a resource. Raises: ApiError (INVALID_REQUEST)."""
    check_configs(
        [config.name for config in resource.configs],
        without_value=[
            config.name
            for config in resource.configs
            if config.value is None and config.config_operation != ConfigOperation.DELETE
        ],
    )
    return [
        ConfigChange(
            name=config.name, operation=_operation(config.config_operation), value=config.value
        )
        for config in resource.configs
    ]


def _operation(number: int) -> ConfigOperation:
    try:
        return ConfigOperation(number)
    except ValueError:
        raise ApiError(ErrorCode.invalid_request, f"Unknown config operation {number}.") from None


API: Final = Api(key=44, versions=range(2), request=IncrementalAlterConfigsRequest, handle=handle)
