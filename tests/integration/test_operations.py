"""The operations of `broker_ref` send only Kafka's requests, so they work with any cluster."""

from __future__ import annotations

import pytest

from broker_ref.io.operations import OperationError, live_brokers, move_leader, partition_info
from tests.conftest import ClusterFactory

pytestmark = pytest.mark.slow


def test_a_leader_is_moved_to_each_broker_in_turn(cluster_with: ClusterFactory) -> None:
    cluster = cluster_with(brokers=3)
    servers = cluster.bootstrap_servers
    assert live_brokers(servers) == {1, 2, 3}
    cluster.create_topic("moved", assignment=[[1, 2, 3]])
    cluster.create_topic("elsewhere", assignment=[[1, 2]])
    for target in (2, 3, 1):
        move_leader(servers, "moved", 0, to=target)
        state = partition_info(servers, "moved", 0)
        assert state.leader_id == target == state.replicas[0]
        assert set(state.isr) == {1, 2, 3}
    with pytest.raises(OperationError, match=r"\b3\b.*\[1, 2\]"):
        move_leader(servers, "elsewhere", 0, to=3)
