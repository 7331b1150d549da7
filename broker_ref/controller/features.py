"""Features that a cluster has finalized: what all its nodes may do from then on.

Purpose: which features there are and in which versions, those of a new cluster, and what may become
of them. Invariant: a version that is finalized is one that is supported; 0 is as good as none. What
it must not know: what a feature changes; who cares reads `ClusterMetadata.finalized_features`.
Source: KIP-584, KIP-1022; Kafka's FeatureControlManager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.records import FeatureLevelRecord
from broker_ref.protocol.errors import ApiError

TRANSACTION_VERSION: Final = "transaction.version"
"""0: the first. 1: transactions are written with flexible records. 2: KIP-890's second part."""

SUPPORTED_FEATURES: Final[Mapping[str, range]] = MappingProxyType(
    {
        TRANSACTION_VERSION: range(3),
    }
)
"""The versions of each feature. Kafka's others gate what is not here: see SKIPPED.md."""

DEFAULT_FEATURES: Final[Mapping[str, int]] = MappingProxyType({TRANSACTION_VERSION: 2})
"""What a new cluster finalizes, as one of Apache Kafka 4.3 does."""


class UpgradeType(IntEnum):
    """Which way a version may go."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    """A version that a feature is to have; 0 is none."""

    feature: str
    version: int
    upgrade_type: int = UpgradeType.UPGRADE


def first_features(wanted: Mapping[str, int]) -> list[FeatureLevelRecord]:
    """The records of a new cluster, with these versions in place of `DEFAULT_FEATURES`.

    INVALID_UPDATE_VERSION where one is not supported.
    """
    features = {**DEFAULT_FEATURES, **wanted}
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
    """The records of what is to change; INVALID_UPDATE_VERSION where any of it may not."""
    for update in updates:
        _check_update(finalized.get(update.feature, 0), update)
    return [
        FeatureLevelRecord(name=update.feature, feature_level=update.version) for update in updates
    ]


def check_is_supported(feature: str, version: int) -> None:
    """INVALID_UPDATE_VERSION where there is no such feature or no such version of it."""
    supported = SUPPORTED_FEATURES.get(feature)
    if version < 0:
        raise _refusal(feature, version, "a version is 0 or more.")
    if supported is None:
        raise _refusal(feature, version, "this cluster does not support the feature.")
    if version not in supported:
        raise _refusal(
            feature, version, f"this cluster supports {supported[0]} to {supported[-1]}."
        )


def _check_update(current: int, update: FeatureUpdate) -> None:
    feature, version = update.feature, update.version
    if update.upgrade_type not in tuple(UpgradeType):
        raise _refusal(feature, version, f"there is no upgrade type {update.upgrade_type}.")
    check_is_supported(feature, version)
    upgrade = update.upgrade_type == UpgradeType.UPGRADE
    if version < current and upgrade:
        raise _refusal(
            feature, version, f"that is below {current}: ask for a safe or an unsafe downgrade."
        )
    if version > current and not upgrade:
        raise _refusal(feature, version, f"that is above {current}, so it is no downgrade.")


def _refusal(feature: str, version: int, why: str) -> ApiError:
    return ApiError(
        ErrorCode.invalid_update_version,
        f"Feature {feature} cannot have version {version}: {why}",
    )
