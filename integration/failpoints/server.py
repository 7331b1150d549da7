"""A server that forks a process per connection: `python -m integration.failpoints.server SOCKET`.

A forked process starts quickly and inherits all imported modules. Invariant: child processes share
only imported modules and the results of warm-ups. When the server's stdin is closed, all child
processes end, including those that are stopped (SIGSTOP) at a failpoint.
"""

from __future__ import annotations

import gc
import logging
import os
import pkgutil
import selectors
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Listener

import pyspark_kafka
from integration.failpoints import hook
from integration.failpoints.messages import (
    Call,
    Failed,
    FaultReached,
    Finished,
    Resume,
    RowsLost,
    Started,
)
from pyspark_kafka.sink.exactly_once import steps

_NOT_FORK_SAFE = ("pyspark_kafka.client.librdkafka",)


def _import_everything() -> None:
    for module in pkgutil.walk_packages(pyspark_kafka.__path__, "pyspark_kafka."):
        if not module.name.startswith(_NOT_FORK_SAFE):
            import_module(module.name)
    import_module("integration.failpoints.sink_calls")
    _settle()


def _settle() -> None:
    """Exclude all objects from garbage collection in the children."""
    gc.collect()
    gc.freeze()


def _serve(path: str) -> None:
    with Listener(path, family="AF_UNIX") as listener, selectors.DefaultSelector() as selector:
        _import_everything()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps children
        selector.register(sys.stdin, selectors.EVENT_READ)
        accepting = listener._listener._socket  # type: ignore[attr-defined]
        selector.register(accepting, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sys.stdin in ready:
                return
            with listener.accept() as connection:
                call = connection.recv()
                assert isinstance(call, Call), call
                if call.warms_up:
                    connection.send(Finished(value=_value(call), reached=()))
                    _settle()
                elif os.fork() == 0:
                    _run_child(connection, call)


def _run_child(connection: Connection, call: Call) -> None:
    """Run the call in this child process, and exit."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _respond(connection, call)
        status = 0
    except (EOFError, BrokenPipeError):
        pass  # the harness closed the connection
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        os._exit(status)


class _LostRowsHandler(logging.Handler):
    """Sends `RowsLost` for each log record that has a `lost_transactional_ids` attribute."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        transactional_ids = getattr(record, "lost_transactional_ids", None)
        if transactional_ids:
            with suppress(OSError):
                self._connection.send(RowsLost(transactional_ids=transactional_ids))


def _respond(connection: Connection, call: Call) -> None:
    connection.send(Started(process_id=os.getpid()))
    logging.getLogger(pyspark_kafka.__name__).addHandler(_LostRowsHandler(connection))

    def wait() -> None:
        message = connection.recv()
        assert isinstance(message, Resume), message

    recorder = hook.Recorder(
        faults=call.faults, notify=lambda fault: connection.send(FaultReached(fault)), wait=wait
    )
    hook.install(recorder)
    os.environ[steps.VARIABLE] = hook.NAME
    try:
        value = _value(call)
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        connection.send(
            Failed(kind=type(error).__name__, text=text, reached=tuple(recorder.reached))
        )
        return
    connection.send(Finished(value=value, reached=tuple(recorder.reached)))


def _value(call: Call) -> bytes:
    function = getattr(import_module("integration.failpoints.sink_calls"), call.function)
    value: bytes = function(*call.arguments)
    return value


def main(path: str) -> None:
    os.setpgid(0, 0)
    logging.basicConfig(level=logging.WARNING, format="%(process)d %(levelname)s %(message)s")
    try:
        _serve(path)
    finally:
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        os.killpg(0, signal.SIGKILL)  # kills all children and this process


if __name__ == "__main__":
    main(*sys.argv[1:])
