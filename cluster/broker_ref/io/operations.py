"""Operations on a running cluster for tests, such as moving a leader or fencing a broker.

The functions send the same requests as Kafka's tools. A function returns when the brokers report
the new state. It raises an `OperationError` if its timeout expires first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from kio.schema.alter_partition_reassignments.v0 import request as reassign
from kio.schema.describe_cluster.v0.request import DescribeClusterRequest
from kio.schema.elect_leaders.v2 import request as elect
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta
from kio.static.protocol import RequestPayload

from broker_ref.faults import Faults, Match
from broker_ref.frozen import dataclass
from broker_ref.io.admin import send_request

BROKER_HEARTBEAT: Final = 63

_POLL_INTERVAL_SECONDS: Final = 0.02
_ELECT_PREFERRED: Final = 0
_REQUEST_TIMEOUT: Final = i32Timedelta.parse(timedelta(seconds=30))


class OperationError(Exception):
    """The cluster did not reach the requested state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """The leader and the replicas of a partition, as reported by a broker."""

    leader_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def move_leader(
    bootstrap_servers: str, topic: str, partition: int, *, to: int, timeout_seconds: float = 30.0
) -> None:
    """Make broker `to` the leader of a partition.

    The broker must be in the ISR. It becomes the first replica of the partition, so it is also the
    preferred leader. Raises: OperationError.
    """
    what = f"Cannot move the leader of {topic}-{partition} to broker {to}"
    before = partition_info(bootstrap_servers, topic, partition)
    if before.leader_id == to:
        return
    if to not in before.isr:
        raise OperationError(
            f"{what}: the replicas are {list(before.replicas)}, and the in-sync replicas are "
            f"{list(before.isr)}. Choose an in-sync replica."
        )
    _put_first(bootstrap_servers, topic, partition, [to, *(set(before.replicas) - {to})], what)
    _elect_preferred(bootstrap_servers, topic, partition, what)
    _await(
        lambda: partition_info(bootstrap_servers, topic, partition).leader_id == to,
        timeout_seconds,
        lambda: f"{what}: its state is {partition_info(bootstrap_servers, topic, partition)}",
    )


@contextmanager
def fenced(
    faults: Faults, bootstrap_servers: str, *, broker_id: int, timeout_seconds: float = 60.0
) -> Iterator[None]:
    """Fence a running broker for the duration of a `with` block.

    The broker's heartbeats are held back until the end of the block. The block is entered when the
    broker's session has expired. After the block, the function waits until the broker is unfenced.
    Raises: OperationError.
    """
    heartbeats = Match(api_keys=frozenset({BROKER_HEARTBEAT}), sender_id=broker_id)
    with faults.hold(heartbeats):
        _await(
            lambda: broker_id not in live_brokers(bootstrap_servers),
            timeout_seconds,
            lambda: f"Broker {broker_id} was not fenced. Check `broker.session.timeout.ms`",
        )
        yield
    _await(
        lambda: broker_id in live_brokers(bootstrap_servers),
        timeout_seconds,
        lambda: f"Broker {broker_id} is still fenced, although its heartbeats were released",
    )


def live_brokers(bootstrap_servers: str) -> frozenset[int]:
    """Return the ids of the brokers that are not fenced. Raises: OperationError."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    response = _send_to_any(bootstrap_servers, request, "Cannot list the brokers")
    return frozenset(int(broker.broker_id) for broker in response.brokers)


def partition_info(bootstrap_servers: str, topic: str, partition: int) -> PartitionInfo:
    """Return the leader and the replicas of a partition. Raises: OperationError."""
    request = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName(topic)),),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    what = f"Cannot look up {topic}-{partition}"
    response = _send_to_any(bootstrap_servers, request, what)
    for found in response.topics[0].partitions:
        if found.partition_index == partition:
            return PartitionInfo(
                leader_id=int(found.leader_id),
                replicas=tuple(map(int, found.replica_nodes)),
                isr=tuple(map(int, found.isr_nodes)),
            )
    _check(response.topics[0].error_code, what)
    raise OperationError(
        f"{what}: the topic has only {len(response.topics[0].partitions)} partition(s)"
    )


def _put_first(
    bootstrap_servers: str, topic: str, partition: int, replicas: list[int], what: str
) -> None:
    request = reassign.AlterPartitionReassignmentsRequest(
        timeout=_REQUEST_TIMEOUT,
        topics=(
            reassign.ReassignableTopic(
                name=TopicName(topic),
                partitions=(
                    reassign.ReassignablePartition(
                        partition_index=i32(partition),
                        replicas=tuple(BrokerId(replica) for replica in replicas),
                    ),
                ),
            ),
        ),
    )
    response = _send_to_any(bootstrap_servers, request, what)
    _check(response.error_code, what)
    for found in response.responses:
        for result in found.partitions:
            _check(result.error_code, what)


def _elect_preferred(bootstrap_servers: str, topic: str, partition: int, what: str) -> None:
    request = elect.ElectLeadersRequest(
        election_type=i8(_ELECT_PREFERRED),
        topic_partitions=(
            elect.TopicPartitions(topic=TopicName(topic), partitions=(i32(partition),)),
        ),
        timeout=_REQUEST_TIMEOUT,
    )
    response = _send_to_any(bootstrap_servers, request, what)
    _check(response.error_code, what)
    for found in response.replica_election_results:
        for result in found.partition_result:
            if result.error_code is not ErrorCode.election_not_needed:
                _check(result.error_code, what)


def _send_to_any(bootstrap_servers: str, request: RequestPayload, what: str) -> Any:
    """Return the response of the first broker that responds."""
    reasons = []
    for address in bootstrap_servers.split(","):
        try:
            return send_request(address, request)
        except OSError as error:
            reasons.append(f"{address}: {error}")
    raise OperationError(f"{what}: no broker responded ({'; '.join(reasons)})")


def _check(error_code: ErrorCode, what: str) -> None:
    if error_code is not ErrorCode.none:
        raise OperationError(f"{what}: {error_code.name.upper()}")


def _await(
    condition: Callable[[], bool], timeout_seconds: float, otherwise: Callable[[], str]
) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise OperationError(f"{otherwise()} (waited {timeout_seconds} s)")
        time.sleep(_POLL_INTERVAL_SECONDS)
