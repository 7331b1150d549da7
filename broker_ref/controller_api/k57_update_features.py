"""UpdateFeatures (57), versions 0 to 2: finalize other versions of features (KIP-584).

Behaviour: all updates are made or none; a refusal, INVALID_UPDATE_VERSION, is one for the whole
request. Of two updates of a feature the later counts. `allow_downgrade` of version 0 has no effect
on KRaft's controller, and has none here. Before version 2 each feature is named in the answer
where all went well. `validate_only` changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.features import FeatureUpdate, UpgradeType
from broker_ref.controller_api.contract import NO_THROTTLE_MS, Api, Call, ControllerContext
from broker_ref.protocol.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedFeature:
    """A feature and the version that it is to have, 0 being none."""

    feature: str
    max_version_level: int
    allow_downgrade: bool = False
    upgrade_type: int = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequest:
    """What to finalize, or only to check."""

    feature_updates: tuple[UpdatedFeature, ...]
    validate_only: bool = False
    timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureResult:
    """That a feature has been updated; the message is what Kafka says then."""

    feature: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = "NONE"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesResponse:
    """What has become of the whole."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    results: tuple[FeatureResult, ...] = ()
    throttle_time_ms: int = NO_THROTTLE_MS


def handle(
    context: ControllerContext, call: Call, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """Update all or none."""
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
            error_code=error.error_code, error_message=f"Nothing was updated. {error.message}"
        )
    return UpdateFeaturesResponse(
        results=tuple(FeatureResult(feature=feature) for feature in updates)
    )


API: Final = Api(key=57, versions=range(3), request=UpdateFeaturesRequest, handle=handle)
