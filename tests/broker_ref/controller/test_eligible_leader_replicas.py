"""Tests of eligible leader replicas in the controller (KIP-966)."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.configs import ConfigChange, ConfigOperation, ConfigResource
from broker_ref.controller.features import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    FeatureUpdate,
    UpgradeType,
)
from broker_ref.controller.journal import Journal
from broker_ref.controller.metadata import RECOVERED, RECOVERING
from broker_ref.controller.records import ConfigRecord, ConfigResourceType, encode_record
from broker_ref.controller.topics import NewTopic
from broker_ref.protocol.errors import ApiError
from tests.broker_ref.controller.clusters import JOURNAL, ControllerDriver
from tests.broker_ref.controller.test_elections import ALL_BROKERS, TOPIC, cluster

TWO = {"min.insync.replicas": "2"}

State = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def state(driver: ControllerDriver, topic: str = "t") -> State:
    """Return the leader, the ISR, the ELR and the last known ELR."""
    found = driver.partition(topic)
    return found.leader, found.isr, found.eligible_leader_replicas, found.last_known_elr


def test_replica_that_leaves_the_isr_below_min_isr_is_eligible() -> None:
    driver = cluster(1, 2, 3, configs=TWO)
    driver.propose(driver.partition(), (1, 2))
    assert state(driver) == (1, (1, 2), (), ())
    driver.propose(driver.partition(), (1,))
    assert state(driver) == (1, (1,), (2,), ())
    driver.propose(driver.partition(), (1, 3))
    assert state(driver) == (1, (1, 3), (), ())
    driver.expire(3)
    assert state(driver) == (1, (1,), (3,), ())


def test_eligible_replica_leads_if_the_isr_is_empty() -> None:
    driver = cluster(1, 2, 3, configs=TWO)
    driver.propose(driver.partition(), (1, 2))
    driver.expire(2, 3)
    driver.expire(1)
    assert state(driver) == (-1, (), (1, 2), (1,))
    driver.start(3)
    assert state(driver) == (-1, (), (1, 2), (1,))
    driver.start(2, is_clean=True)
    assert state(driver) == (2, (2,), (1,), ())
    assert driver.partition().leader_recovery_state == RECOVERED
    driver.start(1, is_clean=True)
    assert state(driver) == (2, (2,), (1,), ())
    driver.propose(driver.partition(), (1, 2))
    assert state(driver) == (2, (1, 2), (), ())


def test_broker_that_did_not_shut_down_cleanly_is_not_eligible() -> None:
    driver = cluster(1, 2, configs=TWO)
    driver.expire(2)
    first = driver.metadata.brokers[2].broker_epoch
    driver.register(2, is_clean=True)
    assert state(driver) == (1, (1,), (2,), ())
    # The broker epoch in an old clean-shutdown file is not the registered one.
    assert driver.metadata.brokers[2].broker_epoch > first
    driver.register(2)
    assert state(driver) == (1, (1,), (), ())


def test_last_leader_is_elected_uncleanly_if_no_replica_is_eligible() -> None:
    driver = cluster(1, 2, configs=TWO)
    driver.expire(2)
    driver.expire(1)
    driver.start(2)
    assert state(driver) == (-1, (), (1,), (1,))
    driver.start(1)
    assert state(driver) == (1, (1,), (), ())
    assert driver.partition().leader_recovery_state == RECOVERING


def test_unclean_election_clears_the_eligible_replicas() -> None:
    driver = cluster(1, 2, 3, configs=TWO)
    driver.propose(driver.partition(), (1, 2))
    driver.expire(1, 2)
    assert state(driver) == (-1, (), (1, 2), (2,))
    assert driver.controller.elect_leaders([("t", 0)], unclean=True) == [None]
    assert state(driver) == (3, (3,), (), ())


def test_change_of_min_isr_clears_the_eligible_replicas_of_the_topic() -> None:
    driver = cluster(1, 2, configs=TWO)
    driver.create_topic(NewTopic(name="u", assignments=((0, (1, 2)),), configs=TWO))
    driver.expire(2)
    before = driver.partition()
    three = ConfigChange(name="min.insync.replicas", operation=ConfigOperation.SET, value="3")
    driver.controller.alter_configs(
        driver.controller.incremental_config_records(TOPIC, [three]), validate_only=False
    )
    assert state(driver) == (1, (1,), (), ())
    assert driver.partition().partition_epoch == before.partition_epoch + 1
    assert state(driver, "u") == (1, (1,), (2,), ())
    other = ConfigResource(type=ConfigResourceType.TOPIC, name="u")
    driver.controller.alter_configs(
        driver.controller.replacing_config_records(other, {}), validate_only=False
    )
    assert state(driver, "u") == (1, (1,), (), ())


def test_change_of_the_default_min_isr_clears_all_eligible_replicas() -> None:
    driver = cluster(1, 2, configs=TWO)
    driver.expire(2)
    two = ConfigChange(name="min.insync.replicas", operation=ConfigOperation.SET, value="2")
    driver.controller.alter_configs(
        driver.controller.incremental_config_records(ALL_BROKERS, [two]), validate_only=False
    )
    assert state(driver) == (1, (1,), (), ())
    driver.create_topic(NewTopic(name="u", assignments=((0, (1, 3)),), configs={}))
    driver.expire(3)
    assert state(driver, "u") == (1, (1,), (3,), ()), "the topic does not use the new default"
    driver.controller.alter_configs(
        driver.controller.incremental_config_records(ALL_BROKERS, [two]), validate_only=False
    )
    assert state(driver, "u") == (1, (1,), (), ()), "setting the same value clears them, too"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.insync.replicas", "abc"),
        ("min.insync.replicas", "0"),
        ("min.insync.replicas", ""),
        ("leader.replication.throttled.rate", "fast"),
    ],
)
def test_invalid_configs_of_brokers_are_refused(name: str, value: str) -> None:
    """Clients can send requests to the controller, without the validation by a broker."""
    driver = cluster(1, 2, 3, configs=TWO)
    before = driver.metadata.configs(ConfigResourceType.BROKER, "")
    change = ConfigChange(name=name, operation=ConfigOperation.SET, value=value)
    with pytest.raises(ApiError) as changed:
        driver.controller.alter_configs(
            driver.controller.incremental_config_records(ALL_BROKERS, [change]), validate_only=False
        )
    with pytest.raises(ApiError) as replaced:
        driver.controller.alter_configs(
            driver.controller.replacing_config_records(ALL_BROKERS, {**before, name: value}),
            validate_only=False,
        )
    codes = (changed.value.error_code, replaced.value.error_code)
    assert codes == (ErrorCode.invalid_config, ErrorCode.invalid_config)
    assert driver.metadata.configs(ConfigResourceType.BROKER, "") == before
    driver.create_topic(NewTopic(name="u", assignments=((0, (1, 2)),)))
    driver.propose(driver.partition("u"), (1,))
    assert state(driver, "u") == (1, (1,), (), ())


def test_min_isr_is_limited_to_the_replication_factor_and_has_a_default() -> None:
    driver = ControllerDriver(1, 2, min_insync_replicas="2")
    driver.create_topic(NewTopic(name="t", assignments=((0, (1, 2)),)))
    driver.create_topic(NewTopic(name="sole", assignments=((0, (2,)),)))
    driver.expire(2)
    assert state(driver) == (1, (1,), (2,), ())
    assert state(driver, "sole") == (-1, (), (2,), (2,))


def test_feature_can_be_disabled_and_enabled() -> None:
    driver = cluster(1, 2, 3, configs=TWO)
    driver.propose(driver.partition(), (1, 2))
    driver.expire(2)
    assert state(driver) == (1, (1,), (2,), ())

    def finalize(version: int) -> None:
        update = FeatureUpdate(
            feature=ELIGIBLE_LEADER_REPLICAS_VERSION,
            version=version,
            upgrade_type=UpgradeType.UPGRADE if version else UpgradeType.SAFE_DOWNGRADE,
        )
        driver.controller.update_features([update], validate_only=False)

    finalize(0)
    assert state(driver) == (1, (1,), (2,), ())  # The next change of the partition clears the ELR.
    driver.expire(1)
    assert state(driver) == (-1, (1,), (), ())
    finalize(1)
    driver.start(1, is_clean=True)
    assert state(driver) == (1, (1,), (), ())


def test_stored_eligible_replica_leads_after_the_feature_was_disabled() -> None:
    driver = cluster(1, 2, configs=TWO)
    driver.expire(2)
    driver.expire(1)
    assert state(driver) == (-1, (), (1, 2), (1,))
    update = FeatureUpdate(
        feature=ELIGIBLE_LEADER_REPLICAS_VERSION,
        version=0,
        upgrade_type=UpgradeType.SAFE_DOWNGRADE,
    )
    driver.controller.update_features([update], validate_only=False)
    driver.start(2, is_clean=True)
    assert state(driver)[:3] == (2, (2,), ())
    assert driver.partition().leader_recovery_state == RECOVERED


def test_replica_that_a_reassignment_removes_is_not_eligible() -> None:
    """The minimum of the topic stays 2, because another partition has three replicas."""
    driver = ControllerDriver(1, 2, 3)
    assignments = tuple((partition, (1, 2, 3)) for partition in (0, 1))
    driver.create_topic(NewTopic(name="t", assignments=assignments, configs=TWO))
    driver.controller.alter_reassignments({("t", 1): (1,)})
    moved = driver.metadata.partition("t", 1)
    assert moved is not None
    assert (moved.isr, moved.eligible_leader_replicas) == ((1,), ())


def test_older_cluster_gets_min_insync_replicas_for_all_brokers() -> None:
    driver = ControllerDriver(min_insync_replicas="2")
    records = [one for one in driver.metadata.records() if not isinstance(one, ConfigRecord)]
    end_offset = driver.metadata.end_offset
    driver.controller.close()
    Journal(driver.storage, JOURNAL).rewrite(map(encode_record, records), end_offset=end_offset)
    driver.restart()
    assert driver.metadata.end_offset == end_offset + 1
    assert driver.metadata.configs(ConfigResourceType.BROKER, "") == TWO
    driver.restart()
    assert driver.metadata.end_offset == end_offset + 1
