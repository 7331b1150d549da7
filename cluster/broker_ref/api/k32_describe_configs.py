"""DescribeConfigs (32), versions 1 to 4: the configs of all types of resources.

The broker returns all configs of a resource, or only the requested configs. Unknown config names
are omitted. With `include_synonyms`, the response also contains values with lower precedence
(KIP-226). From version 3 on, it contains the type of each config and, if requested, its
documentation (KIP-569). The error for a topic that does not exist is UNKNOWN_TOPIC_OR_PARTITION.
The id of another broker and an empty group or subscription name are rejected with INVALID_REQUEST.
If a resource type is unknown, the whole request fails. A repeated resource is described once, with
all requested configs. An empty broker name requests the dynamic configs of all brokers. Groups and
client metrics subscriptions need not exist. The values of sensitive configs (keys and passwords)
are null. Source: `kafka.server.ConfigHelper.handleDescribeConfigsRequest`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.broker_descriptions import describe_broker_configs, describe_cluster_configs
from broker_ref.api.broker_loggers import describe_loggers
from broker_ref.api.client_metrics_descriptions import describe_client_metrics_configs
from broker_ref.api.config_operations import check_config_operation
from broker_ref.api.contract import NO_THROTTLE_MS, Api, Broker, Call
from broker_ref.api.group_descriptions import describe_group_configs
from broker_ref.api.topic_descriptions import DescribedConfig, printed_topic_configs
from broker_ref.controller.records import ConfigResourceType
from broker_ref.controller.topic_names import check_name
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedResource:
    """A resource to describe.

    All configs are requested if `configuration_keys` is None or empty.
    """

    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsRequest:
    """A DescribeConfigs request."""

    resources: tuple[RequestedResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SynonymResponse:
    """A value of a config at one level of precedence, with its source."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResponse:
    """A config with its value, source and type."""

    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool
    synonyms: tuple[SynonymResponse, ...]
    config_type: int
    documentation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceResponse:
    """The configs of a resource, or an error."""

    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = ""
    configs: tuple[ConfigResponse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConfigsResponse:
    """A DescribeConfigs response."""

    results: tuple[ResourceResponse, ...]
    throttle_time_ms: int = NO_THROTTLE_MS


_KNOWN_TYPES: Final = frozenset(ConfigResourceType)

_Known = dict[Hashable, tuple[ConfigResponse, ...]]
"""A cache of the configs described in a request. Most topics of a request have the same configs.

The keys are the configs that are set on a topic, or the type and the name of another resource.
"""


def handle(broker: Broker, call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe the configs of each resource."""
    resources = _merged(request.resources)
    unknown = [each for each in resources if each.resource_type not in _KNOWN_TYPES]
    if unknown:
        message = f"Unexpected resource type {unknown[0].resource_type}."
        error = ApiError(ErrorCode.invalid_request, message)
        return DescribeConfigsResponse(results=tuple(_failed(each, error) for each in resources))
    known: _Known = {}
    return DescribeConfigsResponse(
        results=tuple(_resource(broker, call, request, each, known) for each in resources)
    )


def _merged(resources: Sequence[RequestedResource]) -> list[RequestedResource]:
    """Return each resource once, with all its requested configs."""
    same: dict[tuple[int, str], list[tuple[str, ...]]] = {}
    for each in resources:
        requested = same.setdefault((each.resource_type, each.resource_name), [])
        requested.append(each.configuration_keys or ())
    return [
        RequestedResource(
            resource_type=resource_type,
            resource_name=name,
            configuration_keys=tuple(chain.from_iterable(requested)) if all(requested) else None,
        )
        for (resource_type, name), requested in same.items()
    ]


def _resource(
    broker: Broker,
    call: Call,
    request: DescribeConfigsRequest,
    resource: RequestedResource,
    known: _Known,
) -> ResourceResponse:
    try:
        check_config_operation(
            call.auth,
            AclOperation.DESCRIBE_CONFIGS,
            resource.resource_type,
            resource.resource_name,
        )
        configs = _configs(broker, request, resource, known)
    except ApiError as error:
        return _failed(resource, error)
    return ResourceResponse(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _failed(resource: RequestedResource, error: ApiError) -> ResourceResponse:
    return ResourceResponse(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=error.error_code,
        error_message=error.message,
    )


def _configs(
    broker: Broker,
    request: DescribeConfigsRequest,
    resource: RequestedResource,
    known: _Known,
) -> tuple[ConfigResponse, ...]:
    name = resource.resource_name
    key: Hashable = (resource.resource_type, name)
    own: Mapping[str, str] = {}
    if resource.resource_type == ConfigResourceType.TOPIC:
        check_name(name)
        topic = broker.metadata.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name!r}.")
        own = topic.configs
        key = frozenset(own.items())
    if key not in known:
        described = _describe(broker, resource, own)
        known[key] = tuple(_config(request, config) for config in described)
    names = frozenset(resource.configuration_keys or ())
    return tuple(config for config in known[key] if config.name in names) if names else known[key]


def _describe(
    broker: Broker, resource: RequestedResource, own: Mapping[str, str]
) -> Sequence[DescribedConfig]:
    """Return the configs of a resource.

    For a topic, `own` contains the configs that are set on the topic.
    """
    name = resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            return printed_topic_configs(broker.configs, own)
        case ConfigResourceType.BROKER:
            if not name:
                return describe_cluster_configs(broker.configs)
            _check_is_this_broker(broker, name)
            return describe_broker_configs(broker.configs, _identity(broker))
        case ConfigResourceType.BROKER_LOGGER:
            _check_is_this_broker(broker, name)
            return describe_loggers()
        case ConfigResourceType.CLIENT_METRICS:
            _check_is_not_empty(name, "subscription")
            own = broker.metadata.configs(ConfigResourceType.CLIENT_METRICS, name)
            return describe_client_metrics_configs(own)
        case ConfigResourceType.GROUP:
            _check_is_not_empty(name, "group")
            own = broker.metadata.configs(ConfigResourceType.GROUP, name)
            return describe_group_configs(broker.configs.levels, own)
    raise AssertionError(f"the resource type {resource.resource_type} is not in _KNOWN_TYPES")


def _check_is_this_broker(broker: Broker, name: str) -> None:
    own_id = broker.config.node_id
    if name != str(own_id):
        what = "not the id of this broker" if name.lstrip("-").isdigit() else "not an integer"
        raise ApiError(
            ErrorCode.invalid_request,
            f"Cannot describe the configs of broker {name!r}, because the resource name is {what}. "
            f"This broker has the id {own_id} and describes only its own configs.",
        )


def _check_is_not_empty(name: str, what: str) -> None:
    if not name:
        raise ApiError(ErrorCode.invalid_request, f"The name of the {what} must not be empty.")


def _identity(broker: Broker) -> dict[str, str]:
    """Return the configs that describe the broker itself, such as its id and its addresses."""
    node_id = str(broker.config.node_id)
    own = broker.metadata.brokers.get(broker.config.node_id)
    addresses = ",".join(
        f"{endpoint.listener}://{endpoint.host}:{endpoint.port}"
        for endpoint in (own.listeners if own is not None else ())
    )
    return {
        "advertised.listeners": addresses,
        "broker.id": node_id,
        "listeners": broker.config.security.text("listeners") or addresses,
        "log.dirs": broker.log_dir.path,
        "node.id": node_id,
        "process.roles": "broker",
    }


def _config(request: DescribeConfigsRequest, config: DescribedConfig) -> ConfigResponse:
    synonyms = config.synonyms if request.include_synonyms else ()
    return ConfigResponse(
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.is_sensitive,
        synonyms=tuple(
            SynonymResponse(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ),
        config_type=config.type,
        documentation=config.doc if request.include_documentation else None,
    )


API: Final = Api(key=32, versions=range(1, 5), request=DescribeConfigsRequest, handle=handle)
