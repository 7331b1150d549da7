"""Tests of finalized features: how clients read them, and how they are updated (KIP-584).

Most tests use the feature `transaction.version`. `test_eligible_leader_replicas.py` covers
`eligible.leader.replicas.version`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.clusters.features import finalize, finalized
from integration.raw import RawConnection
from tests.conformance.consumer_members import ConsumerMember, describe
from tests.conformance.eventually import eventually
from tests.conformance.groups import await_coordinator
from tests.conformance.transaction_versions import both_transaction_versions
from tests.conformance.wire import served
from tests.conftest import ClusterFactory

FEATURE = "transaction.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
SOFTWARE = {"client_software_name": "conformance", "client_software_version": "1"}


def call_api_versions(raw: RawConnection, version: int) -> Any:
    return raw.call("api_versions", version, **(SOFTWARE if version >= 3 else {}))


def supported(raw: RawConnection, version: int) -> dict[str, tuple[int, int]]:
    features = call_api_versions(raw, version).supported_features
    return {feature.name: (feature.min_version, feature.max_version) for feature in features}


@both_transaction_versions
def test_every_broker_returns_the_finalized_features(
    cluster: Cluster, transaction_version: int
) -> None:
    for broker_id in cluster.broker_ids:
        with RawConnection(cluster.address(broker_id)) as raw:
            for version in (3, 4):
                response = call_api_versions(raw, version)
                levels = {
                    feature.name: (feature.min_version_level, feature.max_version_level)
                    for feature in response.finalized_features
                }
                assert levels[FEATURE] == (transaction_version, transaction_version)
                assert response.finalized_features_epoch >= 0


def test_feature_with_minimum_version_0_is_returned_from_version_4_on(
    raw: RawConnection,
) -> None:
    assert supported(raw, 4)[FEATURE] == (0, 2)
    assert FEATURE not in supported(raw, 3)  # KAFKA-17492: old clients cannot decode the feature


def test_error_response_contains_no_features(raw: RawConnection) -> None:
    response = raw.call("api_versions", 4, client_software_name="?", client_software_version="1")
    assert response.error_code == ErrorCode.invalid_request
    assert response.finalized_features_epoch == -1
    assert response.finalized_features == response.supported_features == ()


@pytest.fixture(scope="module")
def own(cluster_with: ClusterFactory) -> Cluster:
    return cluster_with(features={FEATURE: 1})


@pytest.fixture
def own_raw(own: Cluster) -> Iterator[RawConnection]:
    """Return a connection to the broker, with version 1 finalized."""
    finalize([own.address(1)], {FEATURE: 1})
    with RawConnection(own.address(1)) as connection:
        yield connection


def update(
    raw: RawConnection,
    level: int,
    upgrade_type: int = UPGRADE,
    feature: str = FEATURE,
    *,
    version: int = 2,
    **fields: Any,
) -> Any:
    one = {"feature": feature, "max_version_level": level}
    if version >= 1:
        one["upgrade_type"] = upgrade_type
    else:
        one["allow_downgrade"] = upgrade_type != UPGRADE
    return raw.call("update_features", version, feature_updates=[one], **fields)


def await_level(raw: RawConnection, level: int) -> None:
    eventually(lambda: finalized(raw.address).get(FEATURE, 0) == level)


def test_feature_is_upgraded_and_downgraded(own_raw: RawConnection) -> None:
    for version in served(own_raw, "update_features"):
        before = call_api_versions(own_raw, 4).finalized_features_epoch
        response = update(own_raw, 2, version=version)
        assert (response.error_code, response.error_message) == (ErrorCode.none, None)
        if version < 2:
            (result,) = response.results
            assert (result.feature, result.error_code) == (FEATURE, ErrorCode.none)
        await_level(own_raw, 2)
        assert call_api_versions(own_raw, 4).finalized_features_epoch > before
        assert update(own_raw, 2).error_code == ErrorCode.none  # not a change
        assert update(own_raw, 1, SAFE_DOWNGRADE).error_code == ErrorCode.none
        await_level(own_raw, 1)


def test_feature_at_version_0_is_not_finalized(own_raw: RawConnection) -> None:
    assert update(own_raw, 0, UNSAFE_DOWNGRADE).error_code == ErrorCode.none
    eventually(lambda: FEATURE not in finalized(own_raw.address))


@pytest.mark.parametrize(
    ("level", "upgrade_type"),
    [
        pytest.param(0, UPGRADE, id="downgrade as an upgrade"),
        pytest.param(2, SAFE_DOWNGRADE, id="downgrade to a higher version"),
        pytest.param(2, UNSAFE_DOWNGRADE, id="unsafe downgrade to a higher version"),
        pytest.param(2, 0, id="no upgrade type"),
        pytest.param(2, 4, id="unknown upgrade type"),
        pytest.param(3, UPGRADE, id="unsupported version"),
        pytest.param(-1, SAFE_DOWNGRADE, id="negative version"),
    ],
)
def test_invalid_update_is_refused(own_raw: RawConnection, level: int, upgrade_type: int) -> None:
    for version in (1, 2):
        response = update(own_raw, level, upgrade_type, version=version)
        assert response.error_code == ErrorCode.invalid_update_version
        assert FEATURE in response.error_message
        assert getattr(response, "results", ()) == ()
    assert finalized(own_raw.address)[FEATURE] == 1


@pytest.mark.parametrize("level", [0, 1])
def test_unknown_feature_is_refused(own_raw: RawConnection, level: int) -> None:
    response = update(own_raw, level, feature="no.such.feature")
    assert response.error_code == ErrorCode.invalid_update_version
    assert "no.such.feature" in response.error_message


def test_request_version_0_cannot_downgrade(own_raw: RawConnection) -> None:
    # In KRaft mode the controller ignores the downgrade flag of version 0.
    response = update(own_raw, 0, SAFE_DOWNGRADE, version=0)
    assert response.error_code == ErrorCode.invalid_update_version
    assert finalized(own_raw.address)[FEATURE] == 1


def test_updates_are_applied_all_or_none(own_raw: RawConnection) -> None:
    both = [
        {"feature": FEATURE, "max_version_level": 2},
        {"feature": "no.such.feature", "max_version_level": 1},
    ]
    for updates in (both, both[::-1]):
        response = own_raw.call("update_features", 1, feature_updates=updates)
        assert response.error_code == ErrorCode.invalid_update_version
        assert response.results == ()
    assert finalized(own_raw.address)[FEATURE] == 1


def test_validate_only_updates_nothing(own_raw: RawConnection) -> None:
    before = finalized(own_raw.address)
    assert update(own_raw, 2, validate_only=True).error_code == ErrorCode.none
    refused = update(own_raw, 3, validate_only=True)
    assert refused.error_code == ErrorCode.invalid_update_version
    assert update(own_raw, 1).error_code == ErrorCode.none  # The change reaches all brokers.
    assert finalized(own_raw.address) == before


def test_consumer_protocol_requires_its_feature(
    own_raw: RawConnection, unique_name: Callable[[], str]
) -> None:
    """At `group.version=0`, brokers advertise the requests, but refuse them (KIP-848)."""
    group, feature = unique_name(), "group.version"
    await_coordinator(own_raw, group)
    member = ConsumerMember(own_raw, group, "missing")
    member.join()
    assert update(own_raw, 0, UNSAFE_DOWNGRADE, feature).error_code == ErrorCode.none
    unsupported = ErrorCode.unsupported_version
    eventually(lambda: member.code() == unsupported)
    assert describe(own_raw, group).error_code == unsupported
    assert served(own_raw, "consumer_group_heartbeat") == [0, 1]
    assert (supported(own_raw, 4)[feature], feature in finalized(own_raw.address)) == (
        (0, 1),
        False,
    )
    # The group still exists.
    response = own_raw.call("list_groups", 5, states_filter=[], types_filter=["consumer"])
    assert [one.group_id for one in response.groups] == [group]
    assert update(own_raw, 1, UPGRADE, feature).error_code == ErrorCode.none
    eventually(lambda: member.code() == ErrorCode.none)


@pytest.mark.slow
def test_finalized_features_survive_a_restart(own_raw: RawConnection, own: Cluster) -> None:
    finalize([own.address(1)], {FEATURE: 2})
    own.kill_controller()
    own.start_controller()
    own.stop_broker(1)
    own.start_broker(1)
    assert finalized(own.address(1))[FEATURE] == 2
