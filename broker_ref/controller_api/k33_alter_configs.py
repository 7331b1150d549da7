"""AlterConfigs (33), versions 0 to 2: give topics these configs and no others.

Behaviour: each topic is altered as asked or not at all: INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION,
INVALID_REQUEST for a config named twice or without a value. Configs that are not named lose their
value. `validate_only` alters nothing. Resources that are no topics are refused, as
`config_resources` says.
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
    """A resource and all configs that it is to have."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsRequest:
    """Resources to alter, or only to check."""

    resources: tuple[AlteredResource, ...]
    validate_only: bool


def handle(
    context: ControllerContext, call: Call, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Alter one topic after the other."""
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
