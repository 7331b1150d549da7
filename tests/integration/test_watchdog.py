"""The watchdog kills the child when its parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from integration.clusters.watchdog import Watchdog

_OWNER = """
import subprocess, time
from integration.clusters.watchdog import Watchdog
child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True)
watchdog = Watchdog(child.pid)
print(child.pid, flush=True)
time.sleep(600)
"""


def _is_alive(process_id: int) -> bool:
    """Return whether the process is running and is not a zombie."""
    found = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() not in {"", "Z", "Z+", "Zs"}


def test_the_child_of_a_killed_process_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child_id = int(owner.stdout.readline())
        try:
            assert _is_alive(child_id)
            owner.kill()
            owner.wait()
            deadline_s = time.monotonic() + 20
            while _is_alive(child_id):
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
        finally:
            if _is_alive(child_id):
                os.kill(child_id, signal.SIGKILL)


def test_an_unwatched_child_keeps_running() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        Watchdog(child.pid).close()
        assert child.poll() is None
        child.kill()
