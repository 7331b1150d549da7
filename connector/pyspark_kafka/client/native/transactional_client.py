"""`TransactionalClient` over the wire client.

Purpose: retry the single tries of `wire`. Invariant: every call ends within
`kafka.default.api.timeout.ms`; a final error code raises at once; in a request about many ids, one
without an answer does not delay the others. What it must not know: Spark, the commit protocol.
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
    reason_of,
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
_MARKER_BACKOFF: Final = Backoff(first_s=0.02, longest_s=0.25, multiplier=1.5)
"""Short, since markers are mostly written within milliseconds and every planning waits for them."""
_NO_SUCH_VERSION: Final = f"they do not support InitProducerId v{wire.FIRST_TWO_PHASE}"
_LISTING_TRIES: Final = 3
"""Tries for a broker that does not answer; other brokers take over its coordinators."""
_FENCED: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.producer_fenced,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTransactionalClient(NativeClient):
    """Implements `TransactionalClient`. For one thread and one process."""

    # --- transactions ---

    def transaction_version(self) -> TransactionVersion:
        def ask(deadline: float) -> int:
            features = self.router.any_connection(deadline=deadline).versions.features
            return features.get(_FEATURE, 0)

        level = self.queries.retry(ask, "requesting the transaction version")
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
            except ApiError as error:
                if error.code in _FENCED:
                    raise _fenced(transactional_id, error.code) from None
                if error.code is ErrorCode.invalid_transaction_timeout:
                    raise _timeout_too_long(transactional_id, timeout_ms) from None
                if two_phase_commit and _lacks_two_phase_commit(error.code):
                    raise _no_two_phase_commit(transactional_id, format_code(error.code)) from None
                raise
            except UnsupportedVersionError:
                if two_phase_commit:
                    raise _no_two_phase_commit(transactional_id, _NO_SUCH_VERSION) from None
                raise

        return self.queries.retry(ask, f"initializing transactional id {transactional_id!r}")

    def _once_markers_are_written(self, once: Callable[[float], T], deadline: float) -> T:
        """Retry with short pauses while the markers of an earlier transaction are written."""
        tries = 0
        while True:
            try:
                return once(deadline)
            except ApiError as error:
                tries += 1
                if error.code is not ErrorCode.concurrent_transactions or not _MARKER_BACKOFF.pause(
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

        request = _RetryEach(by_id, ask)
        try:
            replace(self.queries, backoff=_MARKER_BACKOFF).retry(
                request, f"ending {len(by_id)} transactions"
            )
        except (AccessError, UnsupportedVersionError):
            raise
        except KafkaError as error:
            LOG.warning(
                "The outcome of EndTxn is unknown for %d transactions: %s",
                len(request.left),
                reason_of(error),
            )
        return {name: request.answers.get(name) for name in by_id}

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> Mapping[str, TransactionDescription]:
        request = _RetryEach(
            transactional_ids,
            lambda names, deadline: wire.describe_transactions(
                self.router, names, deadline=deadline
            ),
        )
        self.queries.retry(request, f"describing {len(request.left)} transactions")
        return {name: found for name, found in request.answers.items() if found is not None}

    def list_transactions(self, id_prefix: str) -> Sequence[TransactionListing]:
        listing = _Listing(self.router, id_prefix)
        return self.queries.retry(listing, f"listing transactions with prefix {id_prefix!r}")

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
            errors=FetchErrors(
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
            f"describing the configuration of topic {topic!r}",
            partitions=[TopicPartition(topic, 0)],
        )

    def broker_config(self) -> Mapping[str, str] | None:
        tries = 0

        def ask(deadline: float) -> Mapping[str, str]:
            nonlocal tries
            brokers = admin_requests.brokers(self.router, deadline=deadline)
            broker = brokers[tries % len(brokers)]
            tries += 1
            return admin_requests.broker_config(self.router, broker, deadline=deadline)

        try:
            return self.queries.retry(ask, "describing the configuration of a broker")
        except AccessError:
            return None

    def replication_of(self, topic: str) -> int:
        return self.queries.retry(
            lambda deadline: admin_requests.replication_of(self.router, topic, deadline=deadline),
            f"requesting the replicas of topic {topic!r}",
            partitions=[TopicPartition(topic, 0)],
        )

    def broker_count(self) -> int:
        return self.queries.retry(
            lambda deadline: len(admin_requests.brokers(self.router, deadline=deadline)),
            "counting brokers",
        )


class _RetryEach(Generic[K, T]):
    """A request about many keys: each try is for the keys without an answer."""

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
            # A retriable error first, so that all keys are tried again.
            raise max(failures, key=is_retriable)


class _Listing:
    """Lists transactions by prefix: each try asks all brokers, since coordinators move."""

    def __init__(self, router: Router, id_prefix: str) -> None:
        self._router = router
        self._id_prefix = id_prefix
        self._failures: dict[int, int] = {}

    def __call__(self, deadline: float) -> Sequence[TransactionListing]:
        found: dict[str, TransactionListing] = {}
        failures: list[ApiError | KafkaError] = []
        skipped: list[ApiError | KafkaError] = []
        brokers = admin_requests.brokers(self._router, deadline=deadline)
        answers = wire.list_transactions(self._router, self._id_prefix, brokers, deadline=deadline)
        for broker, answer in answers.items():
            if isinstance(answer, KafkaError) and not self._is_worth_retrying(broker, answer):
                skipped.append(answer)
            elif isinstance(answer, ApiError | KafkaError):
                failures.append(answer)
            else:
                for one in answer:
                    # While a coordinator moves, two brokers may have an id: prefer the open one.
                    if one.transactional_id not in found or one.state is TransactionState.ONGOING:
                        found[one.transactional_id] = one
        if len(skipped) == len(answers):
            failures += skipped
        if failures:
            raise max(failures, key=is_retriable)
        for error in skipped:
            LOG.warning(
                "The transactions with prefix %r are listed without those of one broker: %s",
                self._id_prefix,
                reason_of(error),
            )
        return list(found.values())

    def _is_worth_retrying(self, broker: Broker, error: KafkaError) -> bool:
        """Return whether to try this broker again; other brokers take over what it coordinated."""
        failures = self._failures.get(broker.broker_id, 0) + 1
        self._failures[broker.broker_id] = failures
        return not isinstance(error, BrokerUnreachableError) or failures < _LISTING_TRIES


def _final(
    transactional_id: str, answer: ErrorCode | ApiError | KafkaError
) -> ErrorCode | ApiError | KafkaError:
    """Return the answer, or an `ApiError` for a code that is not final for EndTxn."""
    if not isinstance(answer, ErrorCode):
        return answer
    is_retriable = (
        REACTIONS[answer] not in (Reaction.SUCCEED, Reaction.FAIL)
        or answer is ErrorCode.unknown_server_error
        or issubclass(error_class(answer), AccessError)
    )
    operation = f"ending the transaction of {transactional_id!r}"
    return ApiError(answer, operation) if is_retriable else answer


def _fenced(transactional_id: str, code: ErrorCode) -> ProducerFencedError:
    return ProducerFencedError(
        f"Another producer now owns transactional id {transactional_id!r}: the coordinator "
        f"answered {format_code(code)}.",
        transactional_id=transactional_id,
    )


def _timeout_too_long(transactional_id: str, timeout_ms: int) -> OptionError:
    return OptionError(
        f"Initializing transactional id {transactional_id!r} failed: the transaction timeout of "
        f"{timeout_ms} ms is above the limit of the brokers.",
        advice="Lower option 'transactionTimeout', or raise 'transaction.max.timeout.ms' of the "
        "brokers.",
        option="transactionTimeout",
        transactional_id=transactional_id,
    )


def _lacks_two_phase_commit(code: ErrorCode) -> bool:
    return code in (
        ErrorCode.invalid_txn_state,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.unsupported_version,
    )


def _no_two_phase_commit(transactional_id: str, reason: str) -> OptionError:
    return OptionError(
        f"Initializing transactional id {transactional_id!r} failed: option 'twoPhaseCommit' is "
        "set, but the brokers do not support two-phase commit, or do not allow it for this "
        f"principal ({reason}).",
        advice="Unset 'twoPhaseCommit', or set 'transaction.two.phase.commit.enable' and "
        "'unstable.api.versions.enable' of the brokers and grant TWO_PHASE_COMMIT on this id.",
        option="twoPhaseCommit",
        transactional_id=transactional_id,
    )
