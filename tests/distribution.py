"""The distribution of tests to the processes of pytest-xdist.

The tests of a file run in one process, and long tests start first. Those of the clients mostly wait
for timeouts. They run in one process, so that others can use the cores meanwhile. The conformance
tests run in two processes, because each process starts its own clusters, and each node of Apache
Kafka takes seconds of CPU time to start. Long tests that share no fixtures and few cached results
are distributed individually.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

_STARTED_FIRST: Final = (
    "tests/chaos/",
    "tests/conformance/test_",
    "tests/examples/",
    "tests/failpoints/",
    "tests/packaging/",
    "tests/parity/",
    "tests/pyspark_kafka/client/",
    "tests/simulation/",
    "tests/sink_model/",
    "tests/spark/",
)
_DISTRIBUTED_INDIVIDUALLY: Final = ("tests/simulation/test_bugs", "tests/sink_model/")
_GROUPS: Final[Mapping[str, str]] = {
    # These tests also use clusters with the old transaction version.
    "tests/conformance/test_exactly_once": "transactions",
    "tests/conformance/test_transactions": "transactions",
    "tests/conformance/test_": "conformance",
    "tests/pyspark_kafka/client/": "clients",
}
"""The group of the files with each prefix. The first prefix that matches counts."""


def starts_late(item: pytest.Item) -> bool:
    """Return whether a test starts after the long tests."""
    return not item.nodeid.startswith(_STARTED_FIRST)


class LoadGroupsOfFiles(LoadFileScheduling):  # type: ignore[misc]
    """Runs the tests of a group of files in one process, with the exceptions above."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the group, the file or the name of a test."""
        if nodeid.startswith(_DISTRIBUTED_INDIVIDUALLY):
            return nodeid
        for prefix, group in _GROUPS.items():
            if nodeid.startswith(prefix):
                return group
        return str(super()._split_scope(nodeid))
