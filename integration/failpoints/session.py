"""A session: a fork server and the lanes (`Lane`) of a cluster, which all test cases share.

Invariant: the warm-up of the fork server writes to its own topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from integration.clusters import Cluster, restricted_user
from integration.failpoints.lanes import PREFIXES, Lanes
from integration.failpoints.processes import ForkServer
from integration.failpoints.sink_calls import Sink, TaskInput

_PROPERTIES = {
    "spark.jobGroup.id": "warm-up",
    "sql.streaming.queryId": "warm-up",
    "streaming.sql.batchId": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The resources that cases share."""

    server: ForkServer
    lanes: Lanes


@contextmanager
def open_session(cluster: Cluster, *, name: str, is_secured: bool = False) -> Iterator[Session]:
    """Open a session on a cluster that has the configs in `lanes.SETTINGS`.

    The names of topics contain `name`. With `is_secured`, the sink connects as the restricted user,
    and the cluster must have been opened with `restricted_user.SECURITY` and
    `restricted_user.CONFIGS`.
    """
    connection = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    if is_secured:
        restricted_user.allow(cluster, PREFIXES)
        connection = restricted_user.options(cluster)
    with ForkServer() as server, Lanes(cluster, connection, name=name) as lanes:
        _warm_up(server, cluster, f"{name}.warm-up", connection)
        yield Session(server=server, lanes=lanes)


def _warm_up(
    server: ForkServer, cluster: Cluster, name: str, connection: Mapping[str, str]
) -> None:
    topic = f"{PREFIXES.outputs}{name}"
    cluster.create_topic(topic, partitions=1)
    sink = Sink(
        options={
            **connection,
            "topic": topic,
            "transactionalId": f"{PREFIXES.sink_ids}{name}",
            "commitTopic": f"{PREFIXES.commit_topics}{name}",
        },
        is_streaming=True,
    )
    planned = server.warm_up("plan", sink)
    task = TaskInput(
        partition=0, attempt=0, task_attempt_id=0, properties=_PROPERTIES, rows=[(b"row", 0)]
    )
    message = server.warm_up("write", planned, task)
    server.warm_up("commit", sink, planned, (message,), 0)
