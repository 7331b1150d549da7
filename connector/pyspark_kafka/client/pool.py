"""A pool of idle clients, which lets tasks in the same Python worker reuse connections.

Invariant: a client is lent to one task at a time, and is closed after an error. Spark forks its
Python workers, so a client is used only in the process that opened it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from pyspark_kafka.client.port import KafkaReadClient
from pyspark_kafka.client.resolved import resolved_settings
from pyspark_kafka.options.values import ClientOptions

_IDLE_MAX: Final = 4

_Key = tuple[object, ...]
_Client = TypeVar("_Client", bound=KafkaReadClient)


class ClientPool(Generic[_Client]):
    """The idle clients of each process. The client that has been idle longest comes first."""

    def __init__(self, open_client: Callable[[ClientOptions], _Client]) -> None:
        self._open_client = open_client
        self._idle_of: dict[int, dict[_Key, _Client]] = {}

    @property
    def _idle(self) -> dict[_Key, _Client]:
        """The idle clients of this process, which must not close those of its parent process."""
        return self._idle_of.setdefault(os.getpid(), {})

    @contextmanager
    def lend(self, options: ClientOptions) -> Iterator[_Client]:
        """Lend an idle client with the same settings, or open a new client."""
        key = _key(options)
        client = self._idle.pop(key, None) or self._open_client(options)
        try:
            yield client
        except GeneratorExit:
            # The reader was closed early, without an error.
            self._keep(key, client)
            raise
        except BaseException:  # an error or an interrupted request
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
    """Return the settings that identify a client. Excludes the group id, which may be random.

    Config provider references in the settings are resolved. Therefore, a client with an old
    password is not used after a password rotation.
    """
    return (
        tuple(sorted(resolved_settings(options).values.items())),
        options.engine,
        options.poll_timeout_ms,
        options.fetch_offset_num_retries,
        options.fetch_offset_retry_interval_ms,
    )
