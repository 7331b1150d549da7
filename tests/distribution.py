"""The distribution of tests to the processes of pytest-xdist.

The tests of a file run in one process, and long tests start first. The conformance tests run in
two processes, because each process starts its own clusters, and each node of Apache Kafka takes
seconds of CPU time to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

_STARTED_FIRST: Final = (
    "tests/conformance/test_",
    "tests/examples/",
    "tests/failpoints/",
    "tests/parity/",
    "tests/simulation/",
    "tests/spark/",
)
_GROUPS: Final[Mapping[str, str]] = {
    # These tests also use clusters with the old transaction version.
    "tests/conformance/test_exactly_once": "transactions",
    "tests/conformance/test_transactions": "transactions",
    "tests/conformance/test_": "conformance",
}
"""The group of the files with each prefix. The first prefix that matches counts."""


def starts_late(item: pytest.Item) -> bool:
    """Return whether a test starts after the long tests."""
    return not item.nodeid.startswith(_STARTED_FIRST)


class LoadGroupsOfFiles(LoadFileScheduling):  # type: ignore[misc]
    """Runs the tests of a group of files in one process."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the group or the file of a test."""
        for prefix, group in _GROUPS.items():
            if nodeid.startswith(prefix):
                return group
        return str(super()._split_scope(nodeid))
