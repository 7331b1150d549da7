"""An event loop in its own thread, for synchronous callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class EventLoopThread:
    """Runs an event loop in a daemon thread until `close` is called.

    All methods are thread-safe, and may be called while the caller's thread runs its own
    event loop, as in a notebook.
    """

    def __init__(self, name: str, *, call_timeout_seconds: float) -> None:
        self._call_timeout_seconds = call_timeout_seconds
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self.loop = self._runner.get_loop()
        self._closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run `coroutine` in the loop and return its result.

        After `call_timeout_seconds`, cancel the coroutine. Raises: TimeoutError.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(self._call_timeout_seconds)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and cancel its tasks. Do nothing if it is already closed.

        A connection that the loop is accepting at this time is closed only if its protocol aborts
        it.
        """
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._closed.set)
            self._thread.join()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._closed.wait())
