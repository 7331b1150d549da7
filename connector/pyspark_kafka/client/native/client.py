"""`KafkaClient` over the wire client: questions and ranges; it does not write yet.

Purpose: the port's answers, one connection for each broker. Invariant: nothing is ever created on
the cluster by asking. What it must not know: Spark, and how its answers are used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from pyspark_kafka.client.base import (
    EARLIEST,
    LATEST,
    FetchRange,
    IsolationLevel,
    OffsetQuery,
    TopicDescription,
    TopicPartition,
)
from pyspark_kafka.client.fetch_faults import ExistingOffsets, RangeFaults
from pyspark_kafka.client.native.fetch import RangeReader
from pyspark_kafka.options import ClientOptions
from pyspark_kafka.wire.opening import Opening
from pyspark_kafka.wire.questions import Questions, raise_missing
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.router import Router
from pyspark_kafka.wire.transport import Address

_API_TIMEOUT_MS: Final = "60000"
_EXPLAINING_S: Final = 5.0
"""How long to ask for what an error is going to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeReads:
    """The reading half of `KafkaClient`. One thread, one process."""

    router: Router
    questions: Questions
    poll_timeout_ms: int
    rack: str = field(default="")

    @classmethod
    def of(cls, options: ClientOptions, clock: Clock | None = None) -> Self:
        """Open nothing yet: brokers are connected to when they are asked."""
        bootstrap = [Address.parse(each) for each in options.bootstrap_servers.split(",")]
        opening = Opening(
            client_id=options.kafka.get("client.id", "pyspark-kafka"), clock=clock or Clock()
        )
        router = Router(bootstrap, opening)
        timeout_ms = options.kafka.get("default.api.timeout.ms", _API_TIMEOUT_MS)
        questions = Questions(
            router=router,
            bootstrap_servers=options.bootstrap_servers,
            api_timeout_s=int(timeout_ms) / 1000,
            retries=options.fetch_offset_num_retries,
            retry_interval_s=options.fetch_offset_retry_interval_ms / 1000,
        )
        return cls(
            router=router,
            questions=questions,
            poll_timeout_ms=options.poll_timeout_ms,
            rack=options.kafka.get("client.rack", ""),
        )

    def list_topics(self) -> Collection[str]:
        return self.questions.list_topics()

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        return self.questions.describe_topics(topics)

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        return self.questions.list_offsets(queries, isolation_level)

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        return self.questions.committed_offsets(group_id, partitions)

    def fetch(
        self, fetch_range: FetchRange, columns: tuple[str, ...], isolation_level: IsolationLevel
    ) -> Iterator[pa.RecordBatch]:
        partition = fetch_range.topic_partition
        return RangeReader(
            faults=RangeFaults(
                fetch_range=fetch_range,
                isolation_level=isolation_level,
                bootstrap_servers=self.questions.bootstrap_servers,
                poll_timeout_ms=self.poll_timeout_ms,
            ),
            columns=columns,
            router=self.router,
            existing_offsets=lambda: self._existing_offsets(partition),
            check_existence=lambda: self._check_existence(partition),
            rack=self.rack,
        ).batches()

    def close(self) -> None:
        self.router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_existence(self, partition: TopicPartition) -> None:
        deadline = self.router.clock.now() + _EXPLAINING_S
        metadata = self.router.refresh([partition.topic], deadline=deadline)
        raise_missing(metadata, [partition], self.questions.bootstrap_servers)

    def _existing_offsets(self, partition: TopicPartition) -> ExistingOffsets:
        explaining = Questions(
            router=self.router,
            bootstrap_servers=self.questions.bootstrap_servers,
            api_timeout_s=min(_EXPLAINING_S, self.questions.api_timeout_s),
            retries=self.questions.retries,
            retry_interval_s=self.questions.retry_interval_s,
        )

        def ask(query: int, isolation_level: IsolationLevel) -> int:
            offset = explaining.list_offsets({partition: query}, isolation_level)[partition]
            assert offset is not None  # only a timestamp can have no offset
            return offset

        return ExistingOffsets(
            log_start_offset=ask(EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            last_stable_offset=ask(LATEST, IsolationLevel.READ_COMMITTED),
            high_watermark=ask(LATEST, IsolationLevel.READ_UNCOMMITTED),
        )
