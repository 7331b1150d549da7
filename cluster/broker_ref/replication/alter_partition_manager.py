"""The AlterPartition requests (API key 56) with which leaders propose ISR changes.

Leaders use the `AlterPartitionManager` interface. `DefaultAlterPartitionManager` implements it with
requests to the controller. Changes that are submitted while a request is in flight are sent
together in the next request. Invariants: at most one request is in flight. A request contains a
limited number of changes, and at most one change per partition. The callback of each change is
called exactly once, even if the request is sent more than once. If the node stops, the callbacks of
pending changes are not called. Source: Kafka's `AlterPartitionManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient
from broker_ref.frozen import dataclass
from broker_ref.protocol.identifiers import Uuid
from broker_ref.schedule import Schedule

ALTER_PARTITION: Final = 56
VERSION: Final = 3
PURPOSE: Final = "alter-partition"
RETRY_BACKOFF_MS: Final = 50
CHANGES_PER_REQUEST: Final = 500
RECOVERED: Final = 0
"""LeaderRecoveryState RECOVERED: the partition is not recovering from an unclean election."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    """A broker in the proposed ISR. `broker_epoch` is -1 if the leader does not know the epoch."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """An ISR that a leader proposes, and the partition state on which the proposal is based."""

    topic_id: Uuid
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrOutcome:
    """The controller's response to an ISR change. If the change fails, only `error_code` is set."""

    error_code: ErrorCode
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


OnOutcome = Callable[[IsrOutcome], None]


class AlterPartitionManager(Protocol):
    """The interface through which leaders propose ISR changes."""

    def submit(self, change: IsrChange, on_outcome: OnOutcome) -> None:
        """Propose an ISR change; `on_outcome` is called once.

        If an earlier change to the partition is pending, `on_outcome` is called immediately with
        OPERATION_NOT_ATTEMPTED. Otherwise, it is called during a later event.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """A partition in an AlterPartition request."""

    partition_index: int
    leader_epoch: int
    new_isr_with_epochs: tuple[IsrMember, ...]
    partition_epoch: int
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChanges:
    """A topic in an AlterPartition request."""

    topic_id: Uuid
    partitions: tuple[PartitionChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest:
    """The ISR changes that this broker proposes as leader."""

    broker_id: int
    broker_epoch: int
    topics: tuple[TopicChanges, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    """A partition in an AlterPartition response."""

    partition_index: int
    error_code: ErrorCode
    leader_id: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    """A topic in an AlterPartition response."""

    topic_id: Uuid
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse:
    """The results of all changes in a request."""

    error_code: ErrorCode
    topics: tuple[TopicResponse, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposed:
    change: IsrChange
    on_outcome: OnOutcome


_Key = tuple[Uuid, int]


class DefaultAlterPartitionManager:
    """An `AlterPartitionManager` that sends ISR changes to the controller."""

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        controller: ControllerClient,
        schedule: Schedule,
        clock: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controller = controller
        self._schedule = schedule
        self._clock = clock
        self._open: dict[_Key, _Proposed] = {}
        self._is_in_flight = False

    def submit(self, change: IsrChange, on_outcome: OnOutcome) -> None:
        """Propose an ISR change. See `AlterPartitionManager.submit`."""
        key = (change.topic_id, change.partition)
        if key in self._open:
            on_outcome(IsrOutcome(error_code=ErrorCode.operation_not_attempted))
            return
        self._open[key] = _Proposed(change=change, on_outcome=on_outcome)
        self._send()

    def _send(self) -> None:
        if self._is_in_flight or not self._open:
            return
        self._is_in_flight = True
        sent = dict(islice(self._open.items(), CHANGES_PER_REQUEST))
        self._controller.send(
            purpose=PURPOSE,
            api_key=ALTER_PARTITION,
            version=VERSION,
            request=AlterPartitionRequest(
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch(),
                topics=_topics(sent),
            ),
            response=AlterPartitionResponse,
            on_response=lambda response: self._handle_response(sent, response),
            on_failure=self._send_again,
        )

    def _handle_response(
        self, sent: dict[_Key, _Proposed], response: AlterPartitionResponse
    ) -> None:
        if response.error_code is not ErrorCode.none:
            self._send_again(response.error_code.name)
            return
        responses_by_key = {
            (topic.topic_id, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        outcomes: list[tuple[_Proposed, IsrOutcome]] = []
        for key, proposed in sent.items():
            partition_response = responses_by_key.get(key)
            if partition_response is not None:
                del self._open[key]
                outcomes.append((proposed, _outcome(partition_response)))
        # The callbacks may submit new changes, which are then sent in one request.
        for proposed, outcome in outcomes:
            proposed.on_outcome(outcome)
        if outcomes:
            self._is_in_flight = False
            self._send()
        else:
            self._send_again("the response does not contain any of the requested partitions")

    def _send_again(self, reason: str) -> None:
        logger.info(
            "AlterPartition failed and will be retried in %d ms: %s", RETRY_BACKOFF_MS, reason
        )
        self._schedule.at(self._clock() + RETRY_BACKOFF_MS, self._retry)

    def _retry(self, now_ms: int) -> None:
        del now_ms
        self._is_in_flight = False
        self._send()


def _topics(sent: dict[_Key, _Proposed]) -> tuple[TopicChanges, ...]:
    by_topic: dict[Uuid, list[PartitionChange]] = {}
    for proposed in sent.values():
        change = proposed.change
        by_topic.setdefault(change.topic_id, []).append(
            PartitionChange(
                partition_index=change.partition,
                leader_epoch=change.leader_epoch,
                new_isr_with_epochs=change.new_isr,
                partition_epoch=change.partition_epoch,
            )
        )
    return tuple(
        TopicChanges(topic_id=topic_id, partitions=tuple(partitions))
        for topic_id, partitions in by_topic.items()
    )


def _outcome(response: PartitionResponse) -> IsrOutcome:
    return IsrOutcome(
        error_code=response.error_code,
        leader_epoch=response.leader_epoch,
        partition_epoch=response.partition_epoch,
        isr=response.isr,
    )
