"""Chooses the engine and opens its client.

Purpose: the only module that knows the engines; it imports each when it is used. Invariant: the
choice depends only on the options, the installed packages and `PYSPARK_KAFKA_RECORDS`, so the
driver and tasks choose the same. What it must not know: the use of the client.
"""

from __future__ import annotations

import logging
import os
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, overload

from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.client.native.supported_properties import unsupported_setting
from pyspark_kafka.client.port import KafkaClient, KafkaReads
from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.values import ClientOptions, Role

if TYPE_CHECKING:
    from pyspark_kafka.client.native.client import NativeReads
    from pyspark_kafka.client.native.producer_settings import ProducerSettings
    from pyspark_kafka.client.transactional_port import TransactionalClient

log = logging.getLogger(__name__)

Engine = Literal["native", "librdkafka"]

_USE: Final = {"consumer": "reads", "producer": "writes"}
_CHECKED_ELSEWHERE: Final = {"bootstrap.servers", "group.id", "isolation.level"}
_IMPLEMENTATION_VARIABLE: Final = "PYSPARK_KAFKA_RECORDS"
_RECORDS: Final = str(Path(__file__).parents[1] / "records")
_INSTALL: Final = "Install pyspark-kafka for this platform"
_OR_LIBRDKAFKA: Final = ", or set option 'engine' to 'librdkafka'"
_logged: set[str] = set()


@overload
def open_client(
    options: ClientOptions, *, role: Literal["consumer"] = ..., is_checked: bool = ...
) -> KafkaReads: ...


@overload
def open_client(
    options: ClientOptions, *, role: Literal["producer"], is_checked: bool = ...
) -> KafkaClient: ...


def open_client(
    options: ClientOptions, *, role: Role = "consumer", is_checked: bool = False
) -> KafkaReads:
    """Open a client for reading (`consumer`) or writing; it connects with the first request.

    For both engines librdkafka checks the settings, unless the driver has done so (`is_checked`).
    Raises `OptionError` for invalid settings.
    """
    engine = choose_engine(options, role) if is_checked else check_settings(options, role=role)
    if engine == "native":
        return _open_native(options, role)
    from pyspark_kafka.client.librdkafka import LibrdkafkaClient  # noqa: PLC0415
    from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings  # noqa: PLC0415

    return LibrdkafkaClient(LibrdkafkaSettings.of(options, role))


def open_transactional(options: ClientOptions) -> TransactionalClient:
    """Open a client that writes exactly once; it connects with the first request.

    `check_transactional` has checked the settings. Raises `OptionError` for options that the engine
    `native` does not support.
    """
    from pyspark_kafka.client.native.producer_settings import ProducerSettings  # noqa: PLC0415
    from pyspark_kafka.client.native.transactional_client import (  # noqa: PLC0415
        NativeTransactionalClient,
    )

    _require_native(options)
    if options.engine == "auto":
        _warn_without_kernel("producer", alternative="")
    settings = NativeSettings.of(options, "producer")
    return NativeTransactionalClient.with_producers(
        settings, ProducerSettings.of(options.kafka, settings)
    )


def check_transactional(options: ClientOptions) -> None:
    """Check the settings without opening a client; raises `OptionError`."""
    _require_native(options)
    _check_values(options, "native", "producer")


def _require_native(options: ClientOptions) -> None:
    """librdkafka cannot continue a transaction that another process began."""
    if options.engine == "librdkafka":
        raise OptionError(
            "Option 'transactionalId' requires the engine 'native', but option 'engine' has the "
            "value 'librdkafka'.",
            advice="Set 'engine' to 'native' or 'auto'.",
            option="engine",
        )
    reason = unsupported_setting(options, "producer")
    if reason is not None:
        raise OptionError(
            f"Option 'transactionalId' requires the engine 'native', but {reason}.",
            advice="Remove that option, or write without 'transactionalId' (at least once).",
            option="transactionalId",
        )


def check_settings(options: ClientOptions, *, role: Role) -> Engine:
    """Choose the engine and check the settings without opening a client; raises `OptionError`.

    Imports no engine if there are no settings to check: a streaming query writes each micro-batch
    in new processes, and the import would take most of their time.
    """
    engine = choose_engine(options, role)
    _check_values(options, engine, role)
    return engine


def _check_values(options: ClientOptions, engine: Engine, role: Role) -> None:
    if options.kafka.keys() - _CHECKED_ELSEWHERE:
        from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings  # noqa: PLC0415

        LibrdkafkaSettings.of(options, role)
        if engine == "native":
            _producer_settings(options, NativeSettings.of(options, role), role)


def _open_native(options: ClientOptions, role: Role) -> NativeReads:
    from pyspark_kafka.client.native.client import NativeClient, NativeReads  # noqa: PLC0415

    if options.engine == "auto":
        _warn_without_kernel(role)
    settings = NativeSettings.of(options, role)
    producing = _producer_settings(options, settings, role)
    if producing is None:
        return NativeReads.of(settings)
    return NativeClient.with_producers(settings, producing)


def _producer_settings(
    options: ClientOptions, settings: NativeSettings, role: Role
) -> ProducerSettings | None:
    if role != "producer":
        return None
    from pyspark_kafka.client.native.producer_settings import ProducerSettings  # noqa: PLC0415

    return ProducerSettings.of(options.kafka, settings)


def choose_engine(options: ClientOptions, role: Role) -> Engine:
    """Return the engine of option 'engine'; for `auto` the native one if it supports the options.

    Logs once per process what `auto` chose, and why. Raises `OptionError` if the option is `native`
    and another option is not supported.
    """
    if options.engine == "librdkafka":
        return "librdkafka"
    reason = unsupported_setting(options, role)
    if options.engine == "native":
        if reason is not None:
            raise OptionError(
                f"Option 'engine' has the value 'native', but {reason}.",
                advice="Set 'engine' to 'librdkafka' or 'auto'.",
                option="engine",
            )
        return "native"
    reason = reason or _missing_kernel()
    engine: Engine = "native" if reason is None else "librdkafka"
    text = f"Engine {engine} {_USE[role]}: {reason or 'all settings are supported'}"
    _log_once(logging.INFO, f"{text} (option 'engine' is 'auto').")
    return engine


def _log_once(level: int, text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        log.log(level, text)


def _warn_without_kernel(role: Role, alternative: str = _OR_LIBRDKAFKA) -> None:
    """Warn if the kernel does not load; tasks keep the engine that the driver chose."""
    from pyspark_kafka.records import IMPLEMENTATION  # noqa: PLC0415

    if IMPLEMENTATION == "pure" and not os.environ.get(_IMPLEMENTATION_VARIABLE):
        reason = _missing_kernel()
        if reason is None:
            reason = "the compiled kernel of pyspark_kafka.records is installed, but does not load"
        text = f"Engine native {_USE[role]} slowly: {reason}. {_INSTALL}{alternative}."
        _log_once(logging.WARNING, text)


def _missing_kernel() -> str | None:
    """Return why librdkafka is faster: the kernel is missing, and no implementation is requested.

    Only looks for the file, since planning imports no engine.
    """
    if (
        not os.environ.get(_IMPLEMENTATION_VARIABLE)
        and PathFinder.find_spec("_kernel", [_RECORDS]) is None
    ):
        return "the compiled kernel of pyspark_kafka.records is not installed"
    return None
