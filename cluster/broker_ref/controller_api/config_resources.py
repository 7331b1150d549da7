"""Code shared by AlterConfigs and IncrementalAlterConfigs.

The valid changes are written in one commit. As in `kafka.server.ConfigAdminManager`, a repeated
resource, a repeated config, a missing value and an unknown resource type are rejected with
INVALID_REQUEST. Log levels are not part of the metadata. A broker changes its own log levels (see
`broker_ref.node.alter_configs_preprocessing`). AlterConfigs rejects changes to log levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kio.schema.errors import ErrorCode

from broker_ref.api.config_operations import check_config_operation
from broker_ref.controller.configs import ALTERABLE_RESOURCES, ConfigResource
from broker_ref.controller.records import ConfigRecord, ConfigResourceType
from broker_ref.controller_api.contract import NO_THROTTLE_MS, ControllerContext
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation
from broker_ref.security.authorizer import AuthHelper


class Resource(Protocol):
    """The fields that the resources of AlterConfigs and IncrementalAlterConfigs share."""

    @property
    def resource_type(self) -> int:
        """The number of the resource type in Kafka's protocol."""

    @property
    def resource_name(self) -> str:
        """The name of a topic, group or client metrics subscription, or the id of a broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceResponse:
    """The error code for a resource."""

    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    """The response to AlterConfigs and IncrementalAlterConfigs."""

    responses: tuple[ResourceResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


Named = TypeVar("Named", bound=Resource)


def alter_each(
    context: ControllerContext,
    auth: AuthHelper,
    resources: Sequence[Named],
    changes: Callable[[ConfigResource, Named], Sequence[ConfigRecord]],
    *,
    validate_only: bool,
) -> AlterConfigsResponse:
    """Alter each resource and return the results.

    The function `changes` returns the records for a resource, or raises ApiError. An ApiError
    affects only its own resource. An error during the commit affects all resources.
    """
    counts = count_resources(resources)
    distinct = {(r.resource_type, r.resource_name): r for r in resources}.values()
    records: list[ConfigRecord] = []
    outcomes: list[ApiError | None] = []
    for resource in distinct:
        try:
            check_occurs_once(resource, counts)
            check_config_operation(
                auth,
                AclOperation.ALTER_CONFIGS,
                resource.resource_type,
                resource.resource_name,
            )
            records += changes(_config_resource(resource), resource)
            outcomes.append(None)
        except ApiError as error:
            outcomes.append(error)
    try:
        context.controller.alter_configs(records, validate_only=validate_only)
    except ApiError as error:
        outcomes = [error] * len(outcomes)
    return AlterConfigsResponse(
        responses=tuple(
            ResourceResponse(
                error_code=ErrorCode.none if error is None else error.error_code,
                error_message=None if error is None else error.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, error in zip(distinct, outcomes, strict=True)
        )
    )


def count_resources(resources: Sequence[Resource]) -> Counter[tuple[int, str]]:
    """Return how often each resource occurs, by its type and name."""
    return Counter((resource.resource_type, resource.resource_name) for resource in resources)


def check_occurs_once(resource: Resource, counts: Counter[tuple[int, str]]) -> None:
    """Raise ApiError (INVALID_REQUEST) if the request contains the resource more than once."""
    if counts[resource.resource_type, resource.resource_name] > 1:
        raise ApiError(ErrorCode.invalid_request, "Each resource must appear at most once.")


def check_configs(named: Sequence[str], *, without_value: Sequence[str]) -> None:
    """Raise ApiError (INVALID_REQUEST) if a config is repeated or has no value."""
    repeated = [name for name, count in Counter(named).items() if count > 1]
    if repeated:
        raise ApiError(
            ErrorCode.invalid_request,
            f"Error due to duplicate config keys: {','.join(repeated)}",
        )
    if without_value:
        raise ApiError(
            ErrorCode.invalid_request,
            f"Null values are not supported for: {','.join(without_value)}",
        )


def _config_resource(resource: Resource) -> ConfigResource:
    if resource.resource_type not in ALTERABLE_RESOURCES:
        raise ApiError(
            ErrorCode.invalid_request, f"Unknown resource type {resource.resource_type}."
        )
    resource_type = ConfigResourceType(resource.resource_type)
    return ConfigResource(type=resource_type, name=resource.resource_name)
