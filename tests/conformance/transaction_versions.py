"""The versions of Kafka's transactions (`transaction.version`, KIP-890) that tests are run for."""

from __future__ import annotations

from typing import Final

import pytest

LATEST_TRANSACTION_VERSION: Final = 2
"""What a new cluster of Apache Kafka 4.3 has finalized."""

TRANSACTION_VERSIONS: Final = (1, LATEST_TRANSACTION_VERSION)

both_transaction_versions = pytest.mark.parametrize(
    "transaction_version",
    TRANSACTION_VERSIONS,
    indirect=True,
    ids=[f"transactions-{version}" for version in TRANSACTION_VERSIONS],
)
"""Run a test on a cluster of each version; see `conftest.py`."""
