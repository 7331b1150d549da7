"""Shortens the tracebacks of the errors that Spark shows to users.

Spark prints the traceback of an error before its message. The frames of this package do not help
the user, because the message describes what happened and what to do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, ParamSpec, TypeVar

from pyspark_kafka.errors import PysparkKafkaError

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def short_traceback(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls, to shorten the tracebacks of its errors.

    The frames of inner calls are removed. The complete traceback is logged at level DEBUG. The
    method can be a generator function.
    """
    if isgeneratorfunction(method):

        @wraps(method)
        def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from method(*args, **kwargs)
            except PysparkKafkaError as error:
                raise _shortened(error) from None

        return iterate  # type: ignore[return-value]  # T is an iterator

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except PysparkKafkaError as error:
            raise _shortened(error) from None

    return call


def _shortened(error: PysparkKafkaError) -> PysparkKafkaError:
    log.debug("The complete traceback of %s:", type(error).__name__, exc_info=error)
    return error.with_traceback(None)
