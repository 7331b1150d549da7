"""Killed, lost or damaged runs that need an operator, and their repair."""

from __future__ import annotations

from contextlib import suppress

from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.sink.exactly_once.commit_topic import CommitTopic
from pyspark_kafka.sink.exactly_once.operator_repair import (
    RepairRequest,
    check,
    repair,
)
from pyspark_kafka.sink.exactly_once.operator_report import (
    Report,
    examine,
)
from tests.pyspark_kafka.sink.exactly_once.runs import Killed, Run, World, at, kill
from tests.pyspark_kafka.sink.exactly_once.worlds import FakeWorld

COMMIT_TOPIC = "__spark_commits"
RECOVER, FORGET = RepairRequest(), RepairRequest(forget=True)


def run_of(world: World, partitions: int = 1) -> Run:
    return Run(world=world, topic=world.topic(partitions), sink_id=world.name())


def report_of(world: World, sink_id: str) -> Report:
    with world.client("operator") as client:
        return examine(client, sink_id, COMMIT_TOPIC, now_ms=world.now_ms())


def run_repair(world: World, sink_id: str, request: RepairRequest) -> list[str]:
    report, done = report_of(world, sink_id), list[str]()
    check(report, request)
    with world.client("operator") as client:
        repair(client, report, request, done.append)
    return done


def decided_and_killed(world: World, *, partitions: int = 1) -> Run:
    """Return a run whose driver died between the decision for batch 0 (3 rows) and its commit."""
    run = run_of(world, partitions)
    with at("commit.roll_forward.before", kill), suppress(Killed):
        run.write(0, [b"a", b"b"], [b"c"])
    return run


def lost(world: FakeWorld) -> Run:
    """Return the same run after its transactions have timed out."""
    run = decided_and_killed(world)
    world.cluster.advance(run.timeout_ms + 1)
    return run


def unknown(world: FakeWorld) -> Run:
    """Return a decided run of whose transactions no trace is left."""
    run = lost(world)
    for transactional_id in list(world.cluster.ids):
        world.cluster.expire(transactional_id)
    world.cluster.log(TopicPartition(run.topic, 0)).delete_before(5)
    return run


def damaged(world: FakeWorld) -> Run:
    run = run_of(world)
    run.write(0, [b"a"])
    run.begin(1).task(0, [b"b"])
    with world.client("somebody") as client:
        topic = CommitTopic(client, COMMIT_TOPIC, run.sink_id)
        (state,) = topic.read().queries.values()
        topic.write_plain([(key, b"?") for key in state.keys])
    return run
