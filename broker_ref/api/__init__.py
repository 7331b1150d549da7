"""The APIs that this broker serves: one file per Kafka API key, collected in `APIS`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from broker_ref.api import (
    k00_produce,
    k01_fetch,
    k03_metadata,
    k18_api_versions,
)

APIS: Final = MappingProxyType(
    {
        module.API.key: module.API
        for module in (
            k00_produce,
            k01_fetch,
            k03_metadata,
            k18_api_versions,
        )
    }
)
