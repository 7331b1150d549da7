"""Resolves config provider references in the settings of a client, on the machine that connects.

Spark's plan and the pickled state of tasks contain `ClientOptions` with references. The driver and
each executor resolve the references when they check settings or open a client, so no secret is sent
to tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark_kafka.options.config_providers import Resolved, resolve
from pyspark_kafka.options.values import ClientOptions


def resolved_settings(options: ClientOptions) -> Resolved:
    """Return the `kafka.*` settings, with all config provider references resolved.

    Raises `OptionError`.
    """
    return resolve(options.kafka, prefix="kafka.")


@contextmanager
def resolved(options: ClientOptions) -> Iterator[ClientOptions]:
    """Yield options with resolved config provider references. The options must not be pickled.

    Within the context, error messages contain the references instead of the resolved values. Raises
    `OptionError`.
    """
    settings = resolved_settings(options)
    with settings.masked_in_errors():
        yield replace(options, kafka=settings.values)
