"""The permission that is required to describe or alter the configs of a resource.

Sources: `ConfigHelper.handleDescribeConfigsRequest` and `ControllerApis.authorizeAlterResource` in
Apache Kafka.
"""

from __future__ import annotations

from typing import Final

from broker_ref.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from broker_ref.security.authorizer import AuthHelper

_TOPIC: Final = 2
_GROUP: Final = 32
_OF_CLUSTER: Final = (4, 8, 16)
"""Brokers, loggers and client metrics."""


def check_config_operation(
    auth: AuthHelper, operation: AclOperation, config_resource_type: int, name: str
) -> None:
    """Raise ApiError unless the client may perform an operation on the configs of a resource.

    Unknown resource types are not checked.
    """
    if config_resource_type == _TOPIC:
        auth.check(operation, ResourceType.TOPIC, name)
    elif config_resource_type == _GROUP:
        auth.check(operation, ResourceType.GROUP, name)
    elif config_resource_type in _OF_CLUSTER:
        auth.check(operation, ResourceType.CLUSTER, CLUSTER_NAME)
