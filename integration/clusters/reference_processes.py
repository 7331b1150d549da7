"""The reference broker as an operating-system process, so that SIGKILL is real."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from broker_ref.io.process import BrokerProcess
from integration.clusters import topics

BROKER_ID = 1


class ReferenceProcessesCluster:
    """A `Cluster` of one `broker_ref` broker in a process of its own."""

    def __init__(self, *, configs: Mapping[str, str] | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="broker_ref-")
        self._broker = BrokerProcess(Path(self._temporary.name), configs=configs)
        try:
            self._broker.start()
        except BaseException:
            self.close()
            raise

    @property
    def backend(self) -> str:
        return "reference-processes"

    @property
    def version(self) -> str:
        return "broker_ref"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._broker.port}"

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic and wait until its partitions have leaders."""
        topics.create_topic(self.bootstrap_servers, name, partitions=partitions, configs=configs)

    def stop_broker(self, broker_id: int) -> None:
        """Stop it in good order (SIGTERM)."""
        _check_id(broker_id)
        self._broker.terminate()

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL: it has no time to write or say anything."""
        _check_id(broker_id)
        self._broker.kill()

    def start_broker(self, broker_id: int) -> None:
        """Start it again on the same port and directory; returns when it serves."""
        _check_id(broker_id)
        self._broker.start()

    def logs(self) -> str:
        """What the broker has written to its standard error."""
        return self._broker.logs()

    def close(self) -> None:
        if self._broker.is_running:
            self._broker.terminate()
        self._broker.close()
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_id(broker_id: int) -> None:
    if broker_id != BROKER_ID:
        raise ValueError(f"there is no broker {broker_id}, only broker {BROKER_ID}")
