"""Forks a process for every connection: `python -m integration.failpoints.server SOCKET`.

Purpose: processes of their own that begin with everything imported, as cheap as a fork. Invariant:
a child shares nothing with another but what was imported; all of them end when stdin of this one
is closed, those that are stopped too. What it must not know: what a child does, which is said by the
first message on its connection (`processes.Call`).
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
from integration.failpoints.messages import At, Call, Failed, Finished, GoOn, RowsLost, Started
from pyspark_kafka.sink.exactly_once import steps

_NOT_OF_A_FORK = ("pyspark_kafka.client.librdkafka",)


def _import_everything() -> None:
    for module in pkgutil.walk_packages(pyspark_kafka.__path__, "pyspark_kafka."):
        if not module.name.startswith(_NOT_OF_A_FORK):
            import_module(module.name)
    import_module("integration.failpoints.parts")
    _settle()


def _settle() -> None:
    """What is here stays, and no child need look at it."""
    gc.collect()
    gc.freeze()


def _serve(path: str) -> None:
    with Listener(path, family="AF_UNIX") as listener, selectors.DefaultSelector() as selector:
        _import_everything()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
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
                    connection.send(Finished(value=_value(call), met=()))
                    _settle()
                elif os.fork() == 0:
                    _be_child(connection, call)


def _be_child(connection: Connection, call: Call) -> None:
    """Never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _answer(connection, call)
        status = 0
    except (EOFError, BrokenPipeError):
        pass  # who asked is gone
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        os._exit(status)


class _LostRowsHandler(logging.Handler):
    """Sends `RowsLost` for each log record with the attribute `lost_transactional_ids`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        transactional_ids = getattr(record, "lost_transactional_ids", None)
        if transactional_ids:
            with suppress(OSError):
                self._connection.send(RowsLost(transactional_ids=transactional_ids))


def _answer(connection: Connection, call: Call) -> None:
    connection.send(Started(process_id=os.getpid()))
    logging.getLogger(pyspark_kafka.__name__).addHandler(_LostRowsHandler(connection))

    def wait() -> None:
        message = connection.recv()
        assert isinstance(message, GoOn), message

    watch = hook.Watch(orders=call.orders, tell=lambda order: connection.send(At(order)), wait=wait)
    hook.watch(watch)
    os.environ[steps.VARIABLE] = hook.NAME
    try:
        value = _value(call)
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        connection.send(Failed(kind=type(error).__name__, text=text, met=tuple(watch.met)))
        return
    connection.send(Finished(value=value, met=tuple(watch.met)))


def _value(call: Call) -> bytes:
    part = getattr(import_module("integration.failpoints.parts"), call.part)
    value: bytes = part(*call.arguments)
    return value


def main(path: str) -> None:
    os.setpgid(0, 0)
    logging.basicConfig(level=logging.WARNING, format="%(process)d %(levelname)s %(message)s")
    try:
        _serve(path)
    finally:
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        os.killpg(0, signal.SIGKILL)  # itself the last


if __name__ == "__main__":
    main(*sys.argv[1:])
