"""The fork server and the lanes of a cluster: all that cases need.

Purpose: open and close them together. Invariant: the server's warm-up writes to its own topic. What
it must not know: cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from integration.clusters import Cluster
from integration.failpoints.lanes import Lanes
from integration.failpoints.processes import ForkServer
from integration.failpoints.sink_calls import Sink, TaskInput

_TOPIC = "warm-up"
_PROPERTIES = {
    "spark.jobGroup.id": "warm-up",
    "sql.streaming.queryId": "warm-up",
    "streaming.sql.batchId": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The resources of a case."""

    server: ForkServer
    lanes: Lanes


@contextmanager
def open_session(cluster: Cluster, *, name: str) -> Iterator[Session]:
    """Open a session on a cluster with `lanes.SETTINGS`; topic names start with `name`."""
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
    task = TaskInput(
        partition=0, attempt=0, task_attempt_id=0, properties=_PROPERTIES, rows=[(b"row", 0)]
    )
    message = server.warm_up("write", planned, task)
    server.warm_up("commit", sink, planned, (message,), 0)
