"""Clients kept open between tasks: Spark reuses Python workers, and connecting costs.

Purpose: lend a client to one task at a time and keep it for the next. Invariant: a client that
saw an error is not lent again. What it must not know: Spark, engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark_kafka.client.base import KafkaClient
from pyspark_kafka.options import ClientOptions

_IDLE_MAX: Final = 4

_Key = tuple[object, ...]


class ClientPool:
    """Idle clients of one process, the longest idle first."""

    def __init__(self, open_client: Callable[[ClientOptions], KafkaClient]) -> None:
        self._open_client = open_client
        self._idle: dict[_Key, KafkaClient] = {}

    @contextmanager
    def lend(self, options: ClientOptions) -> Iterator[KafkaClient]:
        key = _key(options)
        client = self._idle.pop(key, None) or self._open_client(options)
        try:
            yield client
        except Exception:
            client.close()
            raise
        except BaseException:
            # The reader was closed early (GeneratorExit): the client is as good as before.
            self._keep(key, client)
            raise
        self._keep(key, client)

    def _keep(self, key: _Key, client: KafkaClient) -> None:
        replaced = self._idle.pop(key, None)
        self._idle[key] = client
        if replaced is not None:
            replaced.close()
        elif len(self._idle) > _IDLE_MAX:
            self._idle.pop(next(iter(self._idle))).close()


def _key(options: ClientOptions) -> _Key:
    """All that makes clients differ; a made-up group id does not."""
    return (
        tuple(sorted(options.kafka.items())),
        options.engine,
        options.poll_timeout_ms,
        options.fetch_offset_num_retries,
        options.fetch_offset_retry_interval_ms,
    )
