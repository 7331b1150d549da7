"""Tests of leader elections and ISR changes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.controller.configs import ConfigResource
from broker_ref.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from broker_ref.controller.metadata import RECOVERED, RECOVERING, PartitionMetadata
from broker_ref.controller.records import ConfigResourceType
from broker_ref.controller.topics import NewTopic
from broker_ref.protocol.errors import ApiError
from broker_ref.protocol.identifiers import Uuid
from tests.broker_ref.controller.clusters import ControllerDriver

UNCLEAN = {"unclean.leader.election.enable": "true"}
TOPIC = ConfigResource(type=ConfigResourceType.TOPIC, name="t")
ALL_BROKERS = ConfigResource(type=ConfigResourceType.BROKER, name="")


def cluster(
    *replicas: int,
    configs: Mapping[str, str | None] | None = None,
    features: dict[str, int] | None = None,
) -> ControllerDriver:
    """Start four brokers and create topic t with one partition on `replicas`."""
    driver = ControllerDriver(1, 2, 3, 4, features=features)
    new = NewTopic(name="t", assignments=((0, replicas),), configs=configs or {})
    driver.create_topic(new)
    return driver


def seen(driver: ControllerDriver) -> tuple[int, tuple[int, ...], int]:
    partition = driver.partition()
    return partition.leader, partition.isr, partition.leader_epoch


def code(outcome: PartitionMetadata | ApiError) -> ErrorCode:
    assert isinstance(outcome, ApiError)
    return outcome.error_code


def test_next_replica_in_sync_leads_when_the_leader_is_fenced() -> None:
    driver = cluster(2, 3, 1)
    driver.propose(driver.partition(), (2, 1))
    driver.expire(2)
    assert seen(driver) == (1, (1,), 1)


def test_fenced_follower_leaves_the_isr_without_a_new_leader_epoch() -> None:
    driver = cluster(1, 2, 3)
    before = driver.partition()
    driver.expire(2)
    assert seen(driver) == (1, (1, 3), 0)
    assert driver.partition().partition_epoch == before.partition_epoch + 1


def test_last_in_sync_replica_stays_in_the_isr_if_there_is_no_elr() -> None:
    driver = cluster(1, 2, features={ELIGIBLE_LEADER_REPLICAS_VERSION: 0})
    driver.expire(2)
    driver.expire(1)
    assert seen(driver) == (-1, (1,), 1)
    driver.start(2)
    assert seen(driver) == (-1, (1,), 1)
    driver.start(1)
    assert seen(driver) == (1, (1,), 2)


def test_crashed_broker_leads_in_a_new_epoch() -> None:
    driver = cluster(1)
    driver.now_ms += 9_000  # the session is over, but the broker is not fenced yet
    driver.register(1)
    assert seen(driver) == (-1, (), 1)
    driver.heartbeat(1)
    assert seen(driver) == (1, (1,), 2)


def test_restarted_broker_has_left_the_isr() -> None:
    driver = cluster(1, 2)
    for broker in (1, 3):
        driver.now_ms += 8_999
        driver.heartbeat(broker)
    driver.register(2)
    assert seen(driver) == (1, (1,), 0)


def test_unclean_leader_is_elected_only_where_the_topic_allows_it() -> None:
    for configs, expected in ((None, (-1, (), 1)), (UNCLEAN, (2, (2,), 1))):
        driver = cluster(1, 2, configs=configs)
        driver.propose(driver.partition(), (1,))
        driver.expire(1)
        assert seen(driver) == expected
        recovery = RECOVERING if configs else RECOVERED
        assert driver.partition().leader_recovery_state == recovery


@pytest.mark.parametrize("resource", [TOPIC, ALL_BROKERS])
def test_unclean_leader_is_elected_once_a_config_allows_it(resource: ConfigResource) -> None:
    driver = cluster(1, 2)
    driver.propose(driver.partition(), (1,))
    driver.expire(1)
    current = driver.metadata.configs(resource.type, resource.name)
    driver.controller.alter_configs(
        driver.controller.replacing_config_records(resource, {**current, **UNCLEAN}),
        validate_only=False,
    )
    assert seen(driver)[0] == -1
    driver.now_ms = 301_000
    for broker in (2, 3):
        driver.heartbeat(broker)
    driver.advance(0)
    assert seen(driver) == (2, (2,), 2)


def test_leader_ends_the_recovery() -> None:
    driver = cluster(1, 2, 3, configs=UNCLEAN)
    driver.propose(driver.partition(), (1,))
    driver.expire(1)
    partition = driver.partition()
    joined = driver.propose(partition, (2, 3), leader_recovery_state=RECOVERING)
    assert code(joined) is ErrorCode.invalid_request
    outcome = driver.propose(partition, (2,), leader_recovery_state=RECOVERED)
    assert isinstance(outcome, PartitionMetadata)
    assert driver.partition().leader_recovery_state == RECOVERED
    back = driver.propose(driver.partition(), (2,), leader_recovery_state=RECOVERING)
    assert code(back) is ErrorCode.invalid_request


def test_isr_change_keeps_the_leader_epoch() -> None:
    driver = cluster(1, 2, 3)
    for isr in ((1, 2), (1, 2, 3)):
        before = driver.partition()
        outcome = driver.propose(before, isr)
        assert outcome == driver.partition()
        assert seen(driver) == (1, isr, 0)
        assert driver.partition().partition_epoch == before.partition_epoch + 1
    assert driver.propose(driver.partition(), (1, 2, 3)) == driver.partition()


def test_refused_isr_proposals_change_nothing() -> None:
    driver = cluster(1, 2, 3)
    driver.propose(driver.partition(), (1, 2))
    driver.expire(3)
    driver.register(3)  # still fenced
    partition = driver.partition()
    end_offset = driver.metadata.end_offset
    cases = {
        "epoch beyond": (driver.propose(partition, (1,), leader_epoch=9), "not_controller"),
        "partition epoch": (driver.propose(partition, (1,), partition_epoch=9), "not_controller"),
        "old leader": (driver.propose(partition, (1,), leader_epoch=-1), "fenced_leader_epoch"),
        "not leader": (driver.propose(partition, (1,), leader_id=2), "invalid_request"),
        "old": (driver.propose(partition, (1,), partition_epoch=0), "invalid_update_version"),
        "empty": (driver.propose(partition, ()), "invalid_request"),
        "without leader": (driver.propose(partition, (2,)), "invalid_request"),
        "twice": (driver.propose(partition, (1, 2, 2)), "invalid_request"),
        "foreign": (driver.propose(partition, (1, 7)), "invalid_request"),
        "fenced": (driver.propose(partition, (1, 2, 3)), "ineligible_replica"),
        "other epoch": (
            driver.propose(partition, (1, 2), broker_epochs={2: 77}),
            "ineligible_replica",
        ),
        "no partition": (
            driver.propose(partition, (1,), partition=5),
            "unknown_topic_or_partition",
        ),
    }
    for name, (outcome, expected) in cases.items():
        assert code(outcome) is ErrorCode[expected], name
    assert driver.metadata.end_offset == end_offset


def test_fenced_leader_cannot_change_the_isr() -> None:
    driver = cluster(1, 2, 3)
    before = driver.partition()
    driver.expire(1)
    assert code(driver.propose(before, (1, 2))) is ErrorCode.fenced_leader_epoch


def test_preferred_leaders_are_elected_periodically() -> None:
    driver = cluster(1, 2, 3)
    driver.expire(1)
    driver.start(1)
    driver.propose(driver.partition(), (2, 3, 1))
    assert driver.partition().leader == 2
    driver.now_ms = 301_000
    for broker in (1, 2, 3):
        driver.heartbeat(broker)
    driver.advance(0)
    assert seen(driver) == (1, (2, 3, 1), 2)


def test_auto_leader_rebalance_can_be_disabled() -> None:
    driver = ControllerDriver(1, 2, auto_leader_rebalance_enable="false")
    driver.create_topic(NewTopic(name="t", assignments=((0, (1, 2)),)))
    driver.expire(1)
    driver.start(1)
    driver.propose(driver.partition(), (1, 2))
    driver.now_ms = 700_000
    for broker in (1, 2):
        driver.heartbeat(broker)
    driver.advance(0)
    assert driver.partition().leader == 2


@pytest.mark.parametrize(
    ("unclean", "expected"),
    [(False, "preferred_leader_not_available"), (True, "election_not_needed")],
)
def test_refused_elections(unclean: bool, expected: str) -> None:
    driver = cluster(1, 2, 3)
    driver.expire(1)
    (refusal,) = driver.controller.elect_leaders([("t", 0)], unclean=unclean)
    assert refusal is not None
    assert refusal.error_code is ErrorCode[expected]


def test_requested_unclean_election_needs_no_config() -> None:
    driver = cluster(1, 2)
    driver.propose(driver.partition(), (1,))
    driver.expire(1)
    assert driver.controller.elect_leaders([("t", 0)], unclean=True) == [None]
    assert seen(driver) == (2, (2,), 2)
    assert driver.partition().leader_recovery_state == RECOVERING
    driver.expire(2)
    (refusal,) = driver.controller.elect_leaders([("t", 0)], unclean=True)
    assert refusal is not None
    assert refusal.error_code is ErrorCode.eligible_leaders_not_available


def test_reassignment_completes_when_the_new_replicas_are_in_sync() -> None:
    driver = cluster(1, 2)
    assert driver.controller.alter_reassignments({("t", 0): (3, 2)}) == [None]
    moving = driver.partition()
    assert moving.replicas == (3, 2, 1)
    assert (moving.adding_replicas, moving.removing_replicas) == ((3,), (1,))
    assert (moving.leader, moving.leader_epoch) == (1, 0)
    outcome = driver.propose(moving, (1, 2, 3))
    assert code(outcome) is ErrorCode.new_leader_elected
    done = driver.partition()
    assert done.replicas == (3, 2)
    assert set(done.isr) == {2, 3}
    assert not done.is_reassigning
    assert (done.leader, done.leader_epoch) == (3, 1)


def test_reassignment_completes_although_a_retained_replica_is_not_in_sync() -> None:
    driver = cluster(1, 2, 3)
    driver.propose(driver.partition(), (1, 3))
    driver.controller.alter_reassignments({("t", 0): (1, 2, 4)})
    assert isinstance(driver.propose(driver.partition(), (1, 3, 4)), PartitionMetadata)
    assert driver.partition().replicas == (1, 2, 4)
    assert set(driver.partition().isr) == {1, 4}


def test_reassignment_to_fewer_replicas_waits_until_all_are_in_sync() -> None:
    driver = cluster(1, 2, 3)
    driver.propose(driver.partition(), (1, 3))
    driver.controller.alter_reassignments({("t", 0): (1, 2)})
    assert driver.partition().is_reassigning
    driver.propose(driver.partition(), (1, 2, 3))
    assert driver.partition().replicas == (1, 2)


def test_reassignment_that_keeps_the_leader_increases_the_leader_epoch() -> None:
    driver = cluster(1, 2)
    driver.controller.alter_reassignments({("t", 0): (1, 3)})
    outcome = driver.propose(driver.partition(), (1, 2, 3))
    assert isinstance(outcome, PartitionMetadata)
    assert seen(driver) == (1, (1, 3), 1)
    assert driver.partition().replicas == (1, 3)


def test_reassignment_that_only_reorders_or_drops_replicas_completes_at_once() -> None:
    driver = cluster(1, 2, 3)
    driver.controller.alter_reassignments({("t", 0): (2, 1, 3)})
    assert (driver.partition().replicas, seen(driver)) == ((2, 1, 3), (1, (1, 2, 3), 0))
    driver.controller.alter_reassignments({("t", 0): (2, 3)})
    assert (driver.partition().replicas, seen(driver)) == ((2, 3), (2, (2, 3), 1))


def test_cancelled_reassignment_restores_the_previous_replicas() -> None:
    driver = cluster(1, 2)
    driver.controller.alter_reassignments({("t", 0): (3,)})
    assert driver.controller.alter_reassignments({("t", 0): None}) == [None]
    partition = driver.partition()
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (1, 2), 1)
    assert not partition.is_reassigning
    (refusal,) = driver.controller.alter_reassignments({("t", 0): None})
    assert refusal is not None
    assert refusal.error_code is ErrorCode.no_reassignment_in_progress


def test_reassignment_is_not_cancelled_if_records_would_be_lost() -> None:
    driver = cluster(1, 2)
    driver.expire(2)
    driver.controller.alter_reassignments({("t", 0): (3, 4)})
    driver.propose(driver.partition(), (1, 3))
    driver.expire(1)
    assert driver.partition().isr == (3,)
    (refusal,) = driver.controller.alter_reassignments({("t", 0): None})
    assert refusal is not None
    assert refusal.error_code is ErrorCode.invalid_replica_assignment


def test_reassignment_is_cancelled_with_loss_if_the_topic_allows_unclean_elections() -> None:
    driver = cluster(2, 1, configs=UNCLEAN)
    driver.propose(driver.partition(), (2,))
    driver.controller.alter_reassignments({("t", 0): (3, 4)})
    driver.propose(driver.partition(), (2, 3))
    driver.expire(2)
    assert seen(driver) == (3, (3,), 1)
    assert driver.controller.alter_reassignments({("t", 0): None}) == [None]
    assert (driver.partition().replicas, seen(driver)) == ((1, 2), (1, (1,), 2))
    assert driver.partition().leader_recovery_state == RECOVERED


def test_unknown_topics_and_partitions() -> None:
    driver = cluster(1)
    refusals = driver.controller.alter_reassignments({("t", 1): (1,), ("u", 0): None})
    assert [refusal.error_code for refusal in refusals if refusal is not None] == [
        ErrorCode.unknown_topic_or_partition
    ] * 2
    assert driver.metadata.topics_by_id.get(Uuid(int=1)) is None
