"""Features and the versions that a cluster has finalized.

This module defines the supported feature versions, the default features of a new cluster, and the
valid updates. Invariant: every finalized version is supported. Version 0 means that the feature is
not finalized. Source: KIP-584, KIP-1022; Kafka's `FeatureControlManager`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.records import FeatureLevelRecord
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError

TRANSACTION_VERSION: Final = "transaction.version"
"""Version 0 is the original protocol, 1 adds flexible records, and 2 adds part 2 of KIP-890."""

ELIGIBLE_LEADER_REPLICAS_VERSION: Final = "eligible.leader.replicas.version"
"""Version 1 enables eligible leader replicas (KIP-966)."""

GROUP_VERSION: Final = "group.version"
"""Version 1 enables the consumer protocol (KIP-848)."""

SUPPORTED_FEATURES: Final[Mapping[str, range]] = MappingProxyType(
    {
        ELIGIBLE_LEADER_REPLICAS_VERSION: range(2),
        GROUP_VERSION: range(2),
        TRANSACTION_VERSION: range(3),
    }
)
"""The supported versions of each feature. SKIPPED.md lists Kafka's other features."""

DEFAULT_FEATURES: Final[Mapping[str, int]] = MappingProxyType(
    {ELIGIBLE_LEADER_REPLICAS_VERSION: 1, GROUP_VERSION: 1, TRANSACTION_VERSION: 2}
)
"""The feature versions of a new cluster. They are the same as in Apache Kafka 4.3."""


class UpgradeType(IntEnum):
    """The direction in which an update may change a feature version."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    """A requested feature version. Version 0 removes the feature."""

    feature: str
    version: int
    upgrade_type: int = UpgradeType.UPGRADE


def initial_features(requested: Mapping[str, int]) -> list[FeatureLevelRecord]:
    """Return the feature records for a new cluster. `requested` overrides `DEFAULT_FEATURES`.

    Raises: ApiError (INVALID_UPDATE_VERSION) if a version is not supported.
    """
    features = {**DEFAULT_FEATURES, **requested}
    for feature, version in features.items():
        check_is_supported(feature, version)
    return [
        FeatureLevelRecord(name=feature, feature_level=version)
        for feature, version in features.items()
        if version
    ]


def updated_features(
    finalized: Mapping[str, int], updates: Sequence[FeatureUpdate]
) -> list[FeatureLevelRecord]:
    """Return the records for the updates, or raise INVALID_UPDATE_VERSION for invalid updates."""
    for update in updates:
        _check_update(finalized.get(update.feature, 0), update)
    return [
        FeatureLevelRecord(name=update.feature, feature_level=update.version) for update in updates
    ]


def enables_elr(record: FeatureLevelRecord) -> bool:
    """Return whether a record enables eligible leader replicas."""
    return record.name == ELIGIBLE_LEADER_REPLICAS_VERSION and record.feature_level > 0


def check_is_supported(feature: str, version: int) -> None:
    """Raise INVALID_UPDATE_VERSION if the feature or the version is not supported."""
    supported = SUPPORTED_FEATURES.get(feature)
    if version < 0:
        raise _error(feature, version, "The version must be 0 or greater.")
    if supported is None:
        raise _error(feature, version, "The cluster does not support this feature.")
    if version not in supported:
        raise _error(
            feature,
            version,
            f"The cluster supports versions {supported[0]} to {supported[-1]}.",
        )


def _check_update(current: int, update: FeatureUpdate) -> None:
    feature, version = update.feature, update.version
    if update.upgrade_type not in tuple(UpgradeType):
        raise _error(feature, version, f"The upgrade type {update.upgrade_type} is unknown.")
    check_is_supported(feature, version)
    upgrade = update.upgrade_type == UpgradeType.UPGRADE
    if version < current and upgrade:
        raise _error(
            feature,
            version,
            f"This version is below the current version {current}. Request a safe or unsafe "
            "downgrade.",
        )
    if version > current and not upgrade:
        raise _error(
            feature,
            version,
            f"This version is above the current version {current}. Request an upgrade.",
        )


def _error(feature: str, version: int, why: str) -> ApiError:
    return ApiError(
        ErrorCode.invalid_update_version,
        f"Feature {feature} cannot be set to version {version}. {why}",
    )
