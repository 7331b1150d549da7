"""Which engine serves: from validated options to an open client.

Purpose: the one place that knows the engines, each imported only when it is used. Invariant: the
choice depends on nothing but the options, what is installed and `PYSPARK_KAFKA_RECORDS`, so that it
is the same wherever these are. What it must not know: what the client is for.
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

_DOING: Final = {"consumer": "reads", "producer": "writes"}
_NOTHING_TO_JUDGE: Final = {"bootstrap.servers", "group.id", "isolation.level"}
_TWIN: Final = "PYSPARK_KAFKA_RECORDS"
_RECORDS: Final = str(Path(__file__).parents[1] / "records")
_INSTALL: Final = "install pyspark-kafka for this platform"
_OR_OTHER_ENGINE: Final = ", or set option 'engine' to 'librdkafka'"
_said: set[str] = set()


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
    """Open a client for reading (`consumer`) or writing; it connects when it is first asked.

    Whichever engine serves, librdkafka judges the values of the settings, unless `is_checked`: a
    task need not repeat what the driver did. Raises `OptionError` for settings that are refused.
    """
    engine = choose_engine(options, role) if is_checked else check_settings(options, role=role)
    if engine == "native":
        return _open_native(options, role)
    from pyspark_kafka.client.librdkafka import LibrdkafkaClient  # noqa: PLC0415
    from pyspark_kafka.client.librdkafka.settings import LibrdkafkaSettings  # noqa: PLC0415

    return LibrdkafkaClient(LibrdkafkaSettings.of(options, role))


def open_transactional(options: ClientOptions) -> TransactionalClient:
    """Open a client that writes exactly once; it connects when it is first asked.

    Settings were judged by `check_transactional`. Raises `OptionError` where the engine `native`
    cannot serve, for there is no other one.
    """
    from pyspark_kafka.client.native.producer_settings import ProducerSettings  # noqa: PLC0415
    from pyspark_kafka.client.native.transactional_client import (  # noqa: PLC0415
        NativeTransactionalClient,
    )

    _refuse_other_engines(options)
    if options.engine == "auto":
        _warn_without_kernel("producer", instead="")
    settings = NativeSettings.of(options, "producer")
    return NativeTransactionalClient.writing(settings, ProducerSettings.of(options.kafka, settings))


def check_transactional(options: ClientOptions) -> None:
    """Have the settings judged, opening nothing; raises `OptionError`."""
    _refuse_other_engines(options)
    _judge(options, "native", "producer")


def _refuse_other_engines(options: ClientOptions) -> None:
    """librdkafka cannot take up a transaction that another process began."""
    if options.engine == "librdkafka":
        raise OptionError(
            "option 'transactionalId' needs the engine 'native', and option 'engine' has the value "
            "'librdkafka': set it to 'native', or leave it at 'auto'"
        )
    objected = unsupported_setting(options, "producer")
    if objected is not None:
        raise OptionError(
            f"option 'transactionalId' needs the engine 'native', but {objected}: remove that "
            "option, or write without 'transactionalId', at least once"
        )


def check_settings(options: ClientOptions, *, role: Role) -> Engine:
    """Choose the engine and have the settings judged, opening nothing; raises `OptionError`.

    Loads no engine where there is nothing to judge: a streaming query writes its every micro-batch
    by new processes, and loading takes longer than all else that they do.
    """
    engine = choose_engine(options, role)
    _judge(options, engine, role)
    return engine


def _judge(options: ClientOptions, engine: Engine, role: Role) -> None:
    if options.kafka.keys() - _NOTHING_TO_JUDGE:
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
    return NativeClient.writing(settings, producing)


def _producer_settings(
    options: ClientOptions, settings: NativeSettings, role: Role
) -> ProducerSettings | None:
    if role != "producer":
        return None
    from pyspark_kafka.client.native.producer_settings import ProducerSettings  # noqa: PLC0415

    return ProducerSettings.of(options.kafka, settings)


def choose_engine(options: ClientOptions, role: Role) -> Engine:
    """The engine that is asked for; for `auto` the native one, unless something speaks against it.

    Says once a process what `auto` chose, and why. Raises `OptionError` where `native` cannot be.
    """
    if options.engine == "librdkafka":
        return "librdkafka"
    objected = unsupported_setting(options, role)
    if options.engine == "native":
        if objected is not None:
            raise OptionError(
                f"option 'engine' has the value 'native', but {objected}: set 'engine' to "
                "'librdkafka', or leave it at 'auto'"
            )
        return "native"
    objected = objected or _missing_kernel()
    engine: Engine = "native" if objected is None else "librdkafka"
    text = f"engine {engine} {_DOING[role]}: {objected or 'nothing speaks against it'}"
    _say_once(logging.INFO, f"{text} (option 'engine' is 'auto')")
    return engine


def _say_once(level: int, text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.log(level, text)


def _warn_without_kernel(role: Role, instead: str = _OR_OTHER_ENGINE) -> None:
    """The kernel may be there and not load; a task must not choose anew what the driver chose."""
    from pyspark_kafka.records import IMPLEMENTATION  # noqa: PLC0415

    if IMPLEMENTATION == "pure" and not os.environ.get(_TWIN):
        what = _missing_kernel()
        if what is None:
            what = "the compiled kernel of pyspark_kafka.records is installed, but does not load"
        text = f"engine native {_DOING[role]} slowly: {what}; {_INSTALL}{instead}"
        _say_once(logging.WARNING, text)


def _missing_kernel() -> str | None:
    """Without the compiled kernel librdkafka is faster; who asks for a implementation by name gets it.

    Only looks for the file: planning loads no engine.
    """
    if not os.environ.get(_TWIN) and PathFinder.find_spec("_kernel", [_RECORDS]) is None:
        return "the compiled kernel of pyspark_kafka.records is not installed"
    return None
