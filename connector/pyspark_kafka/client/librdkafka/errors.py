"""Converts librdkafka's errors to the errors of `pyspark_kafka.errors`.

A table maps error codes to exception classes. Invariant: a message names the operation and the
bootstrap servers, and never contains the value of any other setting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from pyspark_kafka.errors import (
    AccessError,
    AuthenticationError,
    AuthorizationError,
    BrokerUnreachableError,
    CorruptBatchError,
    KafkaError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    sentence,
)

LOG: Final = logging.getLogger("pyspark_kafka.librdkafka")
"""The logger for librdkafka's log lines, which librdkafka would otherwise write to stderr."""
LOG.addHandler(logging.NullHandler())  # Without any handler, Python writes warnings to stderr.

_CODES_BY_CLASS: Final[Mapping[type[KafkaError], Iterable[int]]] = {
    BrokerUnreachableError: (
        Code._ALL_BROKERS_DOWN,
        Code._RESOLVE,
        Code._TIMED_OUT,
        Code._TRANSPORT,
        Code.BROKER_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
        Code.REQUEST_TIMED_OUT,
    ),
    UnknownTopicOrPartitionError: (
        Code._UNKNOWN_PARTITION,
        Code._UNKNOWN_TOPIC,
        Code.UNKNOWN_TOPIC_ID,
        Code.UNKNOWN_TOPIC_OR_PART,
    ),
    OffsetOutOfRangeError: (
        Code._AUTO_OFFSET_RESET,
        Code._LOG_TRUNCATION,
        Code.OFFSET_OUT_OF_RANGE,
    ),
    AuthenticationError: (
        Code._AUTHENTICATION,
        Code._SSL,
        Code.ILLEGAL_SASL_STATE,
        Code.SASL_AUTHENTICATION_FAILED,
        Code.UNSUPPORTED_SASL_MECHANISM,
    ),
    AuthorizationError: (
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.TOPIC_AUTHORIZATION_FAILED,
    ),
    CorruptBatchError: (Code._BAD_COMPRESSION, Code._BAD_MSG, Code.INVALID_MSG),
}
ERROR_BY_CODE: Final[Mapping[int, type[KafkaError]]] = {
    code: error for error, codes in _CODES_BY_CLASS.items() for code in codes
}


def error_class(error: Code) -> type[KafkaError]:
    """Return the error class for an error code from librdkafka or from a broker."""
    return ERROR_BY_CODE.get(error.code(), KafkaError)


def translate(
    error: Code,
    *,
    operation: str,
    bootstrap_servers: str,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    group_id: str | None = None,
) -> KafkaError:
    """Convert a librdkafka error to an error of `pyspark_kafka.errors`.

    `operation` is a phrase such as `fetching t-0 at offset 5`.
    """
    return error_class(error)(
        f"{sentence(operation)} failed at {bootstrap_servers}: {describe(error)}.",
        topic=topic,
        partition=partition,
        offset=offset,
        group_id=group_id,
    )


def unreachable(
    operation: str,
    *,
    bootstrap_servers: str,
    timeout_s: float,
    reason: str,
    option: str,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    group_id: str | None = None,
) -> KafkaError:
    """Return the error for brokers that could not be reached in time.

    `option` is the name of the option that sets the timeout. `reason` is librdkafka's last error.
    """
    return BrokerUnreachableError(
        f"{sentence(operation)} failed at {bootstrap_servers}: no attempt succeeded within "
        f"{timeout_s:g} s ({reason}).",
        advice=f"{BrokerUnreachableError.remedy} To wait longer, raise '{option}'.",
        topic=topic,
        partition=partition,
        offset=offset,
        group_id=group_id,
    )


def describe(error: Code) -> str:
    """Return the text and the name of a librdkafka error."""
    return f"{error.str()} ({error.name()})"


def code_of(exception: KafkaException) -> Code:
    """Return the error that is the only argument of a librdkafka exception."""
    error = exception.args[0]
    return error if isinstance(error, Code) else Code(Code._FAIL, str(exception))


@dataclass(slots=True)
class ErrorEvents:
    """Stores the global errors of one librdkafka handle: broker and authentication errors.

    `unauthorized` is the first authentication or authorization error since `clear` was called.
    After such an error, librdkafka retries until the timeout, usually without success. `last` is
    the latest error of any kind, which is included in timeout errors. Both fields are cleared
    before the next request, because a handle can exist for days and a broker may reject a login
    temporarily, for example during a restart.
    """

    bootstrap_servers: str
    unauthorized: Code | None = field(default=None)
    last: Code | None = field(default=None)

    def __call__(self, error: Code) -> None:
        """Store an error. The handle calls this method as its `error_cb`."""
        self.last = error
        if self.unauthorized is None and issubclass(error_class(error), AccessError):
            self.unauthorized = error

    def clear(self) -> None:
        """Clear all errors. Callers must poll the handle first to receive queued errors."""
        self.unauthorized = self.last = None

    def raise_if_unauthorized(self, operation: str) -> None:
        """Raise `AccessError` if a broker rejected the principal."""
        if self.unauthorized is not None:
            raise translate(
                self.unauthorized, operation=operation, bootstrap_servers=self.bootstrap_servers
            )

    def unreachable(self) -> str | None:
        """Return the latest error if it shows that brokers are unreachable, otherwise None."""
        if self.last is not None and error_class(self.last) is BrokerUnreachableError:
            return str(self.last.str())
        return None
