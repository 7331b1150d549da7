"""Requests that every backend sends to its brokers: readiness, creation and growth of topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from kio.schema.errors import ErrorCode

from integration.raw import ConnectionClosedByBrokerError, RawConnection

POLL_INTERVAL_S = 0.02
TOPIC_TIMEOUT_S = 60.0


class TopicCreationError(Exception):
    """The cluster rejected a topic or its partitions; names topic, error code and message."""


def await_brokers(
    address: str,
    *,
    broker_ids: Collection[int],
    deadline_s: float,
    give_up: Callable[[], str | None],
) -> None:
    """Wait until the broker at `address` lists all `broker_ids` as unfenced.

    `deadline_s` is a `time.monotonic()`. `give_up` is called between attempts and may return a
    reason to stop. Raise `TimeoutError` in both cases.
    """
    while True:
        reason = give_up()
        known = _brokers_known(address)
        if reason is None and known >= set(broker_ids):
            return
        if reason is None and time.monotonic() > deadline_s:
            reason = f"it knows of brokers {sorted(known)} and not of all of {sorted(broker_ids)}"
        if reason is not None:
            raise TimeoutError(f"{address} is not ready: {reason}")
        time.sleep(POLL_INTERVAL_S)


def _brokers_known(address: str) -> set[int]:
    """Return the unfenced brokers of a Metadata response, or none without a response."""
    try:
        with RawConnection(address, timeout_s=5) as connection:
            versions = connection.call("api_versions", 0)
            if versions.error_code != ErrorCode.none:
                return set()
            return {broker.node_id for broker in connection.call("metadata", 9, topics=[]).brokers}
    except (OSError, ConnectionClosedByBrokerError):
        return set()


def is_listening(address: str) -> bool:
    """Whether a broker accepts connections at `host:port`."""
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
    """Create a topic and wait until each partition has a leader. Raise `TopicCreationError`.

    `assignment` lists the replicas of each partition, instead of the two counts.
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
    """Grow a topic to `partitions` and wait for leaders. Raise `TopicCreationError`."""
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
    """Wait until every broker knows the result, since the controller responds earlier."""
    deadline_s = time.monotonic() + TOPIC_TIMEOUT_S
    while not _is_served(connection, name, partitions):
        if time.monotonic() > deadline_s:
            raise TopicCreationError(f"{name}: some partitions have no leader after the timeout")
        time.sleep(POLL_INTERVAL_S)


def _is_served(connection: RawConnection, name: str, partitions: int) -> bool:
    """Whether every broker names every leader, and each leader serves.

    A broker publishes a topic's metadata shortly before it serves the partitions, and brokers learn
    of it at different times: a consumer that fetches too early gets an error.
    """
    leaders = _leaders(connection, name)
    if len(leaders) != partitions or any(leader < 0 for leader in leaders):
        return False
    brokers = connection.call("metadata", 9, topics=[]).brokers
    addresses = {b.node_id: f"{b.host}:{b.port}" for b in brokers}
    return all(leader in addresses for leader in leaders) and all(
        _answers(address, name, leaders, [p for p, led in enumerate(leaders) if led == node_id])
        for node_id, address in addresses.items()
    )


def _leaders(connection: RawConnection, name: str) -> list[int]:
    """Return the leaders of a topic's partitions in order, as one broker knows them."""
    metadata = connection.call(
        "metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=False
    )
    (topic,) = metadata.topics
    ordered = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return [partition.leader_id for partition in ordered]


def _answers(address: str, name: str, leaders: list[int], partitions: list[int]) -> bool:
    """Whether a broker knows these leaders and serves the partitions that it leads."""
    asked = [{"partition_index": p, "timestamp": -1} for p in partitions]
    try:
        with RawConnection(address) as broker:
            if _leaders(broker, name) != leaders:
                return False
            if not asked:
                return True
            offsets = broker.call(
                "list_offsets", 4, replica_id=-1, topics=[{"name": name, "partitions": asked}]
            )
    except (OSError, ConnectionClosedByBrokerError):
        # The leader is gone and not replaced yet.
        return False
    (topic,) = offsets.topics
    return all(partition.error_code == ErrorCode.none for partition in topic.partitions)
