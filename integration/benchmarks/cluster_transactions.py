"""Benchmark of transactions on the reference cluster and on Apache Kafka.

Measures:

- the number of small transactions that one producer commits per second
- the latency from a commit to a `read_committed` consumer
- the time for which transactional ids have no coordinator after the coordinator is killed

The controller detects that the coordinator has failed only when its broker session expires.
Therefore, the time that the next coordinator takes to load the ids is also reported separately.

Invariant: both backends are measured with the same client.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import confluent_kafka
from kio.schema.errors import ErrorCode

from integration.clusters import Cluster
from integration.raw import RawConnection

PARTITIONS: Final = 3
WARM_UP: Final = 20
STATE_TOPIC_SETTINGS: Final = {"transaction.state.log.num.partitions": "1"}
"""The configs for `coordinator_failover`: one broker coordinates all transactional ids."""

_TIMEOUT_S: Final = 120.0
_PAUSE_S: Final = 0.01
_AT_ONCE: Final = 8
_TRANSACTION_KEY: Final = 1
_RECORD: Final = b"x" * 100

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """The duration of a coordinator failover.

    `total_s` is the time from the kill of the old coordinator until the new coordinator responds.
    `loading_s` is the time from the election of the new coordinator until it responds.
    """

    total_s: float
    loading_s: float


def transactions_per_second(cluster: Cluster, topic: str, count: int) -> float:
    """Return how many small transactions per second one producer commits.

    The transactions run one after another. Each writes one record to each of `PARTITIONS`
    partitions.
    """
    producer = _producer(cluster, topic)
    for _ in range(WARM_UP):
        _transaction(producer, topic)
    started_s = time.perf_counter()
    for _ in range(count):
        _transaction(producer, topic)
    return count / (time.perf_counter() - started_s)


def commit_latency_ms(cluster: Cluster, topic: str, count: int) -> float:
    """Return the median latency in ms from a commit to a `read_committed` consumer.

    The latency is the time from the call to `commit_transaction` until the consumer receives the
    record.
    """
    producer = _producer(cluster, topic)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 1000,
        }
    )
    taken_s = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)])
        # The consumer must be fetching before the first transaction ends.
        consumer.poll(1.0)
        for number in range(count + WARM_UP):
            wanted = str(number).encode()
            producer.begin_transaction()
            producer.produce(topic, wanted, partition=0)
            producer.flush(_TIMEOUT_S)
            started_s = time.perf_counter()
            producer.commit_transaction(_TIMEOUT_S)
            _read_until(consumer, wanted)
            taken_s.append(time.perf_counter() - started_s)
    finally:
        consumer.close()
    return 1000 * statistics.median(taken_s[WARM_UP:])


def coordinator_failover(cluster: Cluster, ids: int) -> Failover:
    """Kill the transaction coordinator, and wait until another broker bumps a producer epoch.

    Before the kill, `ids` transactional ids are initialized on the coordinator. After the kill, the
    last of these ids is initialized again on the new coordinator, which bumps its producer epoch.

    The killed broker is not restarted, so the caller must close the cluster.
    """
    first = coordinator(cluster, "t-0")
    epochs = _initialize_all(cluster, first, ids)
    other = next(broker_id for broker_id in cluster.broker_ids if broker_id != first)
    last = f"t-{ids - 1}"
    killed_s = time.perf_counter()
    cluster.kill_broker(first)
    with RawConnection(cluster.address(other), timeout_s=_TIMEOUT_S) as connection:
        found = _eventually(lambda: _other_coordinator(connection, last, first))
    named_s = time.perf_counter()
    with RawConnection(cluster.address(found), timeout_s=_TIMEOUT_S) as connection:
        epoch = _eventually(lambda: _initialized(connection, last))
    served_s = time.perf_counter()
    if epoch <= epochs[last]:
        raise SystemExit(f"{cluster.version}: {last}: epoch {epoch} is not above {epochs[last]}")
    return Failover(total_s=served_s - killed_s, loading_s=served_s - named_s)


def coordinator(cluster: Cluster, key: str, key_type: int = _TRANSACTION_KEY) -> int:
    """Wait until a transactional id or a group has a coordinator, and return the coordinator."""
    with RawConnection(cluster.address(cluster.broker_ids[0]), timeout_s=_TIMEOUT_S) as connection:
        return _eventually(lambda: _coordinator(connection, key, key_type))


def _producer(cluster: Cluster, topic: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "transactional.id": f"benchmark-{topic}",
            "linger.ms": 0,
        }
    )
    producer.init_transactions(_TIMEOUT_S)
    return producer


def _transaction(producer: confluent_kafka.Producer, topic: str) -> None:
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, _RECORD, partition=partition)
    producer.commit_transaction(_TIMEOUT_S)


def _read_until(consumer: confluent_kafka.Consumer, wanted: bytes) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None and message.value() == wanted:
            return
    raise SystemExit(f"the record {wanted!r} was not read within {_TIMEOUT_S:g} s")


def _initialize_all(cluster: Cluster, coordinator: int, ids: int) -> dict[str, int]:
    """Initialize a producer id for each transactional id and return the producer epochs."""

    def some(first: int) -> dict[str, int]:
        with RawConnection(cluster.address(coordinator), timeout_s=_TIMEOUT_S) as connection:
            return {
                name: _eventually(partial(_initialized, connection, name))
                for name in (f"t-{number}" for number in range(first, ids, _AT_ONCE))
            }

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = threads.map(some, range(_AT_ONCE))
    return {name: epoch for part in found for name, epoch in part.items()}


def _initialized(connection: RawConnection, transactional_id: str) -> int | None:
    """Return the producer epoch, or None if the coordinator is busy or not ready."""
    response = connection.call(
        "init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=60_000
    )
    return int(response.producer_epoch) if response.error_code is ErrorCode.none else None


def _other_coordinator(connection: RawConnection, transactional_id: str, dead: int) -> int | None:
    found = _coordinator(connection, transactional_id)
    return None if found == dead else found


def _coordinator(
    connection: RawConnection, key: str, key_type: int = _TRANSACTION_KEY
) -> int | None:
    response: Any = connection.call("find_coordinator", 3, key=key, key_type=key_type)
    return int(response.node_id) if response.error_code is ErrorCode.none else None


def _eventually(look: Callable[[], Found | None]) -> Found:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline_s:
        found = look()
        if found is not None:
            return found
        time.sleep(_PAUSE_S)
    raise SystemExit(f"no coordinator responded within {_TIMEOUT_S:g} s")
