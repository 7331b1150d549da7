"""The configs of a client metrics subscription.

The subscription need not exist. Source: `kafka.server.ConfigHelper.createClientMetricsConfigEntry`.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_ref.api.topic_descriptions import DescribedConfig
from broker_ref.client_metrics_configs import CLIENT_METRICS_KEYS
from broker_ref.config_keys import ConfigKey
from broker_ref.dynamic_configs import ConfigSource, Synonym


def describe_client_metrics_configs(own: Mapping[str, str]) -> list[DescribedConfig]:
    """Return all configs of a client metrics subscription. `own` contains the configured values."""
    return [_describe(key, own.get(key.name)) for key in CLIENT_METRICS_KEYS.values()]


def _describe(key: ConfigKey, own: str | None) -> DescribedConfig:
    source = ConfigSource.DEFAULT_CONFIG if own is None else ConfigSource.CLIENT_METRICS_CONFIG
    value = key.text(key.default if own is None else key.parse(own))
    return DescribedConfig(
        name=key.name,
        value=value,
        source=source,
        type=key.type,
        doc=key.doc,
        read_only=False,
        synonyms=() if own is None else (Synonym(name=key.name, value=value, source=source),),
    )
