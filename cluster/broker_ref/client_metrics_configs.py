"""The configs of client metrics subscriptions (type CLIENT_METRICS, KIP-714).

    interval.ms   the interval between two reports from a client
    metrics       the prefixes of the metrics to report
    match         the clients that report: `<attribute>=<regular expression>,...`

Subscriptions are stored and described, but have no effect, because the cluster receives no metrics.
Source: Kafka's `ClientMetricsConfigs`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kio.schema.errors import ErrorCode

from broker_ref.config_keys import ConfigKey, InvalidBrokerConfigError
from broker_ref.protocol.errors import ApiError
from broker_ref.topic_configs import ConfigType

INTERVAL_MIN_MS: Final = 100
INTERVAL_MAX_MS: Final = 3_600_000
MATCH_LENGTH_MAX: Final = 1024
"""The maximum total length of the patterns, which limits their compile time to 10 ms."""

_COSTLY: Final = re.compile(r"[^\x00-\x7f]|\\[uUN]|\(\?[aiLmsux-]")
"""Matches inline flags and non-ASCII characters, including their escapes.

With either of them, Python may expand a character class to all characters. This expansion can take
10 ms for each class.
"""

CLIENT_METRICS_KEYS: Final = MappingProxyType(
    {
        key.name: key
        for key in (
            ConfigKey(
                name="interval.ms",
                type=ConfigType.INT,
                default=300_000,
                minimum=-(2**31),
                doc="Interval between two reports of a client.",
            ),
            ConfigKey(
                name="match",
                type=ConfigType.LIST,
                default="",
                empty_is_null=False,
                doc="Regular expressions of the clients that report metrics.",
            ),
            ConfigKey(
                name="metrics",
                type=ConfigType.LIST,
                default="",
                empty_is_null=False,
                doc="Prefixes of the metrics to report.",
            ),
        )
    }
)
"""The configs of a subscription by name."""

_ATTRIBUTES: Final = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


def check_client_metrics_configs(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the configs of a subscription if they are valid.

    Raises: ApiError. The error code is INVALID_CONFIG if a value has the wrong type, a pattern is
    invalid, or a pattern could take too long to compile. For all other errors, the code is
    INVALID_REQUEST.
    """
    checked = {name: value for name, value in configs.items() if value is not None}
    for name, value in checked.items():
        if name not in CLIENT_METRICS_KEYS:
            raise ApiError(
                ErrorCode.invalid_request, f"Unknown client metrics configuration: {name}"
            )
        try:
            parsed = CLIENT_METRICS_KEYS[name].parse(value)
        except InvalidBrokerConfigError as error:
            raise ApiError(ErrorCode.invalid_config, str(error)) from error
        if isinstance(parsed, int) and not INTERVAL_MIN_MS <= parsed <= INTERVAL_MAX_MS:
            raise ApiError(
                ErrorCode.invalid_request,
                f"Invalid value {value} for {name}: the interval must be between "
                f"{INTERVAL_MIN_MS} and {INTERVAL_MAX_MS} ms (1 hour).",
            )
        if name == "match":
            _check_patterns(value)
    return checked


def _check_patterns(patterns: str) -> None:
    # The controller cannot serve other requests while it compiles a pattern.
    if len(patterns) > MATCH_LENGTH_MAX:
        raise ApiError(
            ErrorCode.invalid_config,
            f"The client matching patterns contain {len(patterns)} characters, but the maximum is "
            f"{MATCH_LENGTH_MAX}.",
        )
    for pattern in filter(None, (one.strip() for one in patterns.split(","))):
        if _COSTLY.search(pattern):
            raise ApiError(
                ErrorCode.invalid_config,
                f"Unsupported client matching pattern: {pattern}. Remove inline flags and use only "
                "ASCII characters.",
            )
        attribute, _, expression = (part.strip() for part in pattern.partition("="))
        is_valid = attribute in _ATTRIBUTES and bool(expression) and "=" not in expression
        try:
            re.compile(expression)
        except (re.error, RecursionError, OverflowError):
            is_valid = False
        if not is_valid:
            raise ApiError(ErrorCode.invalid_config, f"Illegal client matching pattern: {pattern}")
