"""AlterConfigs (33), versions 0 to 2: replace all configs of resources.

Configs that are not in the request are reset to their defaults. Either all changes to a resource
are applied, or none are. With `validate_only`, no changes are applied. The errors are:

- INVALID_CONFIG: a config is invalid.
- UNKNOWN_TOPIC_OR_PARTITION: the topic does not exist.
- INVALID_REQUEST: a config is repeated, a value is missing, or the resource type is unknown (see
  `config_resources`).

Source: `kafka.server.ControllerApis.handleLegacyAlterConfigs`.
"""

from __future__ import annotations

from typing import Final

from broker_ref.controller.configs import ConfigResource
from broker_ref.controller.records import ConfigRecord
from broker_ref.controller_api.config_resources import (
    AlterConfigsResponse,
    alter_each,
    check_configs,
)
from broker_ref.controller_api.contract import Api, Call, ControllerContext
from broker_ref.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterableConfig:
    """The name and new value of a config."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredResource:
    """A resource with its new configs."""

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
    """Replace the configs of each resource."""

    def changes(target: ConfigResource, resource: AlteredResource) -> list[ConfigRecord]:
        check_configs(
            [config.name for config in resource.configs],
            without_value=[config.name for config in resource.configs if config.value is None],
        )
        return context.controller.replacing_config_records(
            target, {config.name: config.value for config in resource.configs}
        )

    return alter_each(
        context, call.auth, request.resources, changes, validate_only=request.validate_only
    )


API: Final = Api(key=33, versions=range(3), request=AlterConfigsRequest, handle=handle)
