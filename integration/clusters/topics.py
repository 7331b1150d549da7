"""Requests that all backends send to brokers: readiness checks and topic creation."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from kio.schema.errors import ErrorCode

from integration.raw import ConnectionClosedByBrokerError, RawConnection

POLL_INTERVAL_S = 0.02
TOPIC_TIMEOUT_S = 60.0


class TopicCreationError(Exception):
    """The cluster rejected a topic or its partitions.

    The message contains the topic. If the cluster returned an error, the message also contains the
    error code and Kafka's error message.
    """


def await_brokers(
    address: str,
    *,
    broker_ids: Collection[int],
    deadline_s: float,
    give_up: Callable[[], str | None],
) -> None:
    """Wait until the broker at `address` lists all `broker_ids` as unfenced.

    `deadline_s` is a value of `time.monotonic()`. `give_up` is called before each attempt and may
    return a reason to stop. Raises `TimeoutError` after the deadline or if `give_up` returns a
    reason.
    """
    while True:
        reason = give_up()
        known = _brokers_known(address)
        if reason is None and known >= set(broker_ids):
            return
        if reason is None and time.monotonic() > deadline_s:
            reason = (
                f"its metadata contains brokers {sorted(known)} instead of {sorted(broker_ids)}"
            )
        if reason is not None:
            raise TimeoutError(f"{address} is not ready: {reason}")
        time.sleep(POLL_INTERVAL_S)


def _brokers_known(address: str) -> set[int]:
    """Return the unfenced brokers that a broker reports, or an empty set if it does not respond."""
    try:
        with RawConnection(address, timeout_s=5) as connection:
            versions = connection.call("api_versions", 0)
            if versions.error_code != ErrorCode.none:
                return set()
            return {broker.node_id for broker in connection.call("metadata", 9, topics=[]).brokers}
    except (OSError, ConnectionClosedByBrokerError):
        return set()


def is_listening(address: str) -> bool:
    """Return whether a broker accepts connections at `host:port`."""
    try:
        RawConnection(address, timeout_s=5).close()
    except OSError:
        return False
    return True


def create_topic(
    bootstrap_server: str,
    name: str,
    *,
    partitions: int = 1,
    replication_factor: int | None = None,
    assignment: Sequence[Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create a topic and wait until its partition leaders serve requests.

    `assignment` lists the replicas of each partition. It replaces `partitions` and
    `replication_factor`. Raises `TopicCreationError` if the cluster rejects the request, or if a
    partition has no leader when the timeout expires.
    """
    by_hand = assignment is not None
    with RawConnection(bootstrap_server) as connection:
        response = connection.call(
            "create_topics",
            5,
            timeout=int(TOPIC_TIMEOUT_S * 1000),
            topics=[
                {
                    "name": name,
                    "num_partitions": -1 if by_hand else partitions,
                    "replication_factor": -1 if by_hand else replication_factor or -1,
                    "assignments": [
                        {"partition_index": index, "broker_ids": list(broker_ids)}
                        for index, broker_ids in enumerate(assignment or ())
                    ],
                    "configs": [{"name": k, "value": v} for k, v in (configs or {}).items()],
                }
            ],
        )
        (result,) = response.topics
        if result.error_code != ErrorCode.none:
            raise TopicCreationError(f"{name}: {result.error_code.name}: {result.error_message}")
        _await_served(connection, name, partitions if assignment is None else len(assignment))


def grow_topic(bootstrap_server: str, name: str, *, partitions: int) -> None:
    """Increase the number of partitions of a topic to `partitions`.

    Returns once the partition leaders serve requests. Raises `TopicCreationError` under the same
    conditions as `create_topic`.
    """
    with RawConnection(bootstrap_server) as connection:
        response = connection.call(
            "create_partitions",
            3,
            timeout=int(TOPIC_TIMEOUT_S * 1000),
            topics=[{"name": name, "count": partitions, "assignments": None}],
        )
        (result,) = response.results
        if result.error_code != ErrorCode.none:
            raise TopicCreationError(f"{name}: {result.error_code.name}: {result.error_message}")
        _await_served(connection, name, partitions)


def _await_served(connection: RawConnection, name: str, partitions: int) -> None:
    """Wait until each partition of a topic has a leader that serves it.

    The controller responds to a request that creates partitions before all brokers have applied
    the change to their metadata.
    """
    deadline_s = time.monotonic() + TOPIC_TIMEOUT_S
    while not _is_served(connection, name, partitions):
        if time.monotonic() > deadline_s:
            raise TopicCreationError(
                f"topic {name} is not ready after {TOPIC_TIMEOUT_S:g} s: at least one partition "
                "has no leader that serves it"
            )
        time.sleep(POLL_INTERVAL_S)


def _is_served(connection: RawConnection, name: str, partitions: int) -> bool:
    """Return whether all brokers report the same leaders and each leader serves its partitions.

    A broker's metadata contains a topic shortly before the broker serves the partitions, and
    brokers apply metadata at different times. A consumer that fetches too early receives an error.
    """
    leaders = _leaders(connection, name)
    if len(leaders) != partitions or any(leader < 0 for leader in leaders):
        return False
    brokers = connection.call("metadata", 9, topics=[]).brokers
    addresses = {b.node_id: f"{b.host}:{b.port}" for b in brokers}
    return all(leader in addresses for leader in leaders) and all(
        _serves_partitions(
            address, name, leaders, [p for p, led in enumerate(leaders) if led == node_id]
        )
        for node_id, address in addresses.items()
    )


def _leaders(connection: RawConnection, name: str) -> list[int]:
    """Return the leaders of a topic's partitions in partition order, from a broker's metadata."""
    metadata = connection.call(
        "metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=False
    )
    (topic,) = metadata.topics
    ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return [partition.leader_id for partition in ordered]


def _serves_partitions(address: str, name: str, leaders: list[int], partitions: list[int]) -> bool:
    """Return whether a broker has these leaders in its metadata and serves `partitions`."""
    queries = [{"partition_index": p, "timestamp": -1} for p in partitions]
    try:
        with RawConnection(address) as broker:
            if _leaders(broker, name) != leaders:
                return False
            if not queries:
                return True
            offsets = broker.call(
                "list_offsets", 4, replica_id=-1, topics=[{"name": name, "partitions": queries}]
            )
    except (OSError, ConnectionClosedByBrokerError):
        # The leader has stopped, and no new leader has been elected yet.
        return False
    (topic,) = offsets.topics
    return all(partition.error_code == ErrorCode.none for partition in topic.partitions)
