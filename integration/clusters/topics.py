"""What every backend asks of its brokers over the wire: are you ready, create or grow this topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from kio.schema.errors import ErrorCode

from integration.raw import ConnectionClosedByBroker, RawConnection

POLL_INTERVAL_S = 0.02
TOPIC_TIMEOUT_S = 60.0


class TopicNotCreated(Exception):  # noqa: N818
    """The cluster refused a topic or its partitions; names topic, error code and the broker's message."""


def await_brokers(
    bootstrap_server: str, *, count: int, deadline_s: float, give_up: Callable[[], str | None]
) -> None:
    """Return once this broker answers and knows `count` brokers.

    `deadline_s` is a `time.monotonic()`. `give_up` is asked between attempts and may name a
    reason to stop. Raises `TimeoutError` in both cases.
    """
    while True:
        reason = give_up()
        if reason is None and time.monotonic() > deadline_s:
            reason = "it did not answer in time"
        if reason is not None:
            raise TimeoutError(f"the broker at {bootstrap_server} is not ready: {reason}")
        if _brokers_known(bootstrap_server) >= count:
            return
        time.sleep(POLL_INTERVAL_S)


def _brokers_known(bootstrap_server: str) -> int:
    try:
        with RawConnection(bootstrap_server, timeout_s=5) as connection:
            versions = connection.call("api_versions", 0)
            if versions.error_code != ErrorCode.none:
                return 0
            return len(connection.call("metadata", 9, topics=[]).brokers)
    except (OSError, ConnectionClosedByBroker):
        return 0


def create_topic(
    bootstrap_server: str,
    name: str,
    *,
    partitions: int,
    replication_factor: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create a topic and wait until each partition has a leader; raises `TopicNotCreated`."""
    with RawConnection(bootstrap_server) as connection:
        response = connection.call(
            "create_topics",
            5,
            timeout=int(TOPIC_TIMEOUT_S * 1000),
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": replication_factor,
                    "configs": [{"name": k, "value": v} for k, v in (configs or {}).items()],
                }
            ],
        )
        (result,) = response.topics
        if result.error_code != ErrorCode.none:
            raise TopicNotCreated(f"{name}: {result.error_code.name}: {result.error_message}")
        _await_served(connection, name, partitions)


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
    with RawConnection(address) as leader:
        offsets = leader.call(
            "list_offsets",
            4,
            replica_id=-1,
            topics=[
                {
                    "name": name,
                    "partitions": [{"partition_index": p, "timestamp": -1} for p in partitions],
                }
            ],
        )
    (topic,) = offsets.topics
    return all(partition.error_code == ErrorCode.none for partition in topic.partitions)
