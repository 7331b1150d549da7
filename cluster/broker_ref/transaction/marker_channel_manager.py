"""Delivers transaction markers to the partitions of prepared transactions.

The markers are sent to the partition leaders in WriteTxnMarkers requests. Failed requests are
retried with the current leaders until every partition has its marker. Invariants: each broker has
at most one request in flight, and new markers are sent with the next request. A deleted partition
needs no marker. `on_marked` is called once for each transaction, when every partition has its
marker. `on_marked` is not called for a shard that this broker has unloaded. Source: Kafka's
`TransactionMarkerChannelManager` and `TransactionMarkerRequestCompletionHandler`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.controller.metadata import ClusterMetadata
from broker_ref.events import Channel
from broker_ref.frozen import dataclass
from broker_ref.outbox import Outbox
from broker_ref.replication.partition import PartitionKey
from broker_ref.schedule import Schedule, Timer
from broker_ref.transaction.marker_messages import (
    API_KEY,
    VERSION,
    MarkedTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WrittenMarker,
)
from broker_ref.transaction.partitions import by_topic, in_order
from broker_ref.transaction.request_validation import TransactionMetadata
from broker_ref.transaction.shard import Shard
from broker_ref.transaction.states import TransactionState

PURPOSE: Final = "transaction-markers"
RETRY_BACKOFF_MS: Final = 50
"""Kafka's backoff for a broker that is not available. Kafka retries other errors immediately."""

REQUEST_TIMEOUT_MS: Final = 30_000
PARTITIONS_PER_REQUEST_MAX: Final = 2_000

_FENCED_ERRORS: Final = (ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced)
"""Errors indicating that a newer producer epoch or coordinator will complete the transaction."""

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class PendingCompleteTxn:
    """A prepared transaction whose markers are being sent (Kafka's `PendingCompleteTxn`)."""

    shard: Shard
    entry: TransactionMetadata
    is_over: bool = False

    @property
    def is_pending(self) -> bool:
        """Return whether this broker must still complete the transaction."""
        return not self.is_over and self.shard.is_active


_Marks = dict[PendingCompleteTxn, set[PartitionKey]]


class TransactionMarkerChannelManager:
    """The markers that this broker must deliver."""

    def __init__(
        self,
        *,
        outbox: Outbox,
        metadata: ClusterMetadata,
        schedule: Schedule,
        clock: Callable[[], int],
        on_marked: Callable[[PendingCompleteTxn], None],
    ) -> None:
        self._outbox = outbox
        self._metadata = metadata
        self._schedule = schedule
        self._clock = clock
        self._on_marked = on_marked
        self._queues: dict[int, _Marks] = {}
        self._in_flight: dict[int, _Marks] = {}
        self._later: _Marks = {}
        self._without_leader: _Marks = {}
        self._timer: Timer | None = None

    def add_txn_markers_to_send(self, pending: PendingCompleteTxn) -> None:
        """Send markers to the partitions of a prepared transaction that await a marker."""
        self._route({pending: set(pending.entry.unmarked)})

    def retry_markers(self) -> None:
        """After a metadata update, retry the markers that are neither queued nor in flight."""
        if self._timer is not None:
            self._timer.cancel()
        self._retry_failed()
        waiting, self._without_leader = self._without_leader, {}
        self._route(waiting)

    def _retry_failed(self) -> None:
        """Retry failed markers with the current leaders."""
        later, self._later = self._later, {}
        self._route(later)

    def _route(self, marks: Mapping[PendingCompleteTxn, Iterable[PartitionKey]]) -> None:
        leaders: dict[int, None] = {}
        for pending, partitions in marks.items():
            if not pending.is_pending:
                continue
            for key in in_order(partitions):
                found = self._metadata.partition(key.topic, key.partition)
                if found is None:
                    pending.entry.unmarked.discard(key)
                elif found.leader in self._metadata.brokers:
                    self._queues.setdefault(found.leader, {}).setdefault(pending, set()).add(key)
                    leaders[found.leader] = None
                else:
                    self._without_leader.setdefault(pending, set()).add(key)
            self._finish_if_marked(pending)
        for leader in leaders:
            self._send(leader)

    def _finish_if_marked(self, pending: PendingCompleteTxn) -> None:
        if pending.is_pending and not pending.entry.unmarked:
            pending.is_over = True
            self._on_marked(pending)

    def _retry_later(self, pending: PendingCompleteTxn, key: PartitionKey) -> None:
        self._later.setdefault(pending, set()).add(key)
        if self._timer is None or not self._timer.is_pending:
            self._timer = self._schedule.at(
                self._clock() + RETRY_BACKOFF_MS, lambda _: self._retry_failed()
            )

    # Requests to one broker

    def _send(self, broker_id: int) -> None:
        """Send the queued markers to a broker, unless a request is in flight."""
        broker = self._metadata.brokers.get(broker_id)
        if broker_id in self._in_flight or broker_id not in self._queues:
            return
        if broker is None:
            self._retry_all_later(self._queues.pop(broker_id))
            return
        marks = self._next_markers(broker_id)
        if not marks:
            return
        self._in_flight[broker_id] = marks
        self._outbox.send(
            Channel(node_id=broker.broker_id, host=broker.host, port=broker.port, purpose=PURPOSE),
            api_key=API_KEY,
            version=VERSION,
            request=WriteTxnMarkersRequest(
                markers=tuple(_marker(pending, keys) for pending, keys in marks.items())
            ),
            response=WriteTxnMarkersResponse,
            on_response=lambda response: self._handle_response(broker_id, response),
            on_failure=lambda reason: self._handle_failure(broker_id, reason),
            timeout_ms=REQUEST_TIMEOUT_MS,
        )

    def _next_markers(self, broker_id: int) -> _Marks:
        """Take the markers for the next request from a broker's queue."""
        queue = self._queues[broker_id]
        marks: _Marks = {}
        partitions = 0
        while queue and partitions < PARTITIONS_PER_REQUEST_MAX:
            pending = next(iter(queue))
            keys = queue.pop(pending)
            if pending.is_pending:
                marks[pending] = keys
                partitions += len(keys)
        if not queue:
            del self._queues[broker_id]
        return marks

    def _handle_response(self, broker_id: int, response: WriteTxnMarkersResponse) -> None:
        errors = {
            (marker.producer_id, topic.name, partition.partition_index): partition.error_code
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }
        for pending, keys in self._in_flight.pop(broker_id).items():
            producer_id = pending.entry.current.producer_id
            for key in keys:
                self._handle_partition_result(
                    pending, key, errors.get((producer_id, key.topic, key.partition))
                )
            self._finish_if_marked(pending)
        self._send(broker_id)

    def _handle_partition_result(
        self, pending: PendingCompleteTxn, key: PartitionKey, error_code: ErrorCode | None
    ) -> None:
        if not pending.is_pending:
            return
        if error_code is ErrorCode.none:
            pending.entry.unmarked.discard(key)
        elif error_code in _FENCED_ERRORS:
            pending.is_over = True
            logger.warning(
                "Stopped sending the markers of transactional id %.100r, because %s-%d returned "
                "%s. A coordinator or producer with a newer epoch will complete the transaction",
                pending.entry.name, key.topic, key.partition, error_code.name,
            )  # fmt: skip
        else:
            logger.info(
                "Failed to write the marker of transactional id %.100r to %s-%d. Retrying: %s",
                pending.entry.name, key.topic, key.partition,
                "the response contains no result" if error_code is None else error_code.name,
            )  # fmt: skip
            self._retry_later(pending, key)

    def _handle_failure(self, broker_id: int, reason: str) -> None:
        logger.info(
            "A WriteTxnMarkers request to broker %d failed. Retrying: %s", broker_id, reason
        )
        self._retry_all_later(self._in_flight.pop(broker_id))
        self._retry_all_later(self._queues.pop(broker_id, {}))

    def _retry_all_later(self, marks: _Marks) -> None:
        for pending, keys in marks.items():
            if pending.is_pending:
                for key in keys:
                    self._retry_later(pending, key)


def _marker(pending: PendingCompleteTxn, keys: Iterable[PartitionKey]) -> WrittenMarker:
    current = pending.entry.current
    return WrittenMarker(
        producer_id=current.producer_id,
        producer_epoch=current.producer_epoch,
        transaction_result=current.state is TransactionState.PREPARE_COMMIT,
        topics=tuple(
            MarkedTopic(name=topic, partition_indexes=partitions)
            for topic, partitions in by_topic(keys).items()
        ),
        coordinator_epoch=pending.shard.coordinator_epoch,
        transaction_version=current.client_transaction_version,
    )
