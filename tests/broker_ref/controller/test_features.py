"""Tests of features: the defaults of a new cluster, and updates."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.features import (
    DEFAULT_FEATURES,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    GROUP_VERSION,
    TRANSACTION_VERSION,
    FeatureUpdate,
    UpgradeType,
)
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.protocol.errors import ApiError
from tests.broker_ref.controller.clusters import ControllerDriver
from tests.broker_ref.controller.test_controller import followed

ELR = {ELIGIBLE_LEADER_REPLICAS_VERSION: 1}


def error(act: Callable[[], object]) -> str:
    """Return the message of an INVALID_UPDATE_VERSION error."""
    with pytest.raises(ApiError) as refused:
        act()
    assert refused.value.error_code is ErrorCode.invalid_update_version
    return refused.value.message


def numbers(message: str) -> set[int]:
    """Return the versions and upgrade types in a message."""
    return {int(number) for number in re.findall(r"-?\b\d+\b", message)}


def update(
    driver: ControllerDriver,
    version: int,
    upgrade_type: int = UpgradeType.UPGRADE,
    feature: str = TRANSACTION_VERSION,
    *,
    validate_only: bool = False,
) -> None:
    wanted = FeatureUpdate(feature=feature, version=version, upgrade_type=upgrade_type)
    driver.controller.update_features([wanted], validate_only=validate_only)


def test_new_cluster_finalizes_the_features_of_kafka() -> None:
    driver = ControllerDriver()
    assert driver.metadata.finalized_features == DEFAULT_FEATURES
    assert DEFAULT_FEATURES == {
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "transaction.version": 2,
    }
    assert driver.metadata.transaction_version == 2


@pytest.mark.parametrize("version", [0, 1, 2])
def test_new_cluster_finalizes_requested_features_and_followers_see_them(version: int) -> None:
    driver = ControllerDriver(1, features={GROUP_VERSION: 0, TRANSACTION_VERSION: version})
    expected = {**ELR, TRANSACTION_VERSION: version} if version else ELR
    assert driver.metadata.finalized_features == expected
    by_batches = followed(driver, ClusterMetadata())
    assert by_batches.finalized_features == expected
    driver.restart()
    by_snapshot = followed(driver, ClusterMetadata())
    assert by_snapshot.finalized_features == expected
    assert by_snapshot.transaction_version == version


def test_existing_cluster_keeps_its_features() -> None:
    driver = ControllerDriver(1, features={TRANSACTION_VERSION: 1})
    driver.features = {TRANSACTION_VERSION: 2}
    driver.restart()
    assert driver.metadata.transaction_version == 1
    # This also holds for an older journal without feature records.
    driver = ControllerDriver(1, features=dict.fromkeys(DEFAULT_FEATURES, 0))
    driver.features = None
    driver.restart()
    assert driver.metadata.finalized_features == {}


def test_finalized_features_survive_a_journal_rewrite() -> None:
    driver = ControllerDriver(1, features={GROUP_VERSION: 0})
    update(driver, 1, UpgradeType.SAFE_DOWNGRADE)
    for _ in range(2):  # the journal as appended, then as rewritten
        driver.restart()
        assert driver.metadata.transaction_version == 1
    update(driver, 0, UpgradeType.UNSAFE_DOWNGRADE)
    follower = followed(driver, ClusterMetadata())
    assert follower.finalized_features == ELR
    driver.restart()
    assert driver.metadata.finalized_features == ELR


def test_snapshot_removes_features_that_are_no_longer_finalized() -> None:
    driver = ControllerDriver(1, features={GROUP_VERSION: 0})
    follower = followed(driver, ClusterMetadata())
    update(driver, 0, UpgradeType.SAFE_DOWNGRADE)
    driver.restart()
    assert driver.controller.batches_from(follower.end_offset, 1) is None
    assert followed(driver, follower).finalized_features == ELR


def test_update_must_match_its_upgrade_type() -> None:
    driver = ControllerDriver(1, features={TRANSACTION_VERSION: 1})
    before = driver.metadata.end_offset
    assert numbers(error(lambda: update(driver, 0))) == {0, 1}
    assert numbers(error(lambda: update(driver, 2, UpgradeType.SAFE_DOWNGRADE))) == {1, 2}
    assert numbers(error(lambda: update(driver, 2, UpgradeType.UNSAFE_DOWNGRADE))) == {1, 2}
    assert numbers(error(lambda: update(driver, 2, 0))) == {0, 2}
    assert numbers(error(lambda: update(driver, 3))) == {0, 2, 3}
    assert numbers(error(lambda: update(driver, -1))) == {-1, 0}
    assert "share.version" in error(lambda: update(driver, 0, feature="share.version"))
    assert "share.version" in error(lambda: update(driver, 1, feature="share.version"))
    assert driver.metadata.end_offset == before
    update(driver, 2, validate_only=True)
    assert driver.metadata.transaction_version == 1
    update(driver, 2)
    assert driver.metadata.transaction_version == 2


def test_updates_are_applied_all_or_none() -> None:
    driver = ControllerDriver(1, features={TRANSACTION_VERSION: 1})
    updates = [
        FeatureUpdate(feature=TRANSACTION_VERSION, version=2),
        FeatureUpdate(feature="no.such.feature", version=1),
    ]
    error(lambda: driver.controller.update_features(updates, validate_only=False))
    assert driver.metadata.transaction_version == 1


def test_cluster_with_unsupported_features_does_not_start() -> None:
    assert "share.version" in error(lambda: ControllerDriver(features={"share.version": 1}))
    too_new = error(lambda: ControllerDriver(features={TRANSACTION_VERSION: 3}))
    assert numbers(too_new) == {0, 2, 3}
