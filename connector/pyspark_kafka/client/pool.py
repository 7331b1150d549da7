"""A pool of idle clients: Spark reuses Python workers, and new connections take time.

Invariant: a client is lent to one task at a time; after an error it is closed; it is never lent in
another process than the one that opened it, since Spark forks its Python workers. What it must not
know: Spark, engines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from pyspark_kafka.client.port import KafkaReads
from pyspark_kafka.options.values import ClientOptions

_IDLE_MAX: Final = 4

_Key = tuple[object, ...]
_Client = TypeVar("_Client", bound=KafkaReads)


class ClientPool(Generic[_Client]):
    """The idle clients of one process; the one that has been idle longest is first."""

    def __init__(self, open_client: Callable[[ClientOptions], _Client]) -> None:
        self._open_client = open_client
        self._idle_of: dict[int, dict[_Key, _Client]] = {}

    @property
    def _idle(self) -> dict[_Key, _Client]:
        """The clients of this process. Those of a parent process must not be closed."""
        return self._idle_of.setdefault(os.getpid(), {})

    @contextmanager
    def lend(self, options: ClientOptions) -> Iterator[_Client]:
        """Lend an idle client with the same settings, or open one."""
        key = _key(options)
        client = self._idle.pop(key, None) or self._open_client(options)
        try:
            yield client
        except GeneratorExit:
            # The reader was closed early, without an error.
            self._keep(key, client)
            raise
        except BaseException:  # an error, or an interruption in the middle of a request
            client.close()
            raise
        self._keep(key, client)

    def _keep(self, key: _Key, client: _Client) -> None:
        idle = self._idle
        replaced = idle.pop(key, None)
        idle[key] = client
        if replaced is not None:
            replaced.close()
        elif len(idle) > _IDLE_MAX:
            idle.pop(next(iter(idle))).close()


def _key(options: ClientOptions) -> _Key:
    """Return the settings that distinguish clients; a generated group id does not."""
    return (
        tuple(sorted(options.kafka.items())),
        options.engine,
        options.poll_timeout_ms,
        options.fetch_offset_num_retries,
        options.fetch_offset_retry_interval_ms,
    )
