"""IncrementalAlterConfigs (44), versions 0 and 1: change individual configs of topics (KIP-339).

Behaviour: SET, DELETE, and APPEND and SUBTRACT for lists; other configs do not change. Each topic
is altered completely or not at all. INVALID_CONFIG: an invalid config, or a list operation on a
config that is not a list; UNKNOWN_TOPIC_OR_PARTITION: no such topic; INVALID_REQUEST: a repeated
config, an unknown operation, or a missing value. `validate_only` alters nothing. Other resources
are rejected, see `config_resources`. Source:
`kafka.server.ControllerApis.handleIncrementalAlterConfigs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.configs import ConfigChange, ConfigOperation
from broker_ref.controller_api.config_resources import (
    AlterConfigsResponse,
    alter_each,
    check_configs,
)
from broker_ref.controller_api.contract import Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    """A config, an operation and its value."""

    name: str
    config_operation: int
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredResource:
    """A resource and its config changes."""

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
    """Alter each topic."""
    del call

    def alter(resource: AlteredResource) -> None:
        context.controller.alter_configs(
            resource.resource_name, _changes(resource), validate_only=request.validate_only
        )

    return alter_each(request.resources, alter)


def _changes(resource: AlteredResource) -> list[ConfigChange]:
    """Return the config changes of a resource. Raises: ApiError (INVALID_REQUEST)."""
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
