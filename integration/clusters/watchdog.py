"""Ends a child process when this process is gone.

Purpose: a killed test run cannot stop its brokers, and a JVM outlives its parent. A shell waits on
a pipe that closes with this process and then kills the child by its id. Invariant: it acts only if
this process ends without `close`, which directly follows the child's end, so that the id is still
the child's.
"""

from __future__ import annotations

import subprocess


class Watchdog:
    """Watches one child of this process until `close`."""

    def __init__(self, process_id: int) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill -9 "$1"', "watchdog", str(process_id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A keyboard interrupt must not end the watchdog.
            start_new_session=True,
        )

    def close(self) -> None:
        """Stop watching; the child continues."""
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None
        self._shell.stdin.close()
