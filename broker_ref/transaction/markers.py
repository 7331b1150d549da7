"""Markers on their way to the partitions of transactions that are decided.

Purpose: send each partition's leader the end of its transaction by WriteTxnMarkers, and again,
wherever the leader is by then, until every partition has it. Invariants: one request at a time is
under way to a broker, and markers that come meanwhile go with the next; a partition that is no more
needs no marker; `on_marked` is called once, when no partition of a transaction is without; nothing
is called for a shard that this broker has given up. What it must not know: what comes after.
Source: Kafka's `TransactionMarkerChannelManager`, `TransactionMarkerRequestCompletionHandler`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.events import Channel
from broker_ref.outbox import Outbox
from broker_ref.replication.partition import PartitionKey
from broker_ref.schedule import Schedule, Timer
from broker_ref.transaction.decisions import TransactionalId
from broker_ref.transaction.marker_messages import (
    API_KEY,
    VERSION,
    MarkedTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from broker_ref.transaction.partitions import by_topic, in_order
from broker_ref.transaction.shard import Shard
from broker_ref.transaction.states import TransactionState

PURPOSE: Final = "transaction-markers"
RETRY_BACKOFF_MS: Final = 50
"""As Kafka waits with a broker that it cannot reach; others it asks again at once."""

REQUEST_TIMEOUT_MS: Final = 30_000
PARTITIONS_PER_REQUEST_MAX: Final = 2_000

_GIVEN_UP: Final = (ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced)
"""A newer producer or coordinator has taken over: it will end the transaction."""

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class Ending:
    """A transaction that is decided, until every partition has its marker."""

    shard: Shard
    entry: TransactionalId
    is_over: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether it is still this broker's to end."""
        return not self.is_over and self.shard.is_active


_Marks = dict[Ending, set[PartitionKey]]


class MarkerSender:
    """The markers that this broker has yet to get to partitions."""

    def __init__(
        self,
        *,
        outbox: Outbox,
        metadata: ClusterMetadata,
        schedule: Schedule,
        clock: Callable[[], int],
        on_marked: Callable[[Ending], None],
    ) -> None:
        self._outbox = outbox
        self._metadata = metadata
        self._schedule = schedule
        self._clock = clock
        self._on_marked = on_marked
        self._queues: dict[int, _Marks] = {}
        self._under_way: dict[int, _Marks] = {}
        self._later: _Marks = {}
        self._timer: Timer | None = None

    def begin(self, ending: Ending) -> None:
        """Have every partition marked that is not yet."""
        self._route({ending: set(ending.entry.unmarked)})

    def route_again(self) -> None:
        """Look anew for the leaders of partitions that could not be marked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        later, self._later = self._later, {}
        self._route(later)

    def _route(self, marks: Mapping[Ending, Iterable[PartitionKey]]) -> None:
        leaders: dict[int, None] = {}
        for ending, partitions in marks.items():
            if not ending.is_wanted:
                continue
            for key in in_order(partitions):
                found = self._metadata.partition(key.topic, key.partition)
                if found is None:
                    ending.entry.unmarked.discard(key)
                elif found.leader in self._metadata.brokers:
                    self._queues.setdefault(found.leader, {}).setdefault(ending, set()).add(key)
                    leaders[found.leader] = None
                else:
                    self._retry_later(ending, key)
            self._finish_if_marked(ending)
        for leader in leaders:
            self._send(leader)

    def _finish_if_marked(self, ending: Ending) -> None:
        if ending.is_wanted and not ending.entry.unmarked:
            ending.is_over = True
            self._on_marked(ending)

    def _retry_later(self, ending: Ending, key: PartitionKey) -> None:
        self._later.setdefault(ending, set()).add(key)
        if self._timer is None or not self._timer.is_pending:
            self._timer = self._schedule.at(
                self._clock() + RETRY_BACKOFF_MS, lambda _: self.route_again()
            )

    # To one broker

    def _send(self, broker_id: int) -> None:
        """Send a broker what waits for it, unless an answer is awaited."""
        broker = self._metadata.brokers.get(broker_id)
        if broker_id in self._under_way or broker_id not in self._queues:
            return
        if broker is None:
            self._put_off(self._queues.pop(broker_id))
            return
        marks = self._take(broker_id)
        if not marks:
            return
        self._under_way[broker_id] = marks
        self._outbox.send(
            Channel(node_id=broker.broker_id, host=broker.host, port=broker.port, purpose=PURPOSE),
            api_key=API_KEY,
            version=VERSION,
            request=WriteTxnMarkersRequest(
                markers=tuple(_marker(ending, keys) for ending, keys in marks.items())
            ),
            response=WriteTxnMarkersResponse,
            on_response=lambda response: self._answered(broker_id, response),
            on_failure=lambda reason: self._failed(broker_id, reason),
            timeout_ms=REQUEST_TIMEOUT_MS,
        )

    def _take(self, broker_id: int) -> _Marks:
        """The next request's part of what waits for a broker."""
        queue = self._queues[broker_id]
        marks: _Marks = {}
        partitions = 0
        while queue and partitions < PARTITIONS_PER_REQUEST_MAX:
            ending = next(iter(queue))
            keys = queue.pop(ending)
            if ending.is_wanted:
                marks[ending] = keys
                partitions += len(keys)
        if not queue:
            del self._queues[broker_id]
        return marks

    def _answered(self, broker_id: int, response: WriteTxnMarkersResponse) -> None:
        errors = {
            (marker.producer_id, topic.name, partition.partition_index): partition.error_code
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }
        for ending, keys in self._under_way.pop(broker_id).items():
            producer_id = ending.entry.current.producer_id
            for key in keys:
                self._marked(ending, key, errors.get((producer_id, key.topic, key.partition)))
            self._finish_if_marked(ending)
        self._send(broker_id)

    def _marked(self, ending: Ending, key: PartitionKey, error_code: ErrorCode | None) -> None:
        if not ending.is_wanted:
            return
        if error_code is ErrorCode.none:
            ending.entry.unmarked.discard(key)
        elif error_code in _GIVEN_UP:
            ending.is_over = True
            logger.warning(
                "The transaction of %.100r is no more this broker's to end: %s-%d answers %s",
                ending.entry.name, key.topic, key.partition, error_code.name,
            )  # fmt: skip
        else:
            logger.info(
                "The marker of %.100r is not in %s-%d yet: %s",
                ending.entry.name, key.topic, key.partition,
                "no answer" if error_code is None else error_code.name,
            )  # fmt: skip
            self._retry_later(ending, key)

    def _failed(self, broker_id: int, reason: str) -> None:
        logger.info("Broker %d does not answer to markers: %s", broker_id, reason)
        self._put_off(self._under_way.pop(broker_id))
        self._put_off(self._queues.pop(broker_id, {}))

    def _put_off(self, marks: _Marks) -> None:
        for ending, keys in marks.items():
            if ending.is_wanted:
                for key in keys:
                    self._retry_later(ending, key)


def _marker(ending: Ending, keys: Iterable[PartitionKey]) -> WrittenMarker:
    current = ending.entry.current
    return WrittenMarker(
        producer_id=current.producer_id,
        producer_epoch=current.producer_epoch,
        transaction_result=current.state is TransactionState.PREPARE_COMMIT,
        topics=tuple(
            MarkedTopic(name=topic, partition_indexes=partitions)
            for topic, partitions in by_topic(keys).items()
        ),
        coordinator_epoch=ending.shard.coordinator_epoch,
        transaction_version=current.client_transaction_version,
    )
