"""Simulated processes, which run blocking code in virtual time.

Each process is a thread, but only one thread runs at a time: the event queue resumes a process and
waits until the process blocks again. A process blocks only in `sleep` and `wait_for`. Invariant: a
run depends only on its event queue, because no two threads ever run at the same time.

A killed process executes no further code: every blocking call raises `KilledError`, and `is_killed`
stops the transports. A stalled process executes no code until the stall ends, as after SIGSTOP.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

from integration.simulation.event_queue import EventQueue

_ENDED: Final = 30.0
"""The time limit, in real seconds, for a thread to end. It is exceeded only if there is a bug."""


class KilledError(BaseException):
    """The process was killed."""


class SimulatedProcess:
    """A process that runs `main` and then calls `on_end` in the event queue.

    `owner` identifies the long-lived Python process whose caches this process uses. `result` is the
    value that `main` returned, and `error` is the exception that it raised.
    """

    def __init__(
        self,
        name: str,
        main: Callable[[], object],
        *,
        owner: str,
        event_queue: EventQueue,
        skew_ms: int = 0,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.owner = owner
        self.skew_ms = skew_ms
        self.is_killed = False
        self.is_ended = False
        self.result: object = None
        self.error: BaseException | None = None
        self._main = main
        self._event_queue = event_queue
        self._on_end = on_end
        self._stalled_until_ms = 0
        self._turn = threading.Semaphore(0)
        self._has_blocked = threading.Semaphore(0)
        self._wakes = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        event_queue.after(0, self._resumption())

    # --- called by the process itself ---

    def sleep(self, seconds: float) -> None:
        """Block for a number of virtual seconds."""
        self._check()
        self._event_queue.after(_milliseconds(seconds), self._resumption())
        self._block()

    def wait_for(self, is_ready: Callable[[], bool], timeout_s: float) -> bool:
        """Block until `is_ready()` returns true or the timeout expires.

        Return whether `is_ready()` returned true. The process calls `is_ready()` after each `wake`.
        """
        self._check()
        until_ms = self._event_queue.now_ms + _milliseconds(timeout_s)
        while not is_ready():
            if self._event_queue.now_ms >= until_ms:
                return False
            self._event_queue.at(until_ms, self._resumption())
            self._block()
        return True

    def pause(self, ms: int) -> None:
        """Stall this process now, for `ms` milliseconds."""
        self.stall(ms)
        self.sleep(0)

    # --- called by the event queue or by other processes ---

    def wake(self) -> None:
        """Resume `wait_for`, which then checks its condition again."""
        self._event_queue.after(0, self._resumption())

    def kill(self) -> None:
        """Kill the process at the point where it blocks."""
        if not self.is_ended and not self.is_killed:
            self.is_killed = True
            self._stalled_until_ms = 0
            self.wake()

    def stall(self, ms: int) -> None:
        """Stop the process for `ms` milliseconds. Its connections stay open."""
        self._stalled_until_ms = max(self._stalled_until_ms, self._event_queue.now_ms + ms)

    def _resumption(self) -> Callable[[], None]:
        """Return an event that resumes the process, unless it has been resumed in the meantime."""
        wakes = self._wakes
        return lambda: self._resume() if wakes == self._wakes else None

    def _resume(self) -> None:
        if self.is_ended:
            return
        if self._event_queue.now_ms < self._stalled_until_ms:
            self._event_queue.at(self._stalled_until_ms, self._resumption())
            return
        self._wakes += 1
        self._turn.release()
        assert self._has_blocked.acquire(timeout=_ENDED), f"{self.name} does not block"
        if self._has_returned():
            self._thread.join(_ENDED)
            self._on_end()

    def _has_returned(self) -> bool:
        """Return whether `main` has returned or raised an exception."""
        return self.is_ended

    def _block(self) -> None:
        self._has_blocked.release()
        self._turn.acquire()
        self._check()

    def _check(self) -> None:
        if self.is_killed:
            raise KilledError

    def _run(self) -> None:
        _of_thread.process = self
        self._turn.acquire()
        try:
            self._check()
            self.result = self._main()
        except BaseException as error:
            self.error = error
        finally:
            self.is_ended = True
            self._has_blocked.release()


def _milliseconds(seconds: float) -> int:
    """Convert seconds to milliseconds, rounded up.

    If a wait were rounded down to 0 ms, it would never reach its deadline.
    """
    return max(0, math.ceil(seconds * 1_000))


_of_thread = threading.local()


def current() -> SimulatedProcess | None:
    """Return the process that runs in this thread, or None if the thread runs no process."""
    return getattr(_of_thread, "process", None)
