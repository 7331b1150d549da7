"""A cluster with lanes and a fork server that is warm: all that cases need.

Purpose: open and close them together. Invariant: what the server has done to get warm is not in the
lanes of cases. What it must not know: cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from integration.clusters import Cluster
from integration.failpoints.lanes import Lanes
from integration.failpoints.parts import Sink, TaskPart
from integration.failpoints.processes import ForkServer

_TOPIC = "warm-up"
_PROPERTIES = {
    "spark.jobGroup.id": "warm-up",
    "sql.streaming.queryId": "warm-up",
    "streaming.sql.batchId": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a case runs with."""

    server: ForkServer
    lanes: Lanes


@contextmanager
def open_session(cluster: Cluster, *, name: str) -> Iterator[Session]:
    """On a cluster with `lanes.SETTINGS`; topics are called after `name`."""
    with ForkServer() as server, Lanes(cluster, name=name) as lanes:
        _warm_up(server, cluster, f"{name}.{_TOPIC}")
        yield Session(server=server, lanes=lanes)


def _warm_up(server: ForkServer, cluster: Cluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=1)
    sink = Sink(
        options={
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
            "topic": topic,
            "transactionalId": topic,
            "commitTopic": f"{topic}.commits",
        },
        is_streaming=True,
    )
    planned = server.warm_up("plan", sink)
    task = TaskPart(
        partition=0, attempt=0, task_attempt_id=0, properties=_PROPERTIES, rows=[(b"row", 0)]
    )
    message = server.warm_up("write", planned, task)
    server.warm_up("commit", sink, planned, (message,), 0)
