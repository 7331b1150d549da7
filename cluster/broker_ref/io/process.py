"""A broker in its own process, which can be killed with SIGKILL.

Starts `python -m broker_ref` as a child process, waits until the broker accepts requests, stops or
kills it, and restarts it with the same port and directory. Invariant: after `close`, no process,
open file or socket remains.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from broker_ref.io.port import PortReservation
from broker_ref.io.private_files import private_directory, write_private
from broker_ref.security.properties import format_properties

_READY_TIMEOUT_SECONDS = 30.0
_STOP_TIMEOUT_SECONDS = 30.0


class BrokerProcessError(Exception):
    """The process did not start or stop as requested. The message contains its stderr."""


class BrokerProcess:
    """A `python -m broker_ref` process with one directory and one port.

    The process can be restarted. If `port` is 0, a free port is reserved until `close`. `configs`
    contains Kafka's broker configs. The context manager starts the process on entry and kills it on
    exit.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        configs: Mapping[str, str] | None = None,
        log_level: str = "info",
    ) -> None:
        self._reservation = PortReservation(host, port)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as this object)
        self._process: subprocess.Popen[bytes] | None = None
        self._bootstrap_servers = ""
        # Configs can contain secrets, which other users could see on a command line.
        self._config_file = data / "server.properties"
        self._configs = dict(configs or {})
        self._command = [sys.executable, "-m", "broker_ref", "--brokers", "1"]
        self._command += ["--data", str(data), "--host", host, "--port", str(self.port)]
        self._command += ["--log-level", log_level, "--config-file", str(self._config_file)]

    @property
    def port(self) -> int:
        return self._reservation.port

    @property
    def bootstrap_servers(self) -> str:
        """Return the address that the broker printed, or an empty string before the first start."""
        return self._bootstrap_servers

    @property
    def pid(self) -> int:
        """Return the process id. Raises: BrokerProcessError if the process is not running."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, timeout_seconds: float = _READY_TIMEOUT_SECONDS) -> None:
        """Start the process and wait until the broker accepts requests from clients.

        Raises: BrokerProcessError if the process is already running, exits, or is not ready within
        `timeout_seconds`; OSError if the config file cannot be written.
        """
        if self.is_running:
            raise BrokerProcessError(f"Broker process {self.pid} is already running.")
        self._reap()
        private_directory(self._config_file.parent)
        write_private(self._config_file, format_properties(self._configs))
        self._process = subprocess.Popen(  # noqa: S603 (our own command line, no shell)
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log
        )
        try:
            self._bootstrap_servers = self._read_ready_line(timeout_seconds)
        except BrokerProcessError:
            self.kill()
            raise

    def terminate(self, *, timeout_seconds: float = _STOP_TIMEOUT_SECONDS) -> int:
        """Stop the process cleanly (SIGTERM) and return its exit code.

        If the process does not exit within `timeout_seconds`, it is killed. Raises:
        BrokerProcessError if the process is not running or was killed.
        """
        process = self._running()
        process.terminate()
        try:
            process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerProcessError(
                f"The broker did not exit within {timeout_seconds} s after SIGTERM. Its "
                f"stderr:\n{self.logs()}"
            ) from None
        return self._reap()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has exited. Do nothing if it is not running."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def logs(self) -> str:
        """Return the broker's stderr output since this object was created."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def close(self) -> None:
        """Kill the process and release the port. The data directory is not removed."""
        self.kill()
        self._log.close()
        self._reservation.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise BrokerProcessError(
                f"The broker process is not running. Its stderr:\n{self.logs()}"
            )
        return self._process

    def _reap(self) -> int:
        process = self._process
        self._process = None
        if process is None:
            return 0
        exit_code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return exit_code

    def _read_ready_line(self, timeout_seconds: float) -> str:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_seconds
        line = b""
        while not line.endswith(b"\n"):
            remaining_seconds = max(deadline - time.monotonic(), 0)
            if not select.select([process.stdout], [], [], remaining_seconds)[0]:
                raise BrokerProcessError(
                    f"The broker was not ready within {timeout_seconds} s. Its "
                    f"stderr:\n{self.logs()}"
                )
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                exit_code = process.wait()
                raise BrokerProcessError(
                    f"The broker exited with code {exit_code} before it was ready. Its "
                    f"stderr:\n{self.logs()}"
                )
            line += chunk
        return line.decode().strip()
