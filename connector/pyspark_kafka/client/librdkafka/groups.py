"""Reads and commits group offsets with a consumer that does not join the group.

Invariant: every wait is bounded.

librdkafka's admin request for group offsets is not used, because this request crashes the process
if the coordinator stops during the request (confluentinc/librdkafka#5397).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicPartition as RdTopicPartition

from pyspark_kafka.client.librdkafka.errors import LOG, ErrorEvents, code_of
from pyspark_kafka.client.librdkafka.fetch import CONSUMER_OWNED
from pyspark_kafka.client.librdkafka.retry_loop import NoResponseError, RetryLoop
from pyspark_kafka.client.librdkafka.settings import (
    LibrdkafkaSettings,
    rejected_properties_as_option_errors,
)
from pyspark_kafka.kafka.topics import TopicPartition

_POLL_S: Final = 0.1
_OWNED: Final[Mapping[str, str]] = {
    **CONSUMER_OWNED,
    # Limits how long a commit waits for the coordinator and how long `close` waits for the commit.
    "session.timeout.ms": "2000",
    "group.protocol": "classic",  # The `consumer` protocol does not support `session.timeout.ms`.
}


class GroupOffsets:
    """The offsets of one group, which a short-lived consumer reads and commits."""

    def __init__(self, settings: LibrdkafkaSettings, group_id: str) -> None:
        self._group_id = group_id
        self._answers: list[tuple[Code | None, list[RdTopicPartition]]] = []
        events = ErrorEvents(settings.bootstrap_servers)
        configuration: dict[str, Any] = {
            **settings.consumer,
            **_OWNED,
            "group.id": group_id,
            "error_cb": events,
            "on_commit": lambda *answer: self._answers.append(answer),
        }
        with rejected_properties_as_option_errors(configuration):
            self._consumer = Consumer(configuration, logger=LOG)
        self._requests = RetryLoop(handle=self._consumer, events=events, settings=settings)

    @classmethod
    @contextmanager
    def of(cls, settings: LibrdkafkaSettings, group_id: str) -> Iterator[GroupOffsets]:
        """Open the consumer, and close it at the end of the `with` statement."""
        group = cls(settings, group_id)
        try:
            yield group
        finally:
            group._consumer.close()

    def read(
        self,
        partitions: Collection[TopicPartition],
        *,
        check_existence: Callable[[float], None],
    ) -> Mapping[TopicPartition, int | None]:
        """Return the committed offsets, as `KafkaReadClient.committed_offsets` does."""
        return self._requests.retry(
            lambda try_s: self._read(partitions, try_s), check_existence=check_existence
        )

    def write(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        check_existence: Callable[[float], None],
    ) -> None:
        """Commit offsets, as `KafkaReadClient.commit_offsets` does."""
        self._requests.retry(
            lambda try_s: self._write(offsets, try_s), check_existence=check_existence
        )

    def _read(
        self, partitions: Collection[TopicPartition], try_s: float
    ) -> dict[TopicPartition, int | None]:
        operation = f"reading the committed offsets of group {self._group_id!r}"
        try:
            found = self._consumer.committed([_rd(p) for p in sorted(partitions)], timeout=try_s)
        except KafkaException as exception:
            error = code_of(exception)
            self._requests.raise_if_unauthorized(operation, error)
            raise NoResponseError(error, operation, group_id=self._group_id) from None
        committed: dict[TopicPartition, int | None] = {}
        for rd_partition in found:
            partition = TopicPartition(rd_partition.topic, rd_partition.partition)
            if rd_partition.error is not None:
                raise NoResponseError(
                    rd_partition.error,
                    f"{operation} for {partition}",
                    topic=partition.topic,
                    partition=partition.partition,
                    group_id=self._group_id,
                )
            committed[partition] = rd_partition.offset if rd_partition.offset >= 0 else None
        return committed

    def _write(self, offsets: Mapping[TopicPartition, int], try_s: float) -> None:
        """Commit asynchronously, because the synchronous call has no timeout."""
        operation = f"committing offsets of group {self._group_id!r}"
        self._answers.clear()
        self._consumer.commit(
            offsets=[RdTopicPartition(p.topic, p.partition, o) for p, o in sorted(offsets.items())],
            asynchronous=True,
        )
        deadline = time.monotonic() + try_s
        while not self._answers:
            self._consumer.poll(_POLL_S)
            self._requests.raise_if_unauthorized(operation)
            if time.monotonic() >= deadline:
                raise NoResponseError(Code(Code._TIMED_OUT), operation, group_id=self._group_id)
        error, partitions = self._answers.pop()
        if error is not None:
            self._requests.raise_if_unauthorized(operation, error)
            raise NoResponseError(error, operation, group_id=self._group_id)
        for rd_partition in partitions:
            if rd_partition.error is not None:
                partition = TopicPartition(rd_partition.topic, rd_partition.partition)
                raise NoResponseError(
                    rd_partition.error,
                    f"{operation} for {partition}",
                    topic=partition.topic,
                    partition=partition.partition,
                    group_id=self._group_id,
                )


def _rd(partition: TopicPartition) -> RdTopicPartition:
    return RdTopicPartition(partition.topic, partition.partition)
