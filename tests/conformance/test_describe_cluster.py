"""Tests of DescribeCluster (KIP-700)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection
from tests.conformance.wire import served

NOT_COMPUTED = -(2**31)
CONTROLLERS = 2


def test_every_version_returns_cluster_controller_and_brokers(
    raw: RawConnection, cluster: Cluster
) -> None:
    expected = raw.call("metadata", 12, topics=[])
    for version in served(raw, "describe_cluster"):
        response = raw.call("describe_cluster", version)
        assert response.error_code == ErrorCode.none, version
        assert response.cluster_id == expected.cluster_id, version
        assert response.controller_id in cluster.broker_ids, version
        assert len(response.brokers) == len(cluster.broker_ids), version
        assert {b.broker_id: f"{b.host}:{b.port}" for b in response.brokers} == {
            broker_id: cluster.address(broker_id) for broker_id in cluster.broker_ids
        }, version
        assert response.cluster_authorized_operations == NOT_COMPUTED, version


def test_authorized_operations_are_returned_on_request(raw: RawConnection) -> None:
    response = raw.call("describe_cluster", 1, include_cluster_authorized_operations=True)
    create = 5
    assert response.cluster_authorized_operations != NOT_COMPUTED
    assert response.cluster_authorized_operations & 1 << create


def test_broker_refuses_the_controller_endpoint_type(raw: RawConnection) -> None:
    response = raw.call("describe_cluster", 1, endpoint_type=CONTROLLERS)
    assert response.error_code == ErrorCode.mismatched_endpoint_type


def test_unknown_endpoint_type_is_refused(raw: RawConnection) -> None:
    response = raw.call("describe_cluster", 1, endpoint_type=7)
    assert response.error_code == ErrorCode.unsupported_endpoint_type
