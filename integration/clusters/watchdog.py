"""The watchdog that kills a child process when this process has ended.

A test run that is killed cannot stop its brokers, and a JVM continues to run after its parent has
exited. Therefore a shell waits until a pipe is closed and then kills the child by process id. The
operating system closes the pipe when this process ends. Invariant: the watchdog acts only if this
process ends without calling `close`. The caller calls `close` when it stops the child, so the
watchdog never kills another process that reuses the process id.
"""

from __future__ import annotations

import subprocess


class Watchdog:
    """The watchdog for a child process. It is active until `close` is called."""

    def __init__(self, process_id: int) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "$1"', "watchdog", str(process_id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A keyboard interrupt must not stop the watchdog.
            start_new_session=True,
        )

    def close(self) -> None:
        """Stop the watchdog without killing the child."""
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
