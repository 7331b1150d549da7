"""The log levels of the broker's loggers (type BROKER_LOGGER, KIP-412).

The loggers are Python loggers. `root` is the logger of the package, so its level does not affect
other code in the same process. Brokers in the same process share their loggers. Changed levels are
not persisted. Source: Kafka's `RuntimeLoggerManager` and `LoggingController`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.api.topic_descriptions import DescribedConfig
from broker_ref.controller.configs import ConfigChange, ConfigOperation
from broker_ref.dynamic_configs import ConfigSource
from broker_ref.protocol.errors import ApiError

ROOT: Final = "root"
_PACKAGE: Final = __name__.partition(".")[0]

LEVELS: Final = MappingProxyType(
    {
        "TRACE": 5,
        "DEBUG": logging.DEBUG,
        "INFO": logging.INFO,
        "WARN": logging.WARNING,
        "ERROR": logging.ERROR,
        "FATAL": logging.CRITICAL,
    }
)
"""Kafka's log levels and the corresponding Python levels, in ascending order."""

_UNKNOWN_TYPE: Final = 0


def describe_loggers() -> list[DescribedConfig]:
    """Return all loggers with their effective levels."""
    return [
        DescribedConfig(
            name=name,
            value=_level_name(logger.getEffectiveLevel()),
            source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
            type=_UNKNOWN_TYPE,
            doc="",
            read_only=False,
            synonyms=(),
        )
        for name, logger in _loggers().items()
    ]


def check_level_changes(changes: Sequence[ConfigChange]) -> None:
    """Raise ApiError (INVALID_CONFIG or INVALID_REQUEST) if a change is invalid."""
    known = _loggers()
    for change in changes:
        if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
            raise ApiError(
                ErrorCode.invalid_request,
                f"The operation {change.operation.name} is not allowed for loggers.",
            )
        if change.name not in known:
            raise ApiError(ErrorCode.invalid_config, f"Logger {change.name} does not exist.")
        if change.operation is ConfigOperation.SET and change.value not in LEVELS:
            raise ApiError(
                ErrorCode.invalid_config,
                f"Cannot set the log level of {change.name} to {change.value}, because it is not a "
                f"supported log level. Valid log levels are {', '.join(sorted(LEVELS))}.",
            )
        if change.operation is ConfigOperation.DELETE and change.name == ROOT:
            raise ApiError(
                ErrorCode.invalid_request,
                "Removing the log level of the root logger is not allowed.",
            )


def change_levels(changes: Sequence[ConfigChange]) -> None:
    """Change log levels. A logger without its own level uses the level of its parent.

    The caller must check the changes first.
    """
    loggers = _loggers()
    for change in changes:
        is_set = change.operation is ConfigOperation.SET
        loggers[change.name].setLevel(LEVELS[change.value or ""] if is_set else logging.NOTSET)


def _loggers() -> dict[str, logging.Logger]:
    named = tuple(logging.Logger.manager.loggerDict.items())
    return {ROOT: logging.getLogger(_PACKAGE)} | {
        name: logger
        for name, logger in named
        if name.startswith(f"{_PACKAGE}.") and isinstance(logger, logging.Logger)
    }


def _level_name(level: int) -> str:
    """Return the lowest of Kafka's log levels that is enabled at the Python level `level`."""
    return next((name for name, number in LEVELS.items() if number >= level), "FATAL")
