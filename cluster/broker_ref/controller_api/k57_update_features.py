"""UpdateFeatures (57), versions 0 to 2: finalize feature versions (KIP-584).

Either all updates are applied, or none are. If any update is invalid, the whole request fails with
INVALID_UPDATE_VERSION. If a feature is repeated, the last update is used. As in KRaft, the
`allow_downgrade` field of version 0 has no effect. Before version 2, a successful response contains
a result for each feature. With `validate_only`, no update is applied. Source:
`kafka.server.ControllerApis.handleUpdateFeatures`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.features import FeatureUpdate, UpgradeType
from broker_ref.controller_api.contract import (
    NO_THROTTLE_MS,
    Api,
    Call,
    ControllerContext,
    on_cluster,
)
from broker_ref.frozen import dataclass
from broker_ref.protocol.errors import ApiError
from broker_ref.security.acls import AclOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedFeature:
    """A feature and its new version. Version 0 removes the feature."""

    feature: str
    max_version_level: int
    allow_downgrade: bool = False
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequest:
    """An UpdateFeatures request."""

    feature_updates: tuple[UpdatedFeature, ...]
    validate_only: bool = False
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureResult:
    """The result of a successful update, with the same message as in Kafka."""

    feature: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = "NONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesResponse:
    """An UpdateFeatures response."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    results: tuple[FeatureResult, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Apply either all updates or none."""
    del call
    updates = {
        update.feature: FeatureUpdate(
            feature=update.feature,
            version=update.max_version_level,
            upgrade_type=update.upgrade_type,
        )
        for update in request.feature_updates
    }
    try:
        context.controller.update_features(
            tuple(updates.values()), validate_only=request.validate_only
        )
    except ApiError as error:
        return UpdateFeaturesResponse(
            error_code=error.error_code, error_message=f"No feature was updated. {error.message}"
        )
    return UpdateFeaturesResponse(
        results=tuple(FeatureResult(feature=feature) for feature in updates)
    )


API: Final = Api(
    key=57,
    versions=range(3),
    request=UpdateFeaturesRequest,
    handle=handle,
    requires=(on_cluster(AclOperation.ALTER),),
)
