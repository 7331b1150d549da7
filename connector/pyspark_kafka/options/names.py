"""Suggestions for misspelled option names."""

from __future__ import annotations

import difflib
import re
from types import MappingProxyType
from typing import Final

from pyspark_kafka.errors import OptionError
from pyspark_kafka.options.table import BY_LOWER_NAME

# Common wrong names that `difflib` does not match to the correct name.
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
_CLIENT_SETTING: Final = re.compile(
    r"(acks|auto|batch|bootstrap|client|compression|connections|delivery|enable|fetch|group"
    r"|isolation|linger|max|metadata|receive|reconnect|request|retry|sasl|security|send|session"
    r"|socket|ssl)\.[a-z.]+|acks"
)


def check_name(name: str) -> None:
    """Raise `OptionError` if an unknown option name resembles a known option name.

    Other unknown options are accepted, as in Spark's connector, because Spark and the platforms
    that run Spark add their own options.
    """
    lowered = name.lower()
    if lowered in BY_LOWER_NAME or lowered.startswith("kafka."):
        return
    suggestion = _ALIASES.get(lowered)
    if suggestion is None:
        close = difflib.get_close_matches(lowered, BY_LOWER_NAME, n=1, cutoff=0.8)
        suggestion = BY_LOWER_NAME[close[0]].name if close else None
    if suggestion is None and _CLIENT_SETTING.fullmatch(lowered):
        suggestion = f"kafka.{lowered}"
    if suggestion is not None:
        raise OptionError(
            f"There is no option '{name}'.",
            advice=f"Use the option '{suggestion}', or remove '{name}'.",
            option=name,
        )
