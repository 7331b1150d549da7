"""What AlterConfigs and IncrementalAlterConfigs have in common: resources, each altered by itself.

Behaviour: INVALID_REQUEST for a resource named twice, a config named twice in one, a value that is
missing, and a type that Kafka does not know either, as ConfigAdminManager checks them. Configs of
topics are altered; those of a broker, a logger, of client metrics and of groups cannot be changed
while nodes run, and say so with INVALID_REQUEST.
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
"""Types of resources of which no config can be altered here."""


class Resource(Protocol):
    """What both requests say of a resource."""

    @property
    def resource_type(self) -> int:
        """As Kafka numbers them."""

    @property
    def resource_name(self) -> str:
        """The topic's name, or the broker's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAnswer:
    """Whether a resource was altered."""

    error_code: ErrorCode
    error_message: str | None
    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigsResponse:
    """The answers for every resource."""

    responses: tuple[ResourceAnswer, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


Named = TypeVar("Named", bound=Resource)


def alter_each(
    resources: Sequence[Named], alter_topic: Callable[[Named], None]
) -> AlterConfigsResponse:
    """Alter one resource after the other; ApiError of `alter_topic` is its answer."""
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
    """Refuse configs of one resource that make no sense, whatever they are: INVALID_REQUEST."""
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
            f"Configs of {FIXED_RESOURCES[resource_type]} cannot be altered here: nodes of this "
            "cluster take theirs when they start. Change them there and restart the node.",
        )
    if resource_type != TOPIC:
        raise ApiError(ErrorCode.invalid_request, f"Unknown resource type {resource_type}.")
