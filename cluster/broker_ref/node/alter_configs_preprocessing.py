"""Validates changes to the configs of this broker before the controller stores them.

Purpose: reject changes that this broker cannot apply, because only the broker knows its static
configs. The controller handles the other resources of the request. Invariants: a broker validates
changes to its own configs and to those of all brokers, and rejects changes to the configs of other
brokers. The client receives one result for each resource. Source:
`kafka.server.ConfigAdminManager`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Broker
from broker_ref.broker_configs import CONFIG_KEYS
from broker_ref.controller.configs import ConfigChange, ConfigOperation, changed_list
from broker_ref.controller.records import ConfigResourceType
from broker_ref.controller_api import k33_alter_configs, k44_incremental_alter_configs
from broker_ref.controller_api.config_resources import AlterConfigsResponse, ResourceResponse
from broker_ref.dynamic_configs import DYNAMIC_ONLY_CONFIGS, check_dynamic_configs
from broker_ref.node.dispatch import Dispatcher, Request
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.frames import read_response, request_frame, response_frame
from broker_ref.topic_configs import ConfigType

_KEYS: Final = frozenset({k33_alter_configs.API.key, k44_incremental_alter_configs.API.key})


def preprocess(request: Request, broker: Broker, dispatcher: Dispatcher) -> Request | None:
    """Return the request to forward to the controller.

    Rejected changes are not forwarded. If all changes are rejected, respond and return None.
    """
    if request.api.key not in _KEYS:
        return request
    refused: list[ResourceResponse] = []
    accepted: list[Any] = []
    for resource in request.message.resources:
        try:
            _check(broker, resource)
        except ApiError as error:
            refused.append(
                ResourceResponse(
                    error_code=error.error_code,
                    error_message=error.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        else:
            accepted.append(resource)
    if not refused:
        return request
    if not accepted:
        response = AlterConfigsResponse(responses=tuple(refused))
        dispatcher.send_response(request.pending, _response(request, response))
        return None
    return _without_refused(request, accepted, refused)


def _check(broker: Broker, resource: Any) -> None:
    """Raise ApiError if the resource is a broker and the change cannot be applied."""
    if resource.resource_type != ConfigResourceType.BROKER:
        return
    name = resource.resource_name
    if name:
        _check_is_this_broker(broker, name)
    current = broker.metadata.configs(ConfigResourceType.BROKER, name)
    if isinstance(resource, k44_incremental_alter_configs.AlteredResource):
        changes = k44_incremental_alter_configs.config_changes(resource)
        configs = _altered(current, changes)
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
    """Return the configs after incremental changes (`prepareIncrementalConfigs`)."""
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


def _without_refused(
    request: Request, accepted: Sequence[Any], refused: Sequence[ResourceResponse]
) -> Request:
    """Return a request for the accepted resources. Its response contains all resources."""
    header, wrap = request.pending.header, request.pending.wrap
    message = dataclasses.replace(request.message, resources=tuple(accepted))

    def with_refused(frame: bytes) -> bytes:
        response = read_response(
            api_key=header.api_key,
            version=header.api_version,
            message=AlterConfigsResponse,
            frame=frame,
        )
        merged = dataclasses.replace(response, responses=(*response.responses, *refused))
        encoded = _response(request, merged)
        return encoded if wrap is None else wrap(encoded)

    return dataclasses.replace(
        request,
        pending=dataclasses.replace(request.pending, wrap=with_refused),
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
