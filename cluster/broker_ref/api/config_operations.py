"""The permission required to describe or alter the configs of a resource.

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
"""The codes of the resource types BROKER, BROKER_LOGGER and CLIENT_METRICS."""


def check_config_operation(
    auth: AuthHelper, operation: AclOperation, config_resource_type: int, name: str
) -> None:
    """Raise ApiError unless the client is authorized for `operation` on a resource's configs.

    Unknown resource types are not checked.
    """
    if config_resource_type == _TOPIC:
        auth.check(operation, ResourceType.TOPIC, name)
    elif config_resource_type == _GROUP:
        auth.check(operation, ResourceType.GROUP, name)
    elif config_resource_type in _OF_CLUSTER:
        auth.check(operation, ResourceType.CLUSTER, CLUSTER_NAME)
