"""Validates changes to the configs of this broker before the controller stores them.

Rejects config changes that this broker cannot apply, and changes the levels of the broker's
loggers. The controller handles all other changes. The controller does not know the static configs
of the broker, and does not store logger levels. Invariants: a broker validates changes to its own
configs and to the configs that apply to all brokers, and rejects changes to the configs of other
brokers. A resource that occurs more than once is not changed. The client receives one result for
each resource. Source: `kafka.server.ConfigAdminManager`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.broker_loggers import change_levels, check_level_changes
from broker_ref.api.config_operations import check_config_operation
from broker_ref.api.contract import Broker
from broker_ref.broker_configs import CONFIG_KEYS
from broker_ref.controller.configs import ConfigChange, ConfigOperation, changed_list
from broker_ref.controller.records import ConfigResourceType
from broker_ref.controller_api import k33_alter_configs, k44_incremental_alter_configs
from broker_ref.controller_api.config_resources import (
    AlterConfigsResponse,
    ResourceResponse,
    check_occurs_once,
    count_resources,
)
from broker_ref.dynamic_configs import DYNAMIC_ONLY_CONFIGS, check_dynamic_configs, usable_configs
from broker_ref.node.dispatch import Dispatcher, Request
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.frames import read_response, request_frame, response_frame
from broker_ref.security.acls import AclOperation
from broker_ref.security.authorizer import AuthHelper
from broker_ref.topic_configs import ConfigType

_KEYS: Final = frozenset({k33_alter_configs.API.key, k44_incremental_alter_configs.API.key})


def preprocess(request: Request, broker: Broker, dispatcher: Dispatcher) -> Request | None:
    """Return the request that must be forwarded to the controller, or None.

    Rejected changes and changes to loggers are not forwarded. If the request contains no other
    changes, respond to the client and return None.
    """
    if request.api.key not in _KEYS:
        return request
    handled: list[ResourceResponse] = []
    forwarded: list[Any] = []
    counts = count_resources(request.message.resources)
    auth = dispatcher.auth(request.pending.client)
    for resource in request.message.resources:
        error_code, message = ErrorCode.none, None
        try:
            check_occurs_once(resource, counts)
            if _is_logger(resource) and request.api.key == k44_incremental_alter_configs.API.key:
                _change_loggers(broker, resource, auth, validate_only=request.message.validate_only)
            else:
                _check(broker, resource)
                forwarded.append(resource)
                continue
        except ApiError as error:
            error_code, message = error.error_code, error.message
        handled.append(
            ResourceResponse(
                error_code=error_code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    if not handled:
        return request
    if not forwarded:
        response = AlterConfigsResponse(responses=tuple(handled))
        dispatcher.send_response(request.pending, _response(request, response))
        return None
    return _without_handled(request, forwarded, handled)


def _is_logger(resource: Any) -> bool:
    return bool(resource.resource_type == ConfigResourceType.BROKER_LOGGER)


def _change_loggers(
    broker: Broker,
    resource: k44_incremental_alter_configs.AlteredResource,
    auth: AuthHelper,
    *,
    validate_only: bool,
) -> None:
    """Change the levels of loggers. Raises: ApiError."""
    name = resource.resource_name
    changes = k44_incremental_alter_configs.config_changes(resource)
    check_config_operation(auth, AclOperation.ALTER_CONFIGS, resource.resource_type, name)
    _check_is_this_broker(broker, name)
    check_level_changes(changes)
    if not validate_only:
        change_levels(changes)


def _check(broker: Broker, resource: Any) -> None:
    """Raise ApiError if the resource is a broker and its config changes cannot be applied."""
    if resource.resource_type != ConfigResourceType.BROKER:
        return
    name = resource.resource_name
    if name:
        _check_is_this_broker(broker, name)
    if isinstance(resource, k44_incremental_alter_configs.AlteredResource):
        changes = k44_incremental_alter_configs.config_changes(resource)
        current = broker.metadata.configs(ConfigResourceType.BROKER, name)
        configs = _altered(usable_configs(current), changes)
    else:
        configs = {each.name: each.value or "" for each in resource.configs}
    check_dynamic_configs(broker.configs.static, configs, per_broker=bool(name))


def _check_is_this_broker(broker: Broker, name: str) -> None:
    own_id = broker.config.node_id
    try:
        broker_id = int(name)
    except ValueError:
        raise ApiError(
            ErrorCode.invalid_request, f"Node id must be an integer, but it is: {name}"
        ) from None
    if broker_id != own_id:
        raise ApiError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {own_id}, but received {name}",
        )


def _altered(current: Mapping[str, str], changes: Sequence[ConfigChange]) -> dict[str, str]:
    """Return the configs that result from incremental changes (`prepareIncrementalConfigs`)."""
    configs = dict(current)
    for change in changes:
        if change.operation is ConfigOperation.DELETE:
            configs.pop(change.name, None)
        elif change.operation is ConfigOperation.SET:
            configs[change.name] = change.value or ""
        else:
            key = CONFIG_KEYS.get(change.name) or DYNAMIC_ONLY_CONFIGS.get(change.name)
            if key is None:
                raise ApiError(ErrorCode.invalid_config, f"Unknown config name: {change.name}")
            if key.type is not ConfigType.LIST:
                raise ApiError(
                    ErrorCode.invalid_config,
                    f"Config value {change.operation.name.lower()} is not allowed for config key: "
                    f"{change.name}",
                )
            configs[change.name] = changed_list(
                change.operation, configs.get(change.name), str(key.default), change.value
            )
    return configs


def _without_handled(
    request: Request, forwarded: Sequence[Any], handled: Sequence[ResourceResponse]
) -> Request:
    """Return a request that contains only the resources in `forwarded`.

    The response to the client also contains the results in `handled`.
    """
    header, wrap = request.pending.header, request.pending.wrap
    message = dataclasses.replace(request.message, resources=tuple(forwarded))

    def with_handled(frame: bytes) -> bytes:
        response = read_response(
            api_key=header.api_key,
            version=header.api_version,
            message=AlterConfigsResponse,
            frame=frame,
        )
        merged = dataclasses.replace(response, responses=(*response.responses, *handled))
        encoded = _response(request, merged)
        return encoded if wrap is None else wrap(encoded)

    return dataclasses.replace(
        request,
        pending=dataclasses.replace(request.pending, wrap=with_handled),
        message=message,
        frame=request_frame(
            api_key=header.api_key,
            version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id or "",
            message=message,
        ),
    )


def _response(request: Request, message: AlterConfigsResponse) -> bytes:
    header = request.pending.header
    return response_frame(
        api_key=header.api_key,
        version=header.api_version,
        correlation_id=header.correlation_id,
        message=message,
    )
