"""Converts librdkafka's errors to those of `pyspark_kafka.errors`.

Purpose: the table from error code to class, and the texts. Invariant: a text names the operation
and the servers, and never a setting's value. What it must not know: how callers handle errors.
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
"""Gets librdkafka's log lines, which would otherwise go to stderr."""
LOG.addHandler(
    logging.NullHandler()
)  # Otherwise warnings go to stderr without a configured handler.

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
    """Return the class for an error of librdkafka or of the broker."""
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
    """Return the connector's error; `operation` is a phrase like `fetching t-0 at offset 5`."""
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
    """Return the error for a timeout that `option` sets; `reason` is librdkafka's last error."""
    return BrokerUnreachableError(
        f"{sentence(operation)} failed: {bootstrap_servers} did not answer within {timeout_s:g} s "
        f"({reason}).",
        advice=f"{BrokerUnreachableError.remedy} To wait longer, raise '{option}'.",
        topic=topic,
        partition=partition,
        offset=offset,
        group_id=group_id,
    )


def describe(error: Code) -> str:
    """Return the text and the name of an error of librdkafka."""
    return f"{error.str()} ({error.name()})"


def code_of(exception: KafkaException) -> Code:
    """Return the error of librdkafka's exception, which is its only argument."""
    error = exception.args[0]
    return error if isinstance(error, Code) else Code(Code._FAIL, str(exception))


@dataclass(slots=True)
class ErrorEvents:
    """The global errors of one librdkafka handle, about brokers and logins.

    `unauthorized` is the first error about credentials or certificates since `forget`. librdkafka
    retries these until the timeout, mostly without success. `last` is the latest error of any kind,
    for the text of a timeout. Both are forgotten before the next request: a handle lives for days,
    and a broker may reject a login once, for example during a restart.
    """

    bootstrap_servers: str
    unauthorized: Code | None = field(default=None)
    last: Code | None = field(default=None)

    def __call__(self, error: Code) -> None:
        """The `error_cb` of a handle."""
        self.last = error
        if self.unauthorized is None and issubclass(error_class(error), AccessError):
            self.unauthorized = error

    def forget(self) -> None:
        """Forget all errors. Poll the handle before, since it may have queued old ones."""
        self.unauthorized = self.last = None

    def raise_if_unauthorized(self, operation: str) -> None:
        """Raise `AccessError` if the brokers refused the principal."""
        if self.unauthorized is not None:
            raise translate(
                self.unauthorized, operation=operation, bootstrap_servers=self.bootstrap_servers
            )

    def unreachable(self) -> str | None:
        """Return why no broker answers, if that is the latest error."""
        if self.last is not None and error_class(self.last) is BrokerUnreachableError:
            return str(self.last.str())
        return None
