"""AlterConfigs (33), versions 0 to 2: replace all configs of topics.

Behaviour: each topic is altered completely or not at all. INVALID_CONFIG: an invalid config;
UNKNOWN_TOPIC_OR_PARTITION: no such topic; INVALID_REQUEST: a repeated config or a missing value.
Configs that are not named are reset. `validate_only` alters nothing. Other resources are rejected,
see `config_resources`. Source: `kafka.server.ControllerApis.handleLegacyAlterConfigs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker_ref.controller_api.config_resources import (
    AlterConfigsResponse,
    alter_each,
    check_configs,
)
from broker_ref.controller_api.contract import Api, Call, ControllerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    """A config and its value."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredResource:
    """A resource and its new configs."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    """An AlterConfigs request."""

    resources: tuple[AlteredResource, ...]
    validate_only: bool


def handle(
    context: ControllerContext, call: Call, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Alter each topic."""
    del call

    def alter(resource: AlteredResource) -> None:
        check_configs(
            [config.name for config in resource.configs],
            without_value=[config.name for config in resource.configs if config.value is None],
        )
        context.controller.replace_configs(
            resource.resource_name,
            {config.name: config.value for config in resource.configs},
            validate_only=request.validate_only,
        )

    return alter_each(request.resources, alter)


API: Final = Api(key=33, versions=range(3), request=AlterConfigsRequest, handle=handle)
