"""`TransactionalClient` over the wire client.

Purpose: the port's answers about transactions, and what goes with them: single tries of `wire`,
asked until they are answered. Invariant: every call ends within `kafka.default.api.timeout.ms`; a
refusal that is final is told at once and with what to do; where many are asked about, one that does
not answer keeps no other from being asked. What it must not know: Spark, the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kio.schema.errors import ErrorCode

from pyspark_kafka.client.fetch_errors import FetchErrors
from pyspark_kafka.client.native.client import NativeClient
from pyspark_kafka.errors import (
    AccessError,
    BrokerUnreachableError,
    KafkaError,
    OptionError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from pyspark_kafka.kafka.log import LogBatch
from pyspark_kafka.kafka.offsets import FetchRange, IsolationLevel
from pyspark_kafka.kafka.topics import TopicPartition
from pyspark_kafka.kafka.transactions import (
    EndTransaction,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionListing,
    TransactionState,
    TransactionVersion,
)
from pyspark_kafka.wire import admin_requests
from pyspark_kafka.wire import transaction_requests as wire
from pyspark_kafka.wire.cluster_queries import is_retriable
from pyspark_kafka.wire.error_codes import REACTIONS, Reaction, error_class, format_code
from pyspark_kafka.wire.metadata import Broker
from pyspark_kafka.wire.retry import Backoff
from pyspark_kafka.wire.router import ApiError, Router

if TYPE_CHECKING:
    from pyspark_kafka.client.native.log_reader import LogReader
    from pyspark_kafka.client.native.transactional_producer import NativeTransactionalProducer

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

LOG: Final = logging.getLogger("pyspark_kafka.native")
LOG.addHandler(logging.NullHandler())

_FEATURE: Final = "transaction.version"
_LATEST_VERSION: Final = 2
_MARKERS: Final = Backoff(first_s=0.02, longest_s=0.25, multiplier=1.5)
"""Between tries while markers are written: mostly a matter of milliseconds, for which every
planning waits."""
_NO_SUCH_VERSION: Final = f"InitProducerId v{wire.FIRST_TWO_PHASE} is unknown to them"
_LISTING_TRIES: Final = 3
"""Of a broker that does not answer: one that is gone coordinates nothing any more."""
_FENCED: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.producer_fenced,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTransactionalClient(NativeClient):
    """All of `TransactionalClient`. One thread, one process."""

    # --- transactions ---

    def transaction_version(self) -> TransactionVersion:
        def ask(deadline: float) -> int:
            features = self.router.any_connection(deadline=deadline).versions.features
            return features.get(_FEATURE, 0)

        level = self.queries.retry(ask, "asking for the version of transactions")
        return 2 if level >= _LATEST_VERSION else 1

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
        two_phase_commit: bool = False,
    ) -> ProducerIdAndEpoch:
        def once(deadline: float) -> ProducerIdAndEpoch:
            return wire.init_producer_id(
                self.router,
                transactional_id,
                timeout_ms=timeout_ms,
                expected=expected,
                two_phase_commit=two_phase_commit,
                deadline=deadline,
            )

        def ask(deadline: float) -> ProducerIdAndEpoch:
            try:
                return self._once_markers_are_written(once, deadline)
            except ApiError as refused:
                if refused.code in _FENCED:
                    raise _fenced(transactional_id, refused.code) from None
                if refused.code is ErrorCode.invalid_transaction_timeout:
                    raise _timeout_too_long(transactional_id, timeout_ms) from None
                if two_phase_commit and _is_lack_of_two_phases(refused.code):
                    raise _no_two_phases(transactional_id, format_code(refused.code)) from None
                raise
            except UnsupportedVersionError:
                if two_phase_commit:
                    raise _no_two_phases(transactional_id, _NO_SUCH_VERSION) from None
                raise

        return self.queries.retry(ask, f"taking transactional id {transactional_id!r}")

    def _once_markers_are_written(self, once: Callable[[float], T], deadline: float) -> T:
        """Try again and soon while an earlier transaction is being ended."""
        tries = 0
        while True:
            try:
                return once(deadline)
            except ApiError as refused:
                tries += 1
                if refused.code is not ErrorCode.concurrent_transactions or not _MARKERS.pause(
                    tries, clock=self.router.clock, deadline=deadline
                ):
                    raise

    def end_transactions(self, ends: Collection[EndTransaction]) -> Mapping[str, ErrorCode | None]:
        by_id = {end.transactional_id: end for end in ends}

        def ask(
            names: Collection[str], deadline: float
        ) -> Mapping[str, ErrorCode | ApiError | KafkaError]:
            answers = wire.end_transactions(
                self.router, [by_id[name] for name in names], deadline=deadline
            )
            return {name: _final(name, answer) for name, answer in answers.items()}

        asking = _AskingEach(by_id, ask)
        try:
            replace(self.queries, backoff=_MARKERS).retry(
                asking, f"ending {len(by_id)} transactions"
            )
        except (AccessError, UnsupportedVersionError):
            raise
        except KafkaError as error:
            LOG.warning("%d transactions: no final answer came: %s", len(asking.left), error)
        return {name: asking.answers.get(name) for name in by_id}

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> Mapping[str, TransactionDescription]:
        asking = _AskingEach(
            transactional_ids,
            lambda names, deadline: wire.describe_transactions(
                self.router, names, deadline=deadline
            ),
        )
        self.queries.retry(asking, f"describing {len(asking.left)} transactions")
        return {name: found for name, found in asking.answers.items() if found is not None}

    def list_transactions(self, id_prefix: str) -> Sequence[TransactionListing]:
        listing = _Listing(self.router, id_prefix)
        return self.queries.retry(listing, f"listing the transactions of {id_prefix!r}")

    def transactional_producer(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        version: TransactionVersion,
    ) -> NativeTransactionalProducer:
        return self.producers.begin(transactional_id, producer, version)

    # --- the log ---

    def read_log(
        self, partition: TopicPartition, start_offset: int, end_offset: int
    ) -> Iterator[LogBatch]:
        from pyspark_kafka.client.native.log_reader import read_from_log_start  # noqa: PLC0415

        return read_from_log_start(
            start_offset,
            end_offset,
            read=lambda start: self._log_reader(partition, start, end_offset).batches(),
            offset_of=lambda query: self._offset_of(
                partition, query, IsolationLevel.READ_UNCOMMITTED
            ),
        )

    def _log_reader(
        self, partition: TopicPartition, start_offset: int, end_offset: int
    ) -> LogReader:
        from pyspark_kafka.client.native.log_reader import LogReader  # noqa: PLC0415

        settings = self.settings
        return LogReader(
            faults=FetchErrors(
                fetch_range=FetchRange(
                    topic_partition=partition, start_offset=start_offset, end_offset=end_offset
                ),
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                bootstrap_servers=settings.bootstrap_servers,
                poll_timeout_ms=settings.poll_timeout_ms,
            ),
            router=self.router,
            offset_of=lambda query, level: self._offset_of(partition, query, level),
            check_existence=lambda pinned: self._check_existence(partition, pinned),
            wait_ms_max=settings.fetch_wait_ms_max,
            answer_s=settings.request_timeout_s,
            retrying=settings.retrying,
            reconnecting=settings.reconnecting,
        )

    # --- topics and brokers ---

    def create_topic(
        self,
        topic: str,
        *,
        partition_count: int,
        replication_factor: int,
        config: Mapping[str, str],
    ) -> bool:
        is_new = self.queries.retry(
            lambda deadline: admin_requests.create_topic(
                self.router,
                topic,
                partition_count=partition_count,
                replication_factor=replication_factor,
                config=config,
                deadline=deadline,
            ),
            f"creating topic {topic!r}",
        )
        self.queries.retry(
            lambda deadline: admin_requests.check_leaders(self.router, topic, deadline=deadline),
            f"waiting for the leaders of topic {topic!r}",
        )
        return is_new

    def topic_config(self, topic: str) -> Mapping[str, str]:
        return self.queries.retry(
            lambda deadline: admin_requests.topic_config(self.router, topic, deadline=deadline),
            f"describing the settings of topic {topic!r}",
            partitions=[TopicPartition(topic, 0)],
        )

    def broker_config(self) -> Mapping[str, str] | None:
        tries = 0

        def ask(deadline: float) -> Mapping[str, str]:
            nonlocal tries
            brokers = admin_requests.brokers(self.router, deadline=deadline)
            asked = brokers[tries % len(brokers)]
            tries += 1
            return admin_requests.broker_config(self.router, asked, deadline=deadline)

        try:
            return self.queries.retry(ask, "describing the settings of a broker")
        except AccessError:
            return None

    def replication_of(self, topic: str) -> int:
        return self.queries.retry(
            lambda deadline: admin_requests.replication_of(self.router, topic, deadline=deadline),
            f"looking for the replicas of topic {topic!r}",
            partitions=[TopicPartition(topic, 0)],
        )

    def broker_count(self) -> int:
        return self.queries.retry(
            lambda deadline: len(admin_requests.brokers(self.router, deadline=deadline)),
            "counting brokers",
        )


class _AskingEach(Generic[K, T]):
    """One question about many: each try asks about what has not been answered yet."""

    def __init__(
        self,
        keys: Collection[K],
        ask: Callable[[Collection[K], float], Mapping[K, T | ApiError | KafkaError]],
    ) -> None:
        self.answers: dict[K, T] = {}
        self.left = list(keys)
        self._ask = ask

    def __call__(self, deadline: float) -> None:
        failures: list[ApiError | KafkaError] = []
        for key, answer in self._ask(self.left, deadline).items() if self.left else ():
            if isinstance(answer, ApiError | KafkaError):
                failures.append(answer)
            else:
                self.answers[key] = answer
        self.left = [key for key in self.left if key not in self.answers]
        if failures:
            # While one may pass the others can wait to be told.
            raise max(failures, key=is_retriable)


class _Listing:
    """All that is under a prefix: each try asks all brokers anew, since coordinators move."""

    def __init__(self, router: Router, id_prefix: str) -> None:
        self._router = router
        self._id_prefix = id_prefix
        self._failures: dict[int, int] = {}

    def __call__(self, deadline: float) -> Sequence[TransactionListing]:
        found: dict[str, TransactionListing] = {}
        failures: list[ApiError | KafkaError] = []
        given_up: list[ApiError | KafkaError] = []
        brokers = admin_requests.brokers(self._router, deadline=deadline)
        answers = wire.list_transactions(self._router, self._id_prefix, brokers, deadline=deadline)
        for broker, answer in answers.items():
            if isinstance(answer, KafkaError) and not self._is_worth_another(broker, answer):
                given_up.append(answer)
            elif isinstance(answer, ApiError | KafkaError):
                failures.append(answer)
            else:
                for one in answer:
                    # While a coordinator moves two brokers may have an id: what is open counts.
                    if one.transactional_id not in found or one.state is TransactionState.ONGOING:
                        found[one.transactional_id] = one
        if len(given_up) == len(answers):
            failures += given_up
        if failures:
            raise max(failures, key=is_retriable)
        for error in given_up:
            LOG.warning("transactions of %r are listed without %s", self._id_prefix, error)
        return list(found.values())

    def _is_worth_another(self, broker: Broker, error: KafkaError) -> bool:
        """What a broker that is gone coordinated is another one's, which is asked too."""
        failures = self._failures.get(broker.broker_id, 0) + 1
        self._failures[broker.broker_id] = failures
        return not isinstance(error, BrokerUnreachableError) or failures < _LISTING_TRIES


def _final(
    transactional_id: str, answer: ErrorCode | ApiError | KafkaError
) -> ErrorCode | ApiError | KafkaError:
    """The same, but `ApiError` for a code that is no final answer to EndTxn."""
    if not isinstance(answer, ErrorCode):
        return answer
    may_be_another = (
        REACTIONS[answer] not in (Reaction.SUCCEED, Reaction.FAIL)
        or answer is ErrorCode.unknown_server_error
        or issubclass(error_class(answer), AccessError)
    )
    doing = f"ending the transaction of {transactional_id!r}"
    return ApiError(answer, doing) if may_be_another else answer


def _fenced(transactional_id: str, code: ErrorCode) -> ProducerFencedError:
    return ProducerFencedError(
        f"transactional id {transactional_id!r} has another owner by now: the coordinator said "
        f"{format_code(code)}."
    )


def _timeout_too_long(transactional_id: str, timeout_ms: int) -> OptionError:
    return OptionError(
        f"taking transactional id {transactional_id!r} failed: its transactions' timeout of "
        f"{timeout_ms} ms is more than the brokers allow; lower option 'transactionTimeout', or "
        "raise 'transaction.max.timeout.ms' of the brokers"
    )


def _is_lack_of_two_phases(code: ErrorCode) -> bool:
    return code in (
        ErrorCode.invalid_txn_state,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.unsupported_version,
    )


def _no_two_phases(transactional_id: str, reason: str) -> OptionError:
    return OptionError(
        f"taking transactional id {transactional_id!r} failed: option 'twoPhaseCommit' is set, and "
        f"the brokers have no transactions of two phases, or not for this principal ({reason}); "
        "unset it, or set 'transaction.two.phase.commit.enable' and "
        "'unstable.api.versions.enable' of the brokers and grant TWO_PHASE_COMMIT on this id"
    )
