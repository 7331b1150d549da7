"""The `KafkaClient` of the `native` engine, which uses the router in `wire`.

Invariant: a read never creates topics. Only a producer may create them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Self
from uuid import UUID

import pyarrow as pa

from pyspark_kafka.client.fetch_errors import FetchErrors
from pyspark_kafka.client.native.fetch import RangeReader
from pyspark_kafka.client.native.fetch_sizes import FetchSizes
from pyspark_kafka.client.native.producer_pool import ProducerPool
from pyspark_kafka.client.native.producer_settings import ProducerSettings
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.errors import UnknownTopicOrPartitionError
from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel, OffsetQuery
from pyspark_kafka.kafka.topics import TopicDescription, TopicPartition
from pyspark_kafka.wire.cluster_queries import ClusterQueries, raise_if_missing
from pyspark_kafka.wire.dialer import Dialer
from pyspark_kafka.wire.metadata import topic_id_of, topic_id_text
from pyspark_kafka.wire.retry import Clock
from pyspark_kafka.wire.router import Router
from pyspark_kafka.wire.transport import Address, connect

if TYPE_CHECKING:
    from pyspark_kafka.client.native.producer import NativeProducer

_DIAGNOSIS_TIMEOUT_S: Final = 5.0
"""The timeout for requests that only add details to an error message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeReadClient:
    """Implements `KafkaReadClient`. Must be used in only one thread and one process."""

    router: Router
    queries: ClusterQueries
    settings: NativeSettings
    checks_topic_ids: ClassVar[bool] = True

    @classmethod
    def of(cls, settings: NativeSettings, clock: Clock | None = None) -> Self:
        """Create a client. It connects when it sends the first request."""
        bootstrap = [Address.parse(each) for each in settings.bootstrap_servers.split(",")]
        security = settings.security
        dialer = Dialer(
            client_id=settings.client_id,
            clock=clock or Clock(),
            connect=(
                partial(connect, family=settings.address_family)
                if security is None
                else security.connect(settings.address_family)
            ),
            credentials=None if security is None else security.credentials,
            connect_timeout_s=settings.connect_timeout_s,
            response_bytes_max=settings.response_bytes_max,
        )
        router = Router(
            bootstrap,
            dialer,
            metadata_age_s_max=settings.metadata_age_s_max,
            idle_s_max=settings.idle_s_max,
        )
        queries = ClusterQueries(
            router=router,
            bootstrap_servers=settings.bootstrap_servers,
            api_timeout_s=settings.api_timeout_s,
            retries=settings.retries,
            retry_interval_s=settings.retry_interval_s,
            backoff=settings.retrying,
            reconnect_backoff=settings.reconnecting,
        )
        return cls(router=router, queries=queries, settings=settings)

    def list_topics(self) -> Collection[str]:
        return self.queries.list_topics()

    def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        return self.queries.describe_topics(topics)

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery], isolation_level: IsolationLevel
    ) -> Mapping[TopicPartition, int | None]:
        return self.queries.list_offsets(queries, isolation_level)

    def committed_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        return self.queries.committed_offsets(group_id, partitions)

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.queries.commit_offsets(group_id, offsets)

    def fetch(
        self,
        fetch_range: FetchRange,
        columns: tuple[str, ...],
        isolation_level: IsolationLevel,
        *,
        topic_id: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        partition = fetch_range.topic_partition
        settings = self.settings
        return RangeReader(
            errors=FetchErrors(
                fetch_range=fetch_range,
                isolation_level=isolation_level,
                bootstrap_servers=settings.bootstrap_servers,
                poll_timeout_ms=settings.poll_timeout_ms,
            ),
            columns=columns,
            router=self.router,
            offset_of=lambda query, level: self._offset_of(partition, query, level),
            check_existence=lambda pinned: self._check_existence(partition, pinned),
            pinned_id=None if topic_id is None else topic_id_of(topic_id),
            rack=settings.rack,
            wait_ms_max=settings.fetch_wait_ms_max,
            request_timeout_s=settings.request_timeout_s,
            sizes=FetchSizes(bytes_max=settings.fetch_bytes_max),
            retrying=settings.retrying,
            reconnecting=settings.reconnecting,
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

    def _check_existence(self, partition: TopicPartition, pinned_id: UUID | None) -> None:
        deadline = self.router.clock.now() + _DIAGNOSIS_TIMEOUT_S
        metadata = self.router.refresh([partition.topic], deadline=deadline)
        raise_if_missing(metadata, [partition], self.settings.bootstrap_servers)
        found = metadata.topics[partition.topic]
        if pinned_id is not None and found.topic_id not in (None, pinned_id):
            raise UnknownTopicOrPartitionError(
                f"Topic {partition.topic!r} was deleted and recreated while the query was reading "
                f"it. Its topic id changed from {topic_id_text(pinned_id)} to "
                f"{topic_id_text(found.topic_id)}.",
                advice="Start the query again.",
                topic=partition.topic,
                partition=partition.partition,
            )

    def _offset_of(
        self, partition: TopicPartition, query: int, isolation_level: IsolationLevel
    ) -> int:
        """Look up a special offset such as EARLIEST. Uses a short timeout."""
        queries = replace(
            self.queries, api_timeout_s=min(_DIAGNOSIS_TIMEOUT_S, self.queries.api_timeout_s)
        )
        offset = queries.list_offsets({partition: query}, isolation_level)[partition]
        assert offset is not None  # Only a query by timestamp can return None.
        return offset


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeClient(NativeReadClient):
    """Implements `KafkaClient`. Must be used in only one thread and one process."""

    producers: ProducerPool

    @classmethod
    def with_producers(
        cls, settings: NativeSettings, producing: ProducerSettings, clock: Clock | None = None
    ) -> Self:
        """Create a client. It connects when it sends the first request."""
        reads = NativeReadClient.of(settings, clock)
        return cls(
            router=reads.router,
            queries=reads.queries,
            settings=settings,
            producers=ProducerPool(
                router=reads.router,
                settings=producing,
                bootstrap_servers=settings.bootstrap_servers,
            ),
        )

    def producer(self) -> NativeProducer:
        return self.producers.lend()

    def close(self) -> None:
        self.producers.close()
        self.router.close()
