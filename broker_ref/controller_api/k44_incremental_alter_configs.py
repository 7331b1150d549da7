"""IncrementalAlterConfigs (44), versions 0 and 1: change some configs of topics (KIP-339).

Behaviour: SET, DELETE, and for lists APPEND and SUBTRACT; configs that are not named stay. Each
topic is altered as asked or not at all: INVALID_CONFIG (also for a list operation on what is no
list), UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST for a config named twice, an unknown operation,
or a value that is missing. `validate_only` alters nothing. Resources that are no topics are
refused, as `config_resources` says.
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
    """A config, and what is to become of it."""

    name: str
    config_operation: int
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredResource:
    """A resource and the configs of it that are to change."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalAlterConfigsRequest:
    """Resources to alter, or only to check."""

    resources: tuple[AlteredResource, ...]
    validate_only: bool


def handle(
    context: ControllerContext, call: Call, request: IncrementalAlterConfigsRequest
) -> AlterConfigsResponse:
    """Alter one topic after the other."""
    del call

    def alter(resource: AlteredResource) -> None:
        context.controller.alter_configs(
            resource.resource_name, _changes(resource), validate_only=request.validate_only
        )

    return alter_each(request.resources, alter)


def _changes(resource: AlteredResource) -> list[ConfigChange]:
    """What is asked for; INVALID_REQUEST where it makes no sense."""
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
        raise ApiError(
            ErrorCode.invalid_request, f"Unknown operation {number} on a config."
        ) from None


API: Final = Api(key=44, versions=range(2), request=IncrementalAlterConfigsRequest, handle=handle)
