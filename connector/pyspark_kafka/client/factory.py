"""Chooses the engine and opens its clients.

This is the only module that imports the engines, and it imports each engine only when needed. Its
functions resolve config provider references in the settings. Invariant: the choice depends only on
the options, the installed packages and `PYSPARK_KAFKA_RECORDS`. The driver and the tasks therefore
choose the same engine.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, overload

from pyspark_kafka.client.java_names import (
    librdkafka_properties,
    native_token_source,
    option_of,
)
from pyspark_kafka.client.native.settings import NativeSettings
from pyspark_kafka.client.native.supported_properties import unsupported_setting
from pyspark_kafka.client.port import KafkaClient, KafkaReadClient
from pyspark_kafka.client.resolved import resolved
from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.config_providers import masked
from pyspark_kafka.options.values import ClientOptions, Role

if TYPE_CHECKING:
    from pyspark_kafka.client.native.client import NativeReadClient
    from pyspark_kafka.client.native.producer_settings import ProducerSettings
    from pyspark_kafka.client.transactional_port import TransactionalClient

log = logging.getLogger(__name__)

Engine = Literal["native", "librdkafka"]

_USE: Final = {"consumer": "reads", "producer": "writes"}
_CHECKED_BY_OTHER_MODULES: Final = {"bootstrap.servers", "group.id", "isolation.level"}
_CHECKED_BY_NATIVE: Final = re.compile(
    r"security\.protocol$|enable\.s(sl|asl)\.|https\.|s(sl|asl)\.|compression\.(\w+\.)?level$"
)
_IMPLEMENTATION_VARIABLE: Final = "PYSPARK_KAFKA_RECORDS"
_RECORDS: Final = str(Path(__file__).parents[1] / "records")
_INSTALL: Final = "Install pyspark-kafka for this platform"
_OR_LIBRDKAFKA: Final = ", or set option 'engine' to 'librdkafka'"
_logged: set[str] = set()


@overload
def open_client(
    options: ClientOptions, *, role: Literal["consumer"] = ..., is_checked: bool = ...
) -> KafkaReadClient: ...


@overload
def open_client(
    options: ClientOptions, *, role: Literal["producer"], is_checked: bool = ...
) -> KafkaClient: ...


def open_client(
    options: ClientOptions, *, role: Role = "consumer", is_checked: bool = False
) -> KafkaReadClient:
    """Open a client for reading (`role="consumer"`) or for writing.

    The client connects when it sends the first request. librdkafka checks the settings for both
    engines, unless the driver has already checked them (`is_checked`).
    Raises `OptionError` for invalid settings.
    """
    with resolved(options) as known:
        engine = choose_engine(known, role)
        if not is_checked:
            _check_values(known, engine, role)
        if engine == "native":
            return _open_native(known, role)
        from pyspark_kafka.client.librdkafka import LibrdkafkaClient  # noqa: PLC0415
        from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings  # noqa: PLC0415

        return LibrdkafkaClient(LibrdkafkaSettings.of(known, role))


def open_transactional_client(options: ClientOptions) -> TransactionalClient:
    """Open a client for exactly-once writes.

    The client connects when it sends the first request. The settings must have passed
    `check_transactional_settings`. Raises `OptionError` for options that the `native` engine does
    not support.
    """
    from pyspark_kafka.client.native.producer_settings import ProducerSettings  # noqa: PLC0415
    from pyspark_kafka.client.native.transactional_client import (  # noqa: PLC0415
        NativeTransactionalClient,
    )

    with resolved(options) as known:
        _require_native(known)
        if known.engine == "auto":
            _warn_without_kernel("producer", alternative="")
        settings = NativeSettings.of(known, "producer")
        return NativeTransactionalClient.with_producers(
            settings, ProducerSettings.of(known.kafka, settings)
        )


def check_transactional_settings(options: ClientOptions) -> None:
    """Check the settings without opening a client. Raises `OptionError`."""
    with resolved(options) as known:
        _require_native(known)
        _check_values(known, "native", "producer")


def _require_native(options: ClientOptions) -> None:
    """Raise `OptionError` if an option requires an engine other than `native`.

    Exactly-once writes require `native`, because librdkafka cannot continue a transaction that
    another process started.
    """
    if options.engine == "librdkafka":
        raise OptionError(
            "Option 'transactionalId' requires the 'native' engine, but option 'engine' has the "
            "value 'librdkafka'.",
            advice="Set 'engine' to 'native' or 'auto'.",
            option="engine",
        )
    reason = unsupported_setting(options, "producer")
    if reason is not None:
        raise OptionError(
            f"Option 'transactionalId' requires the 'native' engine, but {reason}.",
            advice="Remove the option that the 'native' engine does not support, or remove "
            "'transactionalId' to use at-least-once delivery.",
            option="transactionalId",
        )


def check_settings(options: ClientOptions, *, role: Role) -> Engine:
    """Choose the engine and check the settings without opening a client. Raises `OptionError`.

    An engine is imported only if there are settings to check. A streaming query writes each
    micro-batch in new processes, and the import would take most of their run time.
    """
    with resolved(options) as known:
        engine = choose_engine(known, role)
        _check_values(known, engine, role)
        return engine


def _check_values(options: ClientOptions, engine: Engine, role: Role) -> None:
    if options.kafka.keys() - _CHECKED_BY_OTHER_MODULES:
        from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings  # noqa: PLC0415

        checked = _without_checked_by_native(options) if engine == "native" else options
        LibrdkafkaSettings.of(checked, role)
        if engine == "native":
            _producer_settings(options, NativeSettings.of(options, role), role)


def _without_checked_by_native(options: ClientOptions) -> ClientOptions:
    """Return the options without TLS settings, SASL settings and compression levels.

    The native engine checks these settings itself. librdkafka would request a token to check SASL
    settings, and it supports fewer compression levels.
    """
    kafka = {n: v for n, v in options.kafka.items() if not _CHECKED_BY_NATIVE.match(n.lower())}
    return replace(options, kafka=kafka)


def _open_native(options: ClientOptions, role: Role) -> NativeReadClient:
    from pyspark_kafka.client.native.client import NativeClient, NativeReadClient  # noqa: PLC0415

    if options.engine == "auto":
        _warn_without_kernel(role)
    settings = NativeSettings.of(options, role)
    producing = _producer_settings(options, settings, role)
    if producing is None:
        return NativeReadClient.of(settings)
    return NativeClient.with_producers(settings, producing)


def _producer_settings(
    options: ClientOptions, settings: NativeSettings, role: Role
) -> ProducerSettings | None:
    if role != "producer":
        return None
    from pyspark_kafka.client.native.producer_settings import ProducerSettings  # noqa: PLC0415

    return ProducerSettings.of(options.kafka, settings)


def check_supported(options: ClientOptions, role: Role) -> None:
    """Raise `OptionError` for settings that every engine, or the chosen engine, rejects."""
    with resolved(options) as known:
        librdkafka_properties(known.kafka, role=role)
        if known.engine == "native":
            choose_engine(known, role)


def choose_engine(options: ClientOptions, role: Role) -> Engine:
    """Return the engine that the `engine` option selects.

    `auto` selects `native` if the native engine supports all options and its compiled kernel is
    installed. The engine that `auto` selects, and the reason, are logged once per process. Raises
    `OptionError` if `engine` is `native` but the native engine does not support one of the other
    options.
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
    source = native_token_source(librdkafka_properties(options.kafka, role=role))
    if source is not None and reason is not None:
        option = option_of(source, options.kafka)
        raise OptionError(
            f"Option '{option}' requires the 'native' engine, but {reason}.",
            advice="Remove the option that the 'native' engine does not support.",
            option=option,
        )
    if reason is None and source is None:  # librdkafka does not support the token source
        reason = _missing_kernel()
    engine: Engine = "native" if reason is None else "librdkafka"
    text = (
        f"The '{engine}' engine {_USE[role]} Kafka records, because "
        f"{reason or 'all settings are supported'}"
    )
    _log_once(logging.INFO, masked(f"Option 'engine' is 'auto'. {text}."))
    return engine


def _log_once(level: int, text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        log.log(level, text)


def _warn_without_kernel(role: Role, alternative: str = _OR_LIBRDKAFKA) -> None:
    """Log a warning if the compiled kernel cannot be loaded.

    Tasks always use the engine that the driver chose.
    """
    from pyspark_kafka.records import IMPLEMENTATION  # noqa: PLC0415

    if IMPLEMENTATION == "pure" and not os.environ.get(_IMPLEMENTATION_VARIABLE):
        reason = _missing_kernel()
        if reason is None:
            reason = "the compiled kernel of pyspark_kafka.records cannot be loaded"
        text = (
            f"The 'native' engine {_USE[role]} Kafka records slowly, because {reason}. "
            f"{_INSTALL}{alternative}."
        )
        _log_once(logging.WARNING, text)


def _missing_kernel() -> str | None:
    """Return the part of a log message that reports a missing compiled kernel, or None.

    The result is None if the kernel is installed or `PYSPARK_KAFKA_RECORDS` is set. This function
    checks only whether the file of the kernel exists, because planning must not import an engine.
    """
    if (
        not os.environ.get(_IMPLEMENTATION_VARIABLE)
        and PathFinder.find_spec("_kernel", [_RECORDS]) is None
    ):
        return "the compiled kernel of pyspark_kafka.records is not installed"
    return None
