"""Measures how long callbacks block the event loops of the reference cluster.

Runs three brokers and a controller, each in its own process, with thousands of partitions, groups
and transactional ids, and performs operations that affect all partitions, groups or ids.
`loop_stalls` reports the callbacks that blocked an event loop, with their stacks.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration.benchmarks import cluster_partitions, cluster_transactions, loop_stalls
from integration.benchmarks.loop_stalls import Stall
from integration.clusters.reference_processes import ReferenceProcessesCluster
from integration.raw import RawConnection, request

STALL_TOPICS: Final = 400
STALL_PARTITIONS: Final = 4

_PERIOD_MS: Final = 5_000
_CONFIGS: Final = {
    # Periodic tasks with these intervals run several times during the benchmark.
    "log.cleaner.backoff.ms": str(_PERIOD_MS),
    "log.flush.offset.checkpoint.interval.ms": str(_PERIOD_MS),
    "log.retention.check.interval.ms": str(_PERIOD_MS),
    "offsets.retention.check.interval.ms": str(_PERIOD_MS),
    "replica.high.watermark.checkpoint.interval.ms": str(_PERIOD_MS),
    "offsets.topic.num.partitions": "1",
    **cluster_transactions.STATE_TOPIC_SETTINGS,
}
_TIMEOUT_S: Final = 600.0
_AT_ONCE: Final = 8
_GROUP_KEY: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """An operation, and the callbacks that blocked an event loop during the operation."""

    name: str
    stalls: tuple[Stall, ...]


def phases(*, topics: int, partitions: int, ids: int) -> Iterator[Phase]:
    """Run each operation, and yield the callbacks that blocked an event loop during the operation.

    The operations create `topics` small topics, one large topic with `partitions` partitions, and
    `ids` groups and transactional ids.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "stalls"
        program = ("-P", loop_stalls.__file__, str(report))
        with ReferenceProcessesCluster(brokers=3, configs=_CONFIGS, program=program) as cluster:
            reported = len(loop_stalls.read_stalls(report))  # Ignore stalls from startup imports.
            operations = _operations(cluster, topics=topics, partitions=partitions, ids=ids)
            for name, operation in operations.items():
                operation()
                stalls = loop_stalls.read_stalls(report)
                yield Phase(name=name, stalls=tuple(stalls[reported:]))
                reported = len(stalls)


def _operations(
    cluster: ReferenceProcessesCluster, *, topics: int, partitions: int, ids: int
) -> dict[str, Callable[[], object]]:
    names = [f"small-{number}" for number in range(topics)]

    def create() -> None:
        cluster_partitions.create_topics(cluster, names, 1)
        cluster_partitions.create_topics(cluster, ["large"], partitions)
        cluster_partitions.await_served(cluster, {**dict.fromkeys(names, 1), "large": partitions})

    def restart() -> None:
        cluster.stop_broker(2)
        cluster.start_broker(2)
        cluster_partitions.await_in_sync(cluster)

    def fail_over() -> None:
        cluster.kill_broker(3)
        cluster_partitions.await_fenced(cluster, 3)
        cluster.start_broker(3)
        cluster_partitions.await_in_sync(cluster)

    def restart_controller() -> None:
        cluster.stop_controller()
        cluster.start_controller()
        cluster_partitions.create_topics(cluster, ["after-restart"], 1)

    return {
        "creation and deletion of topics": lambda: cluster_partitions.creation_stalls(
            cluster, topics=STALL_TOPICS, partitions=STALL_PARTITIONS
        ),
        "creation of all partitions": create,
        "Metadata": lambda: _send(cluster, "metadata", 12, topics=None),
        "DescribeTopicPartitions": lambda: _send(
            cluster,
            "describe_topic_partitions",
            0,
            topics=[{"name": "large"}],
            response_partition_limit=2_000,
            cursor=None,
        ),
        "DescribeConfigs": lambda: _send(
            cluster,
            "describe_configs",
            4,
            resources=[
                {"resource_type": 2, "resource_name": name, "configuration_keys": None}
                for name in names
            ],
            include_synonyms=False,
            include_documentation=False,
        ),
        "periodic tasks": lambda: time.sleep(3 * _PERIOD_MS / 1000),
        "consumer of all partitions": lambda: cluster_partitions.session_fetch_ms(
            cluster, ("large", 0), records=20
        ),
        "restart of a broker": restart,
        "failure of a broker": fail_over,
        "restart of the controller": restart_controller,
        "commits of groups": lambda: _commit_offsets(cluster, names[0], ids),
        "failure of the coordinators": lambda: cluster_transactions.coordinator_failover(
            cluster, ids
        ),
    }


def _send(cluster: ReferenceProcessesCluster, api: str, version: int, **fields: object) -> None:
    """Send a request without decoding the response.

    Decoding the response would take longer than the broker takes to process the request.
    """
    with RawConnection(cluster.address(cluster.broker_ids[0]), timeout_s=_TIMEOUT_S) as broker:
        broker.send_only(request(api, version, **fields))
        broker.receive_frame()


def _commit_offsets(cluster: ReferenceProcessesCluster, topic: str, groups: int) -> None:
    coordinator = cluster_transactions.coordinator(cluster, "group-0", _GROUP_KEY)

    def commit(first: int) -> None:
        with RawConnection(cluster.address(coordinator), timeout_s=_TIMEOUT_S) as broker:
            for number in range(first, groups, _AT_ONCE):
                broker.call(
                    "offset_commit",
                    8,
                    group_id=f"group-{number}",
                    generation_id_or_member_epoch=-1,
                    member_id="",
                    topics=[
                        {
                            "name": topic,
                            "partitions": [
                                {
                                    "partition_index": 0,
                                    "committed_offset": 0,
                                    "committed_metadata": "",
                                }
                            ],
                        }
                    ],
                )

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(commit, range(_AT_ONCE)))
