"""Tests of one fetcher and its partitions; the test simulates the leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from broker_ref.config import BrokerConfig
from broker_ref.controller.metadata import ClusterMetadata, Topic
from broker_ref.events import Channel
from broker_ref.log.errors import LogError
from broker_ref.replication.follower_messages import (
    FetchedPartition,
    FetchedTopic,
    FetchResponse,
    ListedPartition,
    ListedTopic,
    ListOffsetsResponse,
)
from broker_ref.replication.replica_fetcher import FetcherContext, ReplicaFetcher
from broker_ref.replication.replication_quota_manager import (
    FOLLOWER_REPLICAS,
    SAMPLE_MS,
    SAMPLES,
    ReplicationQuotaManager,
)
from broker_ref.schedule import Schedule

TOPIC_ID = UUID(int=7)
BACKOFF_MS = BrokerConfig().replica_fetch_backoff_ms


class Replica:
    """The fetcher's view of a partition; its next changes raise the exceptions in `errors`."""

    leader_epoch = 3
    high_watermark = 0

    def __init__(self, index: int) -> None:
        self.metadata = SimpleNamespace(topic_id=TOPIC_ID, topic="t", partition=index)
        self.key = SimpleNamespace(topic="t", partition=index)
        self.log = SimpleNamespace(
            log_start_offset=0,
            log_end_offset=0,
            leader_epochs=SimpleNamespace(latest=None),
            storage_error=None,
        )
        self.errors: list[Exception] = []

    def append_as_follower(self, records: bytes, **_: object) -> None:
        self.truncate_to(self.log.log_end_offset + len(records))

    def truncate_to(self, offset: int, **_: object) -> None:
        if self.errors:
            raise self.errors.pop()
        self.log.log_end_offset = offset


class Leader:
    """A fetcher and its requests, in one session."""

    def __init__(self, *replicas: Replica) -> None:
        self.now_ms = 0
        self.requests: list[Any] = []
        self.schedule = Schedule(0)
        self.metadata = ClusterMetadata()
        self.quota = ReplicationQuotaManager(
            broker_id=2,
            metadata=self.metadata,
            replicas_config=FOLLOWER_REPLICAS,
            clock=lambda: self.now_ms,
        )
        outbox: Any = SimpleNamespace(send=lambda _, **fields: self.requests.append(fields))
        self.fetcher = ReplicaFetcher(
            context=FetcherContext(
                config=BrokerConfig(),
                quota=self.quota,
                outbox=outbox,
                schedule=self.schedule,
                broker_epoch=lambda: 1,
                clock=lambda: self.now_ms,
            ),
            channel=Channel(node_id=1, host="leader", port=1, purpose="fetcher"),
        )
        for replica in replicas:
            followed: Any = replica
            self.fetcher.add_partition(followed)
        self.fetcher.maybe_fetch()

    def respond(self, *indexes: int) -> None:
        """Respond with one byte for each of these partitions."""
        got = [
            FetchedPartition(
                partition_index=index, error_code=ErrorCode.none, high_watermark=0, records=b"x"
            )
            for index in indexes
        ]
        self.respond_with(*got)

    def respond_with(self, *got: FetchedPartition) -> None:
        topic = FetchedTopic(topic_id=TOPIC_ID, partitions=got)
        response = FetchResponse(error_code=ErrorCode.none, session_id=5, responses=(topic,))
        self.requests[-1]["on_response"](response)

    def last_request(self) -> tuple[list[tuple[int, int]], list[int]]:
        """Return the (partition, offset) pairs and the forgotten partitions of the last request."""
        request = self.requests[-1]["request"]
        return (
            [(p.partition, p.fetch_offset) for topic in request.topics for p in topic.partitions],
            [index for topic in request.forgotten_topics_data for index in topic.partitions],
        )

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.schedule.run(self.now_ms)


@pytest.mark.parametrize(
    ("error", "has_traceback"),
    [(RuntimeError("a bug"), True), (LogError(ErrorCode.corrupt_message, "damaged"), False)],
)
def test_failing_partition_is_delayed_and_others_continue(
    error: Exception, has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Replica(0), Replica(1)
    bad.errors.append(error)
    leader = Leader(bad, good)
    leader.respond(0, 1)
    assert (bad.log.log_end_offset, good.log.log_end_offset) == (0, 1)
    assert leader.last_request() == ([(1, 1)], [0])
    assert str(error) in caplog.text
    assert ("Traceback" in caplog.text) == has_traceback
    leader.respond(1)
    leader.pass_time(BACKOFF_MS)
    leader.respond(1)
    assert leader.last_request() == ([(0, 0), (1, 3)], [])
    leader.respond(0)
    assert bad.log.log_end_offset == 1


def test_failing_truncation_does_not_stop_other_partitions() -> None:
    bad, good = Replica(0), Replica(1)
    bad.log.log_end_offset = 5
    bad.errors.append(RuntimeError("a bug, before the first fetch"))
    leader = Leader(bad, good)
    assert leader.last_request() == ([(1, 0)], [])
    leader.respond(1)
    leader.pass_time(BACKOFF_MS)
    leader.respond(1)
    assert leader.last_request() == ([(0, 5), (1, 2)], [])
    bad.errors.append(RuntimeError("a bug, after the leader returned its end offset"))
    leader.respond_with(
        FetchedPartition(
            partition_index=0, error_code=ErrorCode.offset_out_of_range, high_watermark=-1
        )
    )
    listed = ListedPartition(partition_index=0, error_code=ErrorCode.none, offset=2)
    topic = ListedTopic(name="t", partitions=(listed,))
    leader.requests[-2]["on_response"](ListOffsetsResponse(topics=(topic,)))
    assert (bad.errors, leader.last_request()) == ([], ([], [0]))
    leader.pass_time(BACKOFF_MS)
    leader.respond(1)
    assert leader.last_request() == ([(0, 5), (1, 3)], [])


def test_partition_that_is_delayed_twice_is_not_fetched_after_its_removal() -> None:
    """Its log start offset changes while the offsets of the leader are listed."""
    replica: Any = Replica(0)
    leader = Leader(replica)
    out_of_range = FetchedPartition(
        partition_index=0, error_code=ErrorCode.offset_out_of_range, high_watermark=-1
    )
    leader.respond_with(out_of_range)
    first = leader.requests[-1]
    leader.fetcher.update_log_start_offset(replica)
    leader.fetcher.maybe_fetch()
    leader.respond_with(out_of_range)
    second = leader.requests[-1]
    assert first["api_key"] == second["api_key"] != leader.requests[0]["api_key"]
    for listed in (first, second):
        listed["on_failure"]("the connection is lost")
    leader.fetcher.remove_partition(replica)
    sent = len(leader.requests)
    leader.pass_time(BACKOFF_MS)
    assert len(leader.requests) == sent


def test_throttled_partitions_wait_while_the_quota_is_exceeded() -> None:
    leader = Leader(Replica(0), Replica(1), Replica(2))
    configs = {FOLLOWER_REPLICAS: "0:2,1:3,2:2"}
    leader.metadata.topics["t"] = Topic(name="t", topic_id=TOPIC_ID, configs=configs)
    leader.quota.limit = 5

    def respond(*indexes: int, high_watermark: int) -> None:
        leader.respond_with(
            *(
                FetchedPartition(
                    partition_index=index,
                    error_code=ErrorCode.none,
                    high_watermark=high_watermark,
                    records=bytes(100),
                )
                for index in indexes
            )
        )

    respond(0, 1, high_watermark=1_000)
    assert leader.last_request() == ([(1, 100)], [0, 2])
    leader.pass_time(BACKOFF_MS)  # The rate is still 100 bytes/s.
    respond(1, high_watermark=1_000)
    assert leader.last_request() == ([(1, 200)], [])
    for _ in range(SAMPLES):
        leader.pass_time(SAMPLE_MS)
    respond(1, high_watermark=1_000)
    assert leader.last_request() == ([(2, 0), (0, 100), (1, 300)], [])
    respond(0, high_watermark=200)
    assert leader.last_request() == ([(0, 200)], [2]), "a replica in sync is not throttled"
    leader.respond_with(
        FetchedPartition(
            partition_index=0, error_code=ErrorCode.unknown_server_error, high_watermark=-1
        )
    )
    leader.pass_time(BACKOFF_MS)
    respond(1, high_watermark=1_000)
    assert leader.last_request() == ([(0, 200), (1, 400)], []), "nor after an error"


def test_rate_is_the_average_of_the_last_samples() -> None:
    leader = Leader()
    leader.quota.record(100)
    assert not leader.quota.is_quota_exceeded(), "no limit is set"
    leader.quota.limit = 50
    assert leader.quota.is_quota_exceeded()
    leader.now_ms = 2 * SAMPLE_MS
    assert not leader.quota.is_quota_exceeded()
    leader.quota.record(1)
    assert leader.quota.is_quota_exceeded()
    leader.now_ms = (SAMPLES + 1) * SAMPLE_MS
    leader.quota.limit = 0
    assert leader.quota.is_quota_exceeded()
    leader.now_ms = (SAMPLES + 2) * SAMPLE_MS
    assert not leader.quota.is_quota_exceeded()
