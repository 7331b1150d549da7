"""A cluster node that runs as a child process and can be restarted.

Starts the process and writes its output to a file. Stops, kills, pauses and resumes it by its
process id. Invariant: the child process does not run after `close`. If the parent process is
killed, a watchdog kills the child.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from integration.clusters.watchdog import Watchdog

STOP_TIMEOUT_S = 30.0
LOG_TAIL_BYTES = 16 * 1024


class NodeProcess:
    """A node as a child process.

    `name` is the name of the node in error messages. The process runs `command` in `directory`, and
    its output is written to the file `NAME.log` in this directory.
    """

    def __init__(self, name: str, command: Sequence[str], *, directory: Path) -> None:
        self._name = name
        self._command = list(command)
        self._directory = directory
        self._log = directory / f"{name.replace(' ', '-')}.log"
        self._log.unlink(missing_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._is_paused = False

    @property
    def name(self) -> str:
        """The name of the node in messages, such as `broker 1`."""
        return self._name

    @property
    def is_started(self) -> bool:
        """Whether the node was started and has not been stopped or killed since then.

        The value is also True if the node has exited on its own.
        """
        return self._process is not None

    @property
    def is_active(self) -> bool:
        """Whether `is_started` is True and the node is not paused."""
        return self._process is not None and not self._is_paused

    def failure(self) -> str | None:
        """Return why the node cannot become ready, or None."""
        code = self._started().poll()
        return None if code is None else f"the process exited with {code}"

    def start(self) -> None:
        """Start the node and return immediately. Raise `ValueError` if it is running."""
        if self._process is not None:
            raise ValueError(f"{self._name} is already running")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                # A keyboard interrupt must reach only the test run, which then stops the node.
                start_new_session=True,
            )
        self._watchdog = Watchdog(self._process.pid)

    def terminate(self) -> None:
        """Send SIGTERM and return immediately. The caller must call `stop` or `kill` afterwards."""
        process = self._started()
        process.send_signal(signal.SIGTERM)
        if self._is_paused:
            self.resume()

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the node cleanly, or with SIGKILL after a timeout."""
        self.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._started().wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        process = self._started()
        if self._watchdog is not None:
            self._watchdog.close()
        process.kill()
        process.wait()
        self._process = self._watchdog = None
        self._is_paused = False

    def pause(self) -> None:
        """Send SIGSTOP and wait until all threads are stopped."""
        process = self._started()
        process.send_signal(signal.SIGSTOP)
        # The signal takes effect a few milliseconds after it is sent.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._is_paused = True

    def resume(self) -> None:
        """Send SIGCONT. Raise `ValueError` if the node is not paused."""
        process = self._started()
        if not self._is_paused:
            raise ValueError(f"{self._name} is not paused")
        process.send_signal(signal.SIGCONT)
        self._is_paused = False

    def close(self) -> None:
        """Stop the node if it is running."""
        if self._process is not None:
            self.stop()

    def log_tail(self) -> str:
        """Return the end of the node's log."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ValueError(f"{self._name} is not running")
        return self._process
