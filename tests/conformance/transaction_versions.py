"""The versions of Kafka's transactions with which tests run (`transaction.version`, KIP-890)."""

from __future__ import annotations

from typing import Final

import pytest

LATEST_TRANSACTION_VERSION: Final = 2
"""The version that a new cluster of Apache Kafka 4.3 finalizes."""

TRANSACTION_VERSIONS: Final = (1, LATEST_TRANSACTION_VERSION)


def _versions(*older_marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "transaction_version",
        [
            pytest.param(
                version,
                id=f"transactions-{version}",
                marks=() if version == LATEST_TRANSACTION_VERSION else older_marks,
            )
            for version in TRANSACTION_VERSIONS
        ],
        indirect=True,
    )


both_transaction_versions = _versions()
"""Run a test on a cluster of each version; see `conftest.py`."""

older_transaction_version_in_full = _versions(pytest.mark.full)
"""Run a slow test on a cluster of each version; only `make test-all` runs the older version."""
