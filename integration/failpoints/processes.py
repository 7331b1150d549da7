"""Starts processes through the fork server and waits for their outcomes.

A process receives a call and the faults to inject. Invariant: every wait has a timeout; a process
that does not respond is killed and reported. A process is signalled only while its connection is
open, so its process id cannot have been reused.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from integration.failpoints.hook import InjectedFault
from integration.failpoints.messages import (
    Call,
    Died,
    Failed,
    FaultReached,
    Finished,
    Outcome,
    Resume,
    RowsLost,
    Started,
)

RESPONSE_TIMEOUT_S: Final = 60.0
_START_TIMEOUT_S: Final = 60.0
_LOG_CHARACTERS_MAX: Final = 8_000


class ProcessTimeoutError(Exception):
    """A process did not end or reach a fault in time."""


class Process:
    """A process that runs one call.

    `lost_transactional_ids` are the ids of transactions that the process has reported as lost. The
    set is complete when `outcome` returns.
    """

    def __init__(self, connection: Connection, call: Call) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._ended = False
        self.call = call
        self.lost_transactional_ids: set[str] = set()
        connection.send(call)
        started = connection.recv()
        assert isinstance(started, Started), started
        self._process_id = started.process_id

    def outcome(
        self,
        on_fault: Callable[[Self, InjectedFault], None],
        *,
        timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> Outcome:
        """Wait until the call has ended, and return its outcome.

        `on_fault` is called when the process has reached the failpoint of a fault.
        """
        try:
            while True:
                message = self._receive(timeout_s)
                if isinstance(message, FaultReached):
                    on_fault(self, message.fault)
                elif isinstance(message, RowsLost):
                    self.lost_transactional_ids.update(message.transactional_ids)
                elif isinstance(message, Finished | Failed):
                    return message
                else:
                    return Died()
        finally:
            self._close()

    def stop(self) -> None:
        """Send SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Send SIGCONT, and let the process continue after its failpoint."""
        self._signal(signal.SIGCONT)
        self._connection.send(Resume())

    def kill(self) -> None:
        """Send SIGKILL, unless the process has already ended."""
        self._signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and wait for it to exit."""
        self.kill()
        self.outcome(lambda _process, _fault: None)

    def _receive(self, timeout_s: float) -> object:
        if not self._connection.poll(timeout_s):
            self.kill()
            raise ProcessTimeoutError(f"'{self.call.function}' did not end within {timeout_s:g} s")
        try:
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            return Died()

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._ended:
                try:
                    os.kill(self._process_id, number)
                except ProcessLookupError:
                    self._ended = True

    def _close(self) -> None:
        with self._lock:
            self._ended = True
        self._connection.close()


class ForkServer:
    """A context manager for the fork server.

    On exit, the server and all its children are killed.
    """

    def __init__(self) -> None:
        self._closing = ExitStack()
        directory = Path(
            self._closing.enter_context(tempfile.TemporaryDirectory(prefix="failpoints-"))
        )
        self._path = str(directory / "socket")
        self._log = directory / "log"
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "integration.failpoints.server", self._path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._closing.callback(self._end)
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            logged = self.log_tail()
            self.close()
            raise RuntimeError(f"the fork server did not start:\n{logged}")

    def start(self, call: Call) -> Process:
        """Start a process that runs the call."""
        connection = Client(self._path, family="AF_UNIX")
        try:
            return Process(connection, call)
        except BaseException:
            connection.close()
            raise

    def warm_up(self, function: str, *arguments: object) -> bytes:
        """Run a function in the server process. Its child processes inherit all loaded modules."""
        with Client(self._path, family="AF_UNIX") as connection:
            connection.send(Call(function=function, arguments=arguments, warms_up=True))
            outcome = connection.recv()
        assert isinstance(outcome, Finished), outcome
        return outcome.value

    def log_tail(self) -> str:
        """Return the last lines that the processes have written to stderr."""
        return self._log.read_text(errors="replace")[-_LOG_CHARACTERS_MAX:]

    def close(self) -> None:
        self._closing.close()

    def _end(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        self._server.wait(timeout=deadline_s - time.monotonic())
        self._server.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
