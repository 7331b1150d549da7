"""Features: what a new cluster finalizes, and what may become of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.features import (
    DEFAULT_FEATURES,
    TRANSACTION_VERSION,
    FeatureUpdate,
    UpgradeType,
)
from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.protocol.errors import ApiError
from tests.broker_ref.controller.clusters import ControllerDriver
from tests.broker_ref.controller.test_controller import followed


def refusal(act: Callable[[], object]) -> str:
    """The message of what is refused as INVALID_UPDATE_VERSION."""
    with pytest.raises(ApiError) as refused:
        act()
    assert refused.value.error_code is ErrorCode.invalid_update_version
    return refused.value.message


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


def test_a_new_cluster_finalizes_what_kafka_does() -> None:
    driver = ControllerDriver()
    assert driver.metadata.finalized_features == DEFAULT_FEATURES == {"transaction.version": 2}
    assert driver.metadata.transaction_version == 2


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_new_cluster_finalizes_what_is_asked_for_and_followers_hear_of_it(version: int) -> None:
    driver = ControllerDriver(1, features={TRANSACTION_VERSION: version})
    expected = {TRANSACTION_VERSION: version} if version else {}
    assert driver.metadata.finalized_features == expected
    by_batches = followed(driver, ClusterMetadata())
    assert by_batches.finalized_features == expected
    driver.restart()
    by_snapshot = followed(driver, ClusterMetadata())
    assert by_snapshot.finalized_features == expected
    assert by_snapshot.transaction_version == version


def test_a_cluster_in_use_keeps_its_own_features() -> None:
    driver = ControllerDriver(1, features={TRANSACTION_VERSION: 1})
    driver.features = {TRANSACTION_VERSION: 2}
    driver.restart()
    assert driver.metadata.transaction_version == 1
    # Nor does one from before there were features, in which no record says anything of them.
    driver = ControllerDriver(1, features={TRANSACTION_VERSION: 0})
    driver.features = None
    driver.restart()
    assert driver.metadata.finalized_features == {}


def test_what_is_finalized_survives_that_the_journal_is_rewritten() -> None:
    driver = ControllerDriver(1)
    update(driver, 1, UpgradeType.SAFE_DOWNGRADE)
    for _ in range(2):  # the journal as it was appended to, then as it was rewritten
        driver.restart()
        assert driver.metadata.transaction_version == 1
    update(driver, 0, UpgradeType.UNSAFE_DOWNGRADE)
    follower = followed(driver, ClusterMetadata())
    assert follower.finalized_features == {}
    driver.restart()
    assert driver.metadata.finalized_features == {}


def test_a_follower_that_takes_a_snapshot_forgets_what_is_not_finalized_any_more() -> None:
    driver = ControllerDriver(1)
    follower = followed(driver, ClusterMetadata())
    update(driver, 0, UpgradeType.SAFE_DOWNGRADE)
    driver.restart()
    assert driver.controller.batches_from(follower.end_offset, 1) is None
    assert followed(driver, follower).finalized_features == {}


def test_an_update_goes_the_way_that_was_asked_for() -> None:
    driver = ControllerDriver(1, features={TRANSACTION_VERSION: 1})
    before = driver.metadata.end_offset
    assert "below 1" in refusal(lambda: update(driver, 0))
    assert "above 1" in refusal(lambda: update(driver, 2, UpgradeType.SAFE_DOWNGRADE))
    assert "above 1" in refusal(lambda: update(driver, 2, UpgradeType.UNSAFE_DOWNGRADE))
    assert "upgrade type 0" in refusal(lambda: update(driver, 2, 0))
    assert "0 to 2" in refusal(lambda: update(driver, 3))
    assert "0 or more" in refusal(lambda: update(driver, -1))
    assert "not support" in refusal(lambda: update(driver, 0, feature="group.version"))
    assert "not support" in refusal(lambda: update(driver, 1, feature="group.version"))
    assert driver.metadata.end_offset == before
    update(driver, 2, validate_only=True)
    assert driver.metadata.transaction_version == 1
    update(driver, 2)
    assert driver.metadata.transaction_version == 2


def test_updates_are_made_all_or_none() -> None:
    driver = ControllerDriver(1, features={TRANSACTION_VERSION: 1})
    updates = [
        FeatureUpdate(feature=TRANSACTION_VERSION, version=2),
        FeatureUpdate(feature="no.such.feature", version=1),
    ]
    refusal(lambda: driver.controller.update_features(updates, validate_only=False))
    assert driver.metadata.transaction_version == 1


def test_a_cluster_that_cannot_have_its_features_does_not_start() -> None:
    assert "group.version" in refusal(lambda: ControllerDriver(features={"group.version": 1}))
    assert "version 3" in refusal(lambda: ControllerDriver(features={TRANSACTION_VERSION: 3}))
