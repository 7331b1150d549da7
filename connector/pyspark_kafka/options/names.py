"""Checks option names. The error for an unknown name suggests a similar name or a remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.table import BY_LOWER_NAME

_ADDED_BY_SPARK: Final = frozenset({"queryname"})
"""Options that Spark adds to the options of a query. All other options are in the table."""

_ADDED_FOR_TABLES: Final = frozenset({"owner", "provider"})
"""Properties that Spark passes as options when it reads the schema for CREATE TABLE."""

USE_VIEW: Final = (
    "Use CREATE TEMPORARY VIEW with the same options, or DataFrame.createOrReplaceTempView()"
)

_ALIASES: Final = MappingProxyType(
    {
        "topics": "subscribe",
        "topicpattern": "subscribePattern",
        "bootstrapservers": "kafka.bootstrap.servers",
        "bootstrap_servers": "kafka.bootstrap.servers",
        "brokers": "kafka.bootstrap.servers",
        "groupid": "kafka.group.id",
        "isolationlevel": "kafka.isolation.level",
        # An option of Databricks' connector. If it were ignored, the client would not authenticate.
        "databricks.servicecredential": "kafka.sasl.oauthbearer.token.provider.service.credential",
    }
)
"""Common wrong names that `difflib` does not match to the correct name."""

_NO_PATH: Final = (
    "Call load(), save() or start() without a path. Select the topics to read with 'subscribe', "
    "and the topic to write with 'topic'."
)
_FOREIGN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "path": _NO_PATH,
        "paths": _NO_PATH,
    }
)
"""Options of other data sources, with the advice of the error in full sentences."""
_SCHEMA_REGISTRY: Final = (
    "Remove the option. Keys and values are binary: convert them in Spark, for example with "
    "from_avro() or from_protobuf()."
)
_CLIENT_SETTING: Final = re.compile(
    r"(acks|auto|batch|bootstrap|client|compression|connections|delivery|enable|fetch|group"
    r"|isolation|linger|max|metadata|receive|reconnect|request|retry|sasl|security|send|session"
    r"|socket|ssl)\.[a-z.]+|acks"
)
_SIMILARITY_MIN: Final = 0.6


def check_names(names: Collection[str]) -> None:
    """Raise `OptionError` for an unknown option, or if the options come from CREATE TABLE."""
    lowered = {name.lower() for name in names}
    if lowered >= _ADDED_FOR_TABLES:
        raise OptionError(
            "CREATE TABLE does not support the data source 'pyspark_kafka', because Spark does not "
            "pass table options to Python data sources.",
            advice=f"{USE_VIEW}.",
        )
    for name in names:
        if not _exists(name.lower()):
            raise OptionError(f"There is no option '{name}'.", advice=_advice(name), option=name)


def _exists(lowered: str) -> bool:
    return lowered in BY_LOWER_NAME or lowered in _ADDED_BY_SPARK or lowered.startswith("kafka.")


def _advice(name: str) -> str:
    lowered = name.lower()
    if lowered in _FOREIGN:
        return _FOREIGN[lowered]
    if "schema.registry." in lowered:
        return _SCHEMA_REGISTRY
    suggestion = _ALIASES.get(lowered)
    if suggestion is None and _CLIENT_SETTING.fullmatch(lowered):
        suggestion = f"kafka.{lowered}"
    if suggestion is None:
        close = difflib.get_close_matches(lowered, BY_LOWER_NAME, n=1, cutoff=_SIMILARITY_MIN)
        suggestion = BY_LOWER_NAME[close[0]].name if close else None
    if suggestion is None:
        return "Remove the option."
    return f"Use the option '{suggestion}', or remove '{name}'."
