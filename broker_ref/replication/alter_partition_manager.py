"""The client of AlterPartition (API key 56), with which leaders propose ISR changes.

Purpose: `AlterPartitionManager` is the port of the leaders; `DefaultAlterPartitionManager`
implements it over the network. Proposals made while a request is in flight are sent together in the
next one. Invariant: at most one request is in flight, with at most one change per partition; each
change gets exactly one outcome, however often the request is sent, unless the node stops first.
Must not know: the effects of an outcome. Source: Kafka's `AlterPartitionManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from broker_ref.controller.client import ControllerClient
from broker_ref.protocol.identifiers import Uuid
from broker_ref.schedule import Schedule

ALTER_PARTITION: Final = 56
VERSION: Final = 3
PURPOSE: Final = "alter-partition"
RETRY_BACKOFF_MS: Final = 50
RECOVERED: Final = 0
"""LeaderRecoveryState: no recovery from an unclean election is in progress (KIP-704)."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    """A broker of the proposed ISR; the epoch is -1 where the leader does not know it."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """An ISR that a leader proposes, and the partition state that it is based on."""

    topic_id: Uuid
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: tuple[IsrMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrOutcome:
    """The controller's response; with an error, the other fields are undefined."""

    error_code: ErrorCode
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


OnOutcome = Callable[[IsrOutcome], None]


class AlterPartitionManager(Protocol):
    """The port through which leaders propose ISR changes."""

    def submit(self, change: IsrChange, on_outcome: OnOutcome) -> None:
        """Send a proposal; `on_outcome` is called once, in a later step.

        While an earlier change of the partition is pending, it is called with
        OPERATION_NOT_ATTEMPTED at once.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """A partition of the request."""

    partition_index: int
    leader_epoch: int
    new_isr_with_epochs: tuple[IsrMember, ...]
    partition_epoch: int
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChanges:
    """A topic of the request."""

    topic_id: Uuid
    partitions: tuple[PartitionChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest:
    """The ISR changes that this broker proposes as leader."""

    broker_id: int
    broker_epoch: int
    topics: tuple[TopicChanges, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAnswer:
    """A partition of the response."""

    partition_index: int
    error_code: ErrorCode
    leader_id: int = -1
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    partition_epoch: int = -1
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswers:
    """A topic of the response."""

    topic_id: Uuid
    partitions: tuple[PartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse:
    """The results of the changes."""

    error_code: ErrorCode
    topics: tuple[TopicAnswers, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposed:
    change: IsrChange
    on_outcome: OnOutcome


_Key = tuple[Uuid, int]


class DefaultAlterPartitionManager:
    """Sends ISR changes to the controller over a channel."""

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
        self._is_under_way = False

    def submit(self, change: IsrChange, on_outcome: OnOutcome) -> None:
        """Send a proposal, as `AlterPartitionManager.submit`."""
        key = (change.topic_id, change.partition)
        if key in self._open:
            on_outcome(IsrOutcome(error_code=ErrorCode.operation_not_attempted))
            return
        self._open[key] = _Proposed(change=change, on_outcome=on_outcome)
        self._send()

    def _send(self) -> None:
        if self._is_under_way or not self._open:
            return
        self._is_under_way = True
        sent = dict(self._open)
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
        answers = {
            (topic.topic_id, partition.partition_index): partition
            for topic in response.topics
            for partition in topic.partitions
        }
        outcomes: list[tuple[_Proposed, IsrOutcome]] = []
        for key, proposed in sent.items():
            answer = answers.get(key)
            if answer is not None:
                del self._open[key]
                outcomes.append((proposed, _outcome(answer)))
        # The callbacks may propose again; one request carries all new proposals.
        for proposed, outcome in outcomes:
            proposed.on_outcome(outcome)
        if outcomes:
            self._is_under_way = False
            self._send()
        else:
            self._send_again("the response contains none of the requested partitions")

    def _send_again(self, reason: str) -> None:
        logger.info("AlterPartition failed and is retried in %d ms: %s", RETRY_BACKOFF_MS, reason)
        self._schedule.at(self._clock() + RETRY_BACKOFF_MS, self._retry)

    def _retry(self, now_ms: int) -> None:
        del now_ms
        self._is_under_way = False
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


def _outcome(answer: PartitionAnswer) -> IsrOutcome:
    return IsrOutcome(
        error_code=answer.error_code,
        leader_epoch=answer.leader_epoch,
        partition_epoch=answer.partition_epoch,
        isr=answer.isr,
    )
