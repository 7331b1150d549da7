"""What every backend asks of its brokers over the wire: are you ready, create or grow this topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from kio.schema.errors import ErrorCode

from integration.raw import ConnectionClosedByBroker, RawConnection

POLL_INTERVAL_S = 0.02
TOPIC_TIMEOUT_S = 60.0


class TopicNotCreated(Exception):  # noqa: N818
    """The cluster refused a topic or its partitions; names topic, error code and the broker's message."""


def await_brokers(
    address: str,
    *,
    broker_ids: Collection[int],
    deadline_s: float,
    give_up: Callable[[], str | None],
) -> None:
    """Return once the broker at `address` answers and knows all of `broker_ids` as unfenced.

    `deadline_s` is a `time.monotonic()`. `give_up` is asked between attempts and may name a
    reason to stop. Raises `TimeoutError` in both cases.
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
    """Metadata lists brokers that are not fenced; none where it does not answer."""
    try:
        with RawConnection(address, timeout_s=5) as connection:
            versions = connection.call("api_versions", 0)
            if versions.error_code != ErrorCode.none:
                return set()
            return {broker.node_id for broker in connection.call("metadata", 9, topics=[]).brokers}
    except (OSError, ConnectionClosedByBroker):
        return set()


def is_listening(address: str) -> bool:
    """Whether a broker takes connections at `host:port`."""
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
    """Create a topic and wait until each partition has a leader; raises `TopicNotCreated`.

    `assignment` gives the replicas of each partition, in place of the two counts.
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
            raise TopicNotCreated(f"{name}: {result.error_code.name}: {result.error_message}")
        _await_served(connection, name, partitions if assignment is None else len(assignment))


def grow_topic(bootstrap_server: str, name: str, *, partitions: int) -> None:
    """Grow a topic to `partitions` and wait until each has a leader; raises `TopicNotCreated`."""
    with RawConnection(bootstrap_server) as connection:
        response = connection.call(
            "create_partitions",
            3,
            timeout=int(TOPIC_TIMEOUT_S * 1000),
            topics=[{"name": name, "count": partitions, "assignments": None}],
        )
        (result,) = response.results
        if result.error_code != ErrorCode.none:
            raise TopicNotCreated(f"{name}: {result.error_code.name}: {result.error_message}")
        _await_served(connection, name, partitions)


def _await_served(connection: RawConnection, name: str, partitions: int) -> None:
    """A controller answers before every broker has heard of what it did."""
    deadline_s = time.monotonic() + TOPIC_TIMEOUT_S
    while not _is_served(connection, name, partitions):
        if time.monotonic() > deadline_s:
            raise TopicNotCreated(f"{name}: its partitions got no leaders in time")
        time.sleep(POLL_INTERVAL_S)


def _is_served(connection: RawConnection, name: str, partitions: int) -> bool:
    """Whether metadata names every leader and each leader answers.

    A broker publishes a topic's metadata a moment before it serves the partitions.
    """
    metadata = connection.call(
        "metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=False
    )
    (topic,) = metadata.topics
    if len(topic.partitions) != partitions or any(p.leader_id < 0 for p in topic.partitions):
        return False
    leaders = {partition.leader_id for partition in topic.partitions}
    addresses = {b.node_id: f"{b.host}:{b.port}" for b in metadata.brokers}
    return all(
        leader in addresses and _answers(addresses[leader], name, led)
        for leader in leaders
        if (led := [p.partition_index for p in topic.partitions if p.leader_id == leader])
    )


def _answers(address: str, name: str, partitions: list[int]) -> bool:
    asked = [{"partition_index": p, "timestamp": -1} for p in partitions]
    try:
        with RawConnection(address) as leader:
            offsets = leader.call(
                "list_offsets", 4, replica_id=-1, topics=[{"name": name, "partitions": asked}]
            )
    except (OSError, ConnectionClosedByBroker):
        # Gone, and not yet replaced as a leader.
        return False
    (topic,) = offsets.topics
    return all(partition.error_code == ErrorCode.none for partition in topic.partitions)
