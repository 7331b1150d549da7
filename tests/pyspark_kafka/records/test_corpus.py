"""Tests that both implementations return the same rows or errors for corrupt responses."""

from __future__ import annotations

import re

import pytest

from pyspark_kafka.records import DecodeResult
from tests.pyspark_kafka.records.batches import ALL_COLUMNS, decode_request
from tests.pyspark_kafka.records.corpus import damaged, golden
from tests.pyspark_kafka.records.implementations import needs_kernel, outcome

DATA = golden()
# The requests are used in turn; without headers and with the widest range the kernel uses its fast
# path.
REQUESTS = [
    decode_request(aborted=[(0, 0), (1, 0)]),
    decode_request(columns=ALL_COLUMNS[:7], end_offset=2**63 - 1),
    decode_request(3, 40, columns=("value",), rows_max=7, bytes_max=100),
]
WHERE = re.compile(r"at offset -?\d+ of clicks-3")


@pytest.mark.slow
@needs_kernel
@pytest.mark.parametrize("name", DATA)
def test_the_implementations_agree(name: str) -> None:
    kinds = set()
    for index, (done, data) in enumerate(damaged(name, DATA[name])):
        options = REQUESTS[index % len(REQUESTS)]
        kernel, pure = outcome("cython", data, options), outcome("pure", data, options)
        assert kernel == pure, done
        if isinstance(kernel, DecodeResult):
            kinds.add("rows")
        else:
            assert WHERE.search(kernel[1]), done
            kinds.add(re.sub(r"-?\d+", "", kernel[1]))
    # The corpus covers several errors, and also corruption that changes no row.
    assert "rows" in kinds
    assert len(kinds) > 8
