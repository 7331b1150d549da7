"""Benchmark with many partitions on the reference cluster and on Apache Kafka.

`creation_stalls` creates and deletes many topics, and measures how long Metadata requests take
during these operations. `growth` adds partitions to the cluster in steps. It measures the latencies
of one partition after each step, and finally restarts a broker.

Invariant: both backends are measured with the same client.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import confluent_kafka
from kio.schema.errors import ErrorCode

from integration.benchmarks.processes import descendants, resident_bytes
from integration.clusters import Cluster
from integration.raw import ConnectionClosedByBrokerError, RawConnection, request

REPLICATION_FACTOR: Final = 3

_TIMEOUT_S: Final = 600.0
_PAUSE_S: Final = 0.02
_POLL_S: Final = 0.5
_TOPICS_AT_ONCE: Final = 400
_WARM_UP: Final = 20
_RECORD: Final = b"x" * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Stalls:
    """The longest durations of Metadata requests while topics are created and deleted.

    `created_s` is the time from the first CreateTopics request until the leaders of all partitions
    serve requests. `fewest_brokers` is the smallest number of unfenced brokers in any Metadata
    response.
    """

    creation_s: float
    created_s: float
    deletion_s: float
    fewest_brokers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthStep:
    """The measurements of one step, after which the cluster has `partitions` partitions.

    `created_s` is the time taken to create the partitions that this step adds. `acks_all_ms` and
    `acks_all_p99_ms` are the median and the 99th percentile of the latency of a single record with
    `acks=all`. `session_ms` is the latency from a producer to a consumer whose fetch session
    contains all partitions that have the same leader. `metadata_ms` is the duration of a Metadata
    request for all topics, and `resident_bytes` is the resident memory of all nodes. `restart_s`
    is the time from the clean shutdown of a broker until its replicas are in sync again. Only the
    last step measures `restart_s`; in all other steps, the value is None.
    """

    partitions: int
    created_s: float
    acks_all_ms: float
    acks_all_p99_ms: float
    session_ms: float
    metadata_ms: float
    resident_bytes: int
    restart_s: float | None


def creation_stalls(cluster: Cluster, *, topics: int, partitions: int) -> Stalls:
    """Create topics, and then delete them in one request, while Metadata requests are sent."""
    names = [f"stalls-{number}" for number in range(topics)]
    with _metadata_requests(cluster) as creating:
        started_s = time.perf_counter()
        create_topics(cluster, names, partitions)
        await_served(cluster, dict.fromkeys(names, partitions))
        created_s = time.perf_counter() - started_s
    with _metadata_requests(cluster) as deleting:
        with RawConnection(cluster.address(cluster.broker_ids[0]), timeout_s=_TIMEOUT_S) as broker:
            deleted = broker.call(
                "delete_topics", 4, timeout=int(_TIMEOUT_S * 1000), topic_names=names
            )
        _require_success(result.error_code for result in deleted.responses)
        # The brokers remove the logs after they have responded.
        time.sleep(created_s)
    return Stalls(
        creation_s=creating.longest_s,
        created_s=created_s,
        deletion_s=deleting.longest_s,
        fewest_brokers=min(creating.fewest_brokers, deleting.fewest_brokers),
    )


def growth(cluster: Cluster, counts: tuple[int, ...], *, records: int) -> Iterator[GrowthStep]:
    """Increase the number of partitions to each of `counts`, and measure the cluster each time."""
    measured = "growth-0"
    existing = 0
    for count in counts:
        started_s = time.perf_counter()
        name = f"growth-{existing}"
        create_topics(cluster, [name], count - existing)
        await_served(cluster, {name: count - existing})
        created_s = time.perf_counter() - started_s
        existing = count
        latencies_ms = _acks_all_ms(cluster, measured, records)
        yield GrowthStep(
            partitions=count,
            created_s=created_s,
            acks_all_ms=statistics.median(latencies_ms),
            acks_all_p99_ms=statistics.quantiles(latencies_ms, n=100)[98],
            session_ms=session_fetch_ms(cluster, (measured, 0), records=records),
            metadata_ms=_metadata_ms(cluster),
            resident_bytes=sum(resident_bytes(pid) or 0 for pid in descendants()),
            restart_s=_restart_s(cluster) if count == counts[-1] else None,
        )


@dataclass(slots=True)
class _MetadataTimes:
    longest_s: float = 0.0
    fewest_brokers: int = 1 << 30


@contextmanager
def _metadata_requests(cluster: Cluster) -> Iterator[_MetadataTimes]:
    """Send Metadata requests that list no topics to all brokers, one at a time to each broker."""
    times = _MetadataTimes()
    ended = threading.Event()

    def send(address: str) -> None:
        with RawConnection(address, timeout_s=_TIMEOUT_S) as broker:
            while not ended.is_set():
                started_s = time.perf_counter()
                metadata = broker.call("metadata", 9, topics=[])
                times.longest_s = max(times.longest_s, time.perf_counter() - started_s)
                times.fewest_brokers = min(times.fewest_brokers, len(metadata.brokers))
                ended.wait(_PAUSE_S)

    threads = [
        threading.Thread(target=send, args=(cluster.address(broker_id),))
        for broker_id in cluster.broker_ids
    ]
    for thread in threads:
        thread.start()
    try:
        yield times
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def create_topics(cluster: Cluster, names: list[str], partitions: int) -> None:
    """Create many topics with each CreateTopics request. Raises `SystemExit` after an error."""
    with RawConnection(cluster.address(cluster.broker_ids[0]), timeout_s=_TIMEOUT_S) as broker:
        for first in range(0, len(names), _TOPICS_AT_ONCE):
            created = broker.call(
                "create_topics",
                5,
                timeout=int(_TIMEOUT_S * 1000),
                topics=[
                    {
                        "name": name,
                        "num_partitions": partitions,
                        "replication_factor": REPLICATION_FACTOR,
                        "assignments": [],
                        "configs": [],
                    }
                    for name in names[first : first + _TOPICS_AT_ONCE]
                ],
            )
            _require_success(result.error_code for result in created.topics)


def _require_success(error_codes: Iterator[ErrorCode]) -> None:
    failures = {code.name for code in error_codes if code is not ErrorCode.none}
    if failures:
        raise SystemExit(f"the cluster rejected topics: {', '.join(sorted(failures))}")


def await_served(cluster: Cluster, partitions: dict[str, int]) -> None:
    """Wait until each broker serves the partitions that it leads."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    for broker_id in cluster.broker_ids:
        while True:
            started_s = time.monotonic()
            if _serves(cluster.address(broker_id), broker_id, partitions):
                break
            if started_s > deadline_s:
                raise SystemExit(f"broker {broker_id} does not serve all of its partitions")
            # Decoding takes CPU time from the brokers, so wait at least as long as the check took.
            time.sleep(max(_PAUSE_S, time.monotonic() - started_s))


def _serves(address: str, broker_id: int, partitions: dict[str, int]) -> bool:
    try:
        with RawConnection(address, timeout_s=_TIMEOUT_S) as broker:
            metadata = broker.call(
                "metadata",
                9,
                topics=[{"name": name} for name in partitions],
                allow_auto_topic_creation=False,
            )
            led = {
                topic.name: [
                    p.partition_index for p in topic.partitions if p.leader_id == broker_id
                ]
                for topic in metadata.topics
            }
            known = sum(p.leader_id >= 0 for topic in metadata.topics for p in topic.partitions)
            if known < sum(partitions.values()):
                return False
            offsets = broker.call(
                "list_offsets",
                4,
                replica_id=-1,
                topics=[
                    {
                        "name": name,
                        "partitions": [{"partition_index": p, "timestamp": -1} for p in indexes],
                    }
                    for name, indexes in led.items()
                ],
            )
    except (OSError, ConnectionClosedByBrokerError):
        return False
    return all(p.error_code == ErrorCode.none for topic in offsets.topics for p in topic.partitions)


def await_in_sync(cluster: Cluster) -> None:
    """Wait until all replicas of all partitions are in sync."""
    _await(
        cluster,
        lambda metadata: all(
            len(partition.isr_nodes) == len(partition.replica_nodes)
            for topic in metadata.topics
            for partition in topic.partitions
        ),
    )


def await_fenced(cluster: Cluster, broker_id: int) -> None:
    """Wait until the metadata from the first broker shows that another broker is fenced."""
    _await(
        cluster,
        lambda metadata: all(broker.node_id != broker_id for broker in metadata.brokers),
        topics=[],
    )


def _await(cluster: Cluster, condition: Callable[[Any], bool], **fields: Any) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    with RawConnection(cluster.address(cluster.broker_ids[0]), timeout_s=_TIMEOUT_S) as broker:
        while not condition(broker.call("metadata", 9, **{"topics": None, **fields})):
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{cluster.version}: the cluster does not recover")
            time.sleep(_POLL_S)


def _restart_s(cluster: Cluster) -> float:
    broker_id = cluster.broker_ids[-1]
    started_s = time.perf_counter()
    cluster.stop_broker(broker_id)
    cluster.start_broker(broker_id)
    await_in_sync(cluster)
    return time.perf_counter() - started_s


def session_fetch_ms(cluster: Cluster, partition: tuple[str, int], *, records: int) -> float:
    """Return the median latency from a producer to a consumer with an incremental fetch session.

    The records are written to `partition`. The fetch session contains all partitions that have the
    same leader as `partition`.
    """
    led = _partitions_with_same_leader(cluster, partition)
    with RawConnection(cluster.address(led.leader), timeout_s=_TIMEOUT_S) as broker:
        ends = broker.call(
            "list_offsets",
            4,
            replica_id=-1,
            topics=[
                {
                    "name": name,
                    "partitions": [{"partition_index": p, "timestamp": -1} for p in indexes],
                }
                for name, indexes in led.partitions.items()
            ],
        )
        offsets = {
            (topic.name, each.partition_index): each.offset
            for topic in ends.topics
            for each in topic.partitions
        }
        session_id = broker.send(_fetch((0, 0), offsets, max_wait=0)).session_id
        broker.send(_fetch((session_id, 1), {}, max_wait=0))
        producer = _producer(cluster)
        taken_ms = []
        for number in range(records + _WARM_UP):
            offset = offsets[partition] + number
            fetch = _fetch((session_id, number + 2), {partition: offset}, max_wait=60_000)
            broker.send_only(fetch)
            started_s = time.perf_counter()
            _send_record(cluster, producer, partition[0], partition[1])
            fetched = broker.receive(fetch)
            taken_ms.append(1000 * (time.perf_counter() - started_s))
            if fetched.error_code is not ErrorCode.none or not fetched.responses:
                raise SystemExit(f"{cluster.version}: a record was not fetched: {fetched}")
    return statistics.median(taken_ms[_WARM_UP:])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Led:
    """A leader, and the partitions that it leads, by topic."""

    leader: int
    partitions: dict[str, list[int]]


def _partitions_with_same_leader(cluster: Cluster, partition: tuple[str, int]) -> _Led:
    with RawConnection(cluster.address(cluster.broker_ids[0]), timeout_s=_TIMEOUT_S) as broker:
        metadata = broker.call("metadata", 9, topics=None)
    leaders = {
        (topic.name, each.partition_index): each.leader_id
        for topic in metadata.topics
        for each in topic.partitions
    }
    leader = leaders[partition]
    by_topic: dict[str, list[int]] = {}
    for (name, index), leader_id in leaders.items():
        if leader_id == leader:
            by_topic.setdefault(name, []).append(index)
    return _Led(leader=leader, partitions=by_topic)


def _fetch(
    session: tuple[int, int], offsets: Mapping[tuple[str, int], int], *, max_wait: int
) -> Any:
    by_topic: dict[str, list[dict[str, int]]] = {}
    for (name, index), offset in offsets.items():
        by_topic.setdefault(name, []).append(
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        )
    return request(
        "fetch",
        12,
        replica_id=-1,
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[{"topic": name, "partitions": found} for name, found in by_topic.items()],
        forgotten_topics_data=[],
        rack_id="",
    )


def _acks_all_ms(cluster: Cluster, topic: str, records: int) -> list[float]:
    """Write single records with acks=all, and return their latencies in milliseconds."""
    producer = _producer(cluster)
    taken_ms = []
    for _ in range(records + _WARM_UP):
        started_s = time.perf_counter()
        _send_record(cluster, producer, topic, 0)
        taken_ms.append(1000 * (time.perf_counter() - started_s))
    return taken_ms[_WARM_UP:]


def _producer(cluster: Cluster) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "log_level": 2,
            "acks": "all",
            "linger.ms": 0,
        }
    )


def _send_record(
    cluster: Cluster, producer: confluent_kafka.Producer, topic: str, partition: int
) -> None:
    failures: list[confluent_kafka.KafkaError] = []
    producer.produce(
        topic, _RECORD, partition=partition, on_delivery=partial(_add_failure, failures)
    )
    if producer.flush(_TIMEOUT_S) or failures:
        raise SystemExit(f"{cluster.version}: a record was not acknowledged: {failures}")


def _add_failure(
    failures: list[confluent_kafka.KafkaError],
    error: confluent_kafka.KafkaError | None,
    _: confluent_kafka.Message,
) -> None:
    if error is not None:
        failures.append(error)


def _metadata_ms(cluster: Cluster) -> float:
    """Return the median time in milliseconds that a broker takes to return all topics."""
    taken_ms = []
    with RawConnection(cluster.address(cluster.broker_ids[0]), timeout_s=_TIMEOUT_S) as broker:
        entity = request("metadata", 9, topics=None)
        for _ in range(5):
            started_s = time.perf_counter()
            broker.send_only(entity)
            broker.receive_frame()
            taken_ms.append(1000 * (time.perf_counter() - started_s))
    return statistics.median(taken_ms)
