"""A group's committed offsets, by a consumer of confluent-kafka that joins nothing.

Purpose: read and write them as a group without members. Invariant: every wait is bounded. What it
must not know: whose offsets these are.

By a consumer, since librdkafka's admin call ends the process when the coordinator goes away while
it asks (confluentinc/librdkafka#5397).
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
from pyspark_kafka.client.librdkafka.retry_loop import RetryLoop, UnansweredError
from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings, opening
from pyspark_kafka.kafka.topics import TopicPartition

_POLL_S: Final = 0.1
_OWNED: Final[Mapping[str, str]] = {
    **CONSUMER_OWNED,
    # For so long a commit waits for a coordinator, and closing the consumer for that.
    "session.timeout.ms": "2000",
    "group.protocol": "classic",  # the other one has no such setting
}


class GroupOffsets:
    """The offsets of one group; made for a question or two and then closed."""

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
        with opening(configuration):
            self._consumer = Consumer(configuration, logger=LOG)
        self._asking = RetryLoop(handle=self._consumer, events=events, settings=settings)

    @classmethod
    @contextmanager
    def of(cls, settings: LibrdkafkaSettings, group_id: str) -> Iterator[GroupOffsets]:
        """Closes its consumer at the end."""
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
        """See `KafkaReads.committed_offsets`."""
        return self._asking.until_answered(
            lambda try_s: self._read(partitions, try_s), check_existence=check_existence
        )

    def write(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        check_existence: Callable[[float], None],
    ) -> None:
        """See `KafkaReads.commit_offsets`."""
        self._asking.until_answered(
            lambda try_s: self._write(offsets, try_s), check_existence=check_existence
        )

    def _read(
        self, partitions: Collection[TopicPartition], try_s: float
    ) -> dict[TopicPartition, int | None]:
        doing = f"reading the committed offsets of group {self._group_id!r}"
        try:
            found = self._consumer.committed([_rd(p) for p in sorted(partitions)], timeout=try_s)
        except KafkaException as exception:
            error = code_of(exception)
            self._asking.raise_if_refused(doing, error)
            raise UnansweredError(error, doing) from None
        committed: dict[TopicPartition, int | None] = {}
        for rd_partition in found:
            partition = TopicPartition(rd_partition.topic, rd_partition.partition)
            if rd_partition.error is not None:
                raise UnansweredError(rd_partition.error, f"{doing}, {partition},")
            committed[partition] = rd_partition.offset if rd_partition.offset >= 0 else None
        return committed

    def _write(self, offsets: Mapping[TopicPartition, int], try_s: float) -> None:
        """Asynchronously, for a call that waits has no limit to its time."""
        doing = f"committing offsets of group {self._group_id!r}"
        self._answers.clear()
        self._consumer.commit(
            offsets=[RdTopicPartition(p.topic, p.partition, o) for p, o in sorted(offsets.items())],
            asynchronous=True,
        )
        deadline = time.monotonic() + try_s
        while not self._answers:
            self._consumer.poll(_POLL_S)
            self._asking.raise_if_refused(doing)
            if time.monotonic() >= deadline:
                raise UnansweredError(Code(Code._TIMED_OUT), doing)
        error, partitions = self._answers.pop()
        if error is not None:
            self._asking.raise_if_refused(doing, error)
            raise UnansweredError(error, doing)
        for partition in partitions:
            if partition.error is not None:
                raise UnansweredError(
                    partition.error, f"{doing}, {partition.topic}-{partition.partition},"
                )


def _rd(partition: TopicPartition) -> RdTopicPartition:
    return RdTopicPartition(partition.topic, partition.partition)
