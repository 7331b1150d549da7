"""A standalone Spark cluster of two hosts, for task retries and speculative attempts.

In `local` mode Spark does not retry a task on another host, and Spark never starts a speculative
attempt on the host of the first attempt. The hosts are two loopback addresses with one worker of
one core each. Invariant: all processes have ended when the context closes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

_HOSTS: Final = ("127.0.0.1", "127.0.0.2")
_START_TIMEOUT_S: Final = 120
_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"


@contextmanager
def standalone(directory: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the URL of the master. Executors and Python workers inherit `environment`."""
    inherited = {
        "PYSPARK_PYTHON": sys.executable,
        **os.environ,
        "SPARK_DAEMON_JAVA_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "SPARK_NO_DAEMONIZE": "1",
        **environment,
    }
    with ExitStack() as running:

        def start(main: str, *arguments: str, pattern: str) -> str:
            command = [str(_CLASS), f"org.apache.spark.deploy.{main}", "--port", "0"]
            daemon = _daemon([*command, "--webui-port", "0", *arguments], inherited, pattern)
            return running.enter_context(daemon)

        master = start("master.Master", "--host", _HOSTS[0], pattern=r"(spark://\S+:\d+)")
        for host in _HOSTS:
            location = ("--host", host, "--work-dir", str(directory / host))
            start(
                "worker.Worker",
                *location,
                *("--cores", "1", "--memory", "1g", master),
                pattern="(Successfully registered) with master",
            )
        yield master


@contextmanager
def _daemon(command: list[str], environment: Mapping[str, str], pattern: str) -> Iterator[str]:
    """Start a daemon. When its log matches the pattern, yield the first group of the match."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )
    watchdog = threading.Timer(_START_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        assert process.stderr is not None
        log: list[str] = []
        for line in process.stderr:
            log.append(line)
            if found := re.search(pattern, line):
                break
        else:
            raise AssertionError(f"{command[1]} did not start:\n{''.join(log)}")
        watchdog.cancel()
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()  # Read the log, so that the daemon never blocks when it writes to it.
        yield found.group(1)
    finally:
        watchdog.cancel()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
