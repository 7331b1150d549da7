"""The `TransactionalClient` of the `native` engine.

The client adds retries to the requests in `wire`. Invariants: every call ends within
`kafka.default.api.timeout.ms`. Only retriable error codes are retried. If a request contains many
transactional ids, an id without a response does not delay the other ids.
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
    counted,
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
"""Backoffs are short: micro-batches wait for markers, which usually take milliseconds to write."""
_NAMED_MAX: Final = 3
_LISTING_TRIES: Final = 3
"""The number of queries to an unresponsive broker. Other brokers take over its coordinators."""
_FENCED: Final = frozenset(
    {
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.producer_fenced,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeTransactionalClient(NativeClient):
    """Implements `TransactionalClient`. Must be used in only one thread and one process."""

    # --- transactions ---

    def transaction_version(self) -> TransactionVersion:
        def call(deadline: float) -> int:
            features = self.router.any_connection(deadline=deadline).versions.features
            return features.get(_FEATURE, 0)

        level = self.queries.retry(call, "requesting the transaction version")
        return 2 if level >= _LATEST_VERSION else 1

    def init_producer_id(
        self,
        transactional_id: str,
        *,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        return self._init_producer_ids([transactional_id], timeout_ms, expected)[transactional_id]

    def init_producer_ids(
        self, transactional_ids: Collection[str], *, timeout_ms: int
    ) -> Mapping[str, ProducerIdAndEpoch]:
        return self._init_producer_ids(transactional_ids, timeout_ms, None)

    def _init_producer_ids(
        self,
        transactional_ids: Collection[str],
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
    ) -> Mapping[str, ProducerIdAndEpoch]:
        def call(
            names: Collection[str], deadline: float
        ) -> Mapping[str, ProducerIdAndEpoch | ApiError | KafkaError]:
            results = wire.init_producer_ids(
                self.router, names, timeout_ms=timeout_ms, expected=expected, deadline=deadline
            )
            for name, result in results.items():
                if isinstance(result, ApiError):
                    _check_init(name, result.code, timeout_ms)
            return results

        request = _RequestRemaining(transactional_ids, call)
        names = ", ".join(repr(name) for name in request.remaining[:_NAMED_MAX])
        replace(self.queries, backoff=_MARKER_BACKOFF).retry(
            request,
            f"initializing transactional id {names}",
            request_count=len(request.remaining),
        )
        return request.results

    def end_transactions(
        self, ends: Collection[EndTransaction], *, timeout_ms: float | None = None
    ) -> Mapping[str, ErrorCode | None]:
        by_id = {end.transactional_id: end for end in ends}
        timeout_s = self.queries.api_timeout_s
        if timeout_ms is not None:
            timeout_s = min(timeout_s, timeout_ms / 1000)

        def call(
            names: Collection[str], deadline: float
        ) -> Mapping[str, ErrorCode | ApiError | KafkaError]:
            results = wire.end_transactions(
                self.router, [by_id[name] for name in names], deadline=deadline
            )
            return {name: _final(name, result) for name, result in results.items()}

        request = _RequestRemaining(by_id, call)
        try:
            replace(self.queries, backoff=_MARKER_BACKOFF).retry(
                request,
                f"ending {counted(len(by_id), 'transaction')}",
                timeout_s=timeout_s,
                request_count=len(by_id),
            )
        except (AccessError, UnsupportedVersionError):
            raise
        except KafkaError as error:
            LOG.warning(
                "The outcome of EndTxn is unknown for %s: %s",
                counted(len(request.remaining), "transaction"),
                reason_of(error),
            )
        return {name: request.results.get(name) for name in by_id}

    def describe_transactions(
        self, transactional_ids: Collection[str]
    ) -> Mapping[str, TransactionDescription]:
        request = _RequestRemaining(
            transactional_ids,
            lambda names, deadline: wire.describe_transactions(
                self.router, names, deadline=deadline
            ),
        )
        count = counted(len(request.remaining), "transaction")
        self.queries.retry(request, f"describing {count}")
        return {name: found for name, found in request.results.items() if found is not None}

    def list_transactions(
        self, id_prefix: str, *states: TransactionState
    ) -> Sequence[TransactionListing]:
        listing = _ListTransactions(self.router, id_prefix, states)
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
            request_timeout_s=settings.request_timeout_s,
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
        attempts = 0

        def call(deadline: float) -> Mapping[str, str]:
            nonlocal attempts
            brokers = admin_requests.brokers(self.router, deadline=deadline)
            broker = brokers[attempts % len(brokers)]
            attempts += 1
            return admin_requests.broker_config(self.router, broker, deadline=deadline)

        try:
            return self.queries.retry(call, "describing the configuration of a broker")
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


class _RequestRemaining(Generic[K, T]):
    """A request for many keys. Each attempt contains only the keys that have no result yet."""

    def __init__(
        self,
        keys: Collection[K],
        call: Callable[[Collection[K], float], Mapping[K, T | ApiError | KafkaError]],
    ) -> None:
        self.results: dict[K, T] = {}
        self.remaining = list(keys)
        self._call = call

    def __call__(self, deadline: float) -> None:
        failures: list[ApiError | KafkaError] = []
        for key, result in self._call(self.remaining, deadline).items() if self.remaining else ():
            if isinstance(result, ApiError | KafkaError):
                failures.append(result)
            else:
                self.results[key] = result
        self.remaining = [key for key in self.remaining if key not in self.results]
        if failures:
            # Prefer a retriable error, because it causes a new attempt for all remaining keys.
            raise max(failures, key=is_retriable)


class _ListTransactions:
    """Lists the transactions whose transactional id has the given prefix.

    Each attempt queries all brokers, because a coordinator can move to another broker.
    """

    def __init__(self, router: Router, id_prefix: str, states: Sequence[TransactionState]) -> None:
        self._router = router
        self._id_prefix = id_prefix
        self._states = states
        self._failures: dict[int, int] = {}

    def __call__(self, deadline: float) -> Sequence[TransactionListing]:
        found: dict[str, TransactionListing] = {}
        failures: list[ApiError | KafkaError] = []
        skipped: list[ApiError | KafkaError] = []
        brokers = admin_requests.brokers(self._router, deadline=deadline)
        results = wire.list_transactions(
            self._router, self._id_prefix, self._states, brokers, deadline=deadline
        )
        for broker, result in results.items():
            if isinstance(result, KafkaError) and not self._is_worth_retrying(broker, result):
                skipped.append(result)
            elif isinstance(result, ApiError | KafkaError):
                failures.append(result)
            else:
                for one in result:
                    # While a coordinator moves, two brokers may return the same id. Prefer the
                    # listing with an open transaction.
                    if one.transactional_id not in found or one.state is TransactionState.ONGOING:
                        found[one.transactional_id] = one
        if len(skipped) == len(results):
            failures += skipped
        if failures:
            raise max(failures, key=is_retriable)
        for error in skipped:
            LOG.warning(
                "The list of transactions with prefix %r is incomplete, because a request to a "
                "broker failed: %s",
                self._id_prefix,
                reason_of(error),
            )
        return list(found.values())

    def _is_worth_retrying(self, broker: Broker, error: KafkaError) -> bool:
        """Return whether to query this broker again.

        A broker that remains unreachable is not queried again, because other brokers take over its
        role as transaction coordinator.
        """
        failures = self._failures.get(broker.broker_id, 0) + 1
        self._failures[broker.broker_id] = failures
        return not isinstance(error, BrokerUnreachableError) or failures < _LISTING_TRIES


def _final(
    transactional_id: str, result: ErrorCode | ApiError | KafkaError
) -> ErrorCode | ApiError | KafkaError:
    """Return the error code from EndTxn, or an `ApiError` if the error code is retriable."""
    if not isinstance(result, ErrorCode):
        return result
    is_retriable = (
        REACTIONS[result] not in (Reaction.SUCCEED, Reaction.FAIL)
        or result is ErrorCode.unknown_server_error
        or issubclass(error_class(result), AccessError)
    )
    operation = f"ending the transaction with transactional id {transactional_id!r}"
    return ApiError(result, operation) if is_retriable else result


def _check_init(transactional_id: str, code: ErrorCode, timeout_ms: int) -> None:
    """Raise an error for an InitProducerId error code that is not retriable."""
    if code in _FENCED:
        raise _fenced(transactional_id, code)
    if code is ErrorCode.invalid_transaction_timeout:
        raise _timeout_too_long(transactional_id, timeout_ms)


def _fenced(transactional_id: str, code: ErrorCode) -> ProducerFencedError:
    return ProducerFencedError(
        f"Another producer now owns transactional id {transactional_id!r}. The coordinator "
        f"returned {format_code(code)}.",
        transactional_id=transactional_id,
    )


def _timeout_too_long(transactional_id: str, timeout_ms: int) -> OptionError:
    return OptionError(
        f"Initializing transactional id {transactional_id!r} failed: the transaction timeout of "
        f"{timeout_ms} ms exceeds the limit of the brokers.",
        advice="Lower 'transactionTimeout', or raise the broker setting "
        "'transaction.max.timeout.ms'.",
        option="transactionTimeout",
        transactional_id=transactional_id,
    )
