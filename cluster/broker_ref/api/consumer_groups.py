"""Checks for the API handlers whether the consumer group protocol is enabled."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from broker_ref.api.contract import Broker
from broker_ref.controller.features import GROUP_VERSION
from broker_ref.protocol.errors import ApiError


def check_is_enabled(broker: Broker) -> None:
    """Raise ApiError (UNSUPPORTED_VERSION) if the finalized `group.version` is 0."""
    if not broker.metadata.finalized_features.get(GROUP_VERSION):
        raise ApiError(
            ErrorCode.unsupported_version,
            "The consumer group protocol is not enabled. Set the feature group.version to 1.",
        )
