"""Shared by AlterConfigs and IncrementalAlterConfigs: each resource is altered separately.

Behaviour: INVALID_REQUEST for a repeated resource, a repeated config, a missing value and a
resource type that Kafka does not know, as in `kafka.server.ConfigAdminManager`. Configs of topics
can be altered; those of brokers, loggers, client metrics and groups cannot (INVALID_REQUEST).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from broker_ref.controller_api.contract import NO_THROTTLE_MS
from broker_ref.protocol.errors import ApiError

TOPIC: Final = 2
FIXED_RESOURCES: Final = {4: "brokers", 8: "loggers", 16: "client metrics", 32: "groups"}
"""Resource types whose configs cannot be altered here."""


class Resource(Protocol):
    """The fields of a resource that both requests have."""

    @property
    def resource_type(self) -> int:
        """Kafka's number of the resource type."""

    @property
    def resource_name(self) -> str:
        """The topic name or the broker id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAnswer:
    """The result of a resource."""

    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    """The response to both requests."""

    responses: tuple[ResourceAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


Named = TypeVar("Named", bound=Resource)


def alter_each(
    resources: Sequence[Named], alter_topic: Callable[[Named], None]
) -> AlterConfigsResponse:
    """Alter each resource; an ApiError of `alter_topic` is its result."""
    named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    answers = []
    for resource in {(r.resource_type, r.resource_name): r for r in resources}.values():
        error_code, message = ErrorCode.none, None
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.invalid_request, "Duplicate resource.")
            _check_type(resource.resource_type)
            alter_topic(resource)
        except ApiError as error:
            error_code, message = error.error_code, error.message
        answers.append(
            ResourceAnswer(
                error_code=error_code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return AlterConfigsResponse(responses=tuple(answers))


def check_configs(named: Sequence[str], *, without_value: Sequence[str]) -> None:
    """Check the configs of a resource. Raises: ApiError (INVALID_REQUEST)."""
    repeated = [name for name, count in Counter(named).items() if count > 1]
    if repeated:
        raise ApiError(
            ErrorCode.invalid_request,
            f"Error due to duplicate config keys : {','.join(repeated)}",
        )
    if without_value:
        raise ApiError(
            ErrorCode.invalid_request,
            f"Null value not supported for : {','.join(without_value)}",
        )


def _check_type(resource_type: int) -> None:
    if resource_type in FIXED_RESOURCES:
        raise ApiError(
            ErrorCode.invalid_request,
            f"Configs of {FIXED_RESOURCES[resource_type]} cannot be altered here. Change the "
            "config of the node and restart it.",
        )
    if resource_type != TOPIC:
        raise ApiError(ErrorCode.invalid_request, f"Unknown resource type {resource_type}.")
