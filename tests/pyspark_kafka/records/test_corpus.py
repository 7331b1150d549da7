"""The implementations say the same of every damaged response of the corpus, and say where it is."""

from __future__ import annotations

import re

import pytest

from pyspark_kafka.records import DecodeResult
from tests.pyspark_kafka.records.batches import ALL_COLUMNS, wanted
from tests.pyspark_kafka.records.corpus import damaged, golden
from tests.pyspark_kafka.records.implementations import needs_kernel, outcome

DATA = golden()
# In turn; without headers and with offsets as they are, records go the kernel's fast way.
ASKED = [
    wanted(aborted=[(0, 0), (1, 0)]),
    wanted(columns=ALL_COLUMNS[:7], end_offset=2**63 - 1),
    wanted(3, 40, columns=("value",), rows_max=7, bytes_max=100),
]
WHERE = re.compile(r"clicks-3.* offset -?\d+")


@needs_kernel
@pytest.mark.parametrize("name", DATA)
def test_the_implementations_agree(name: str) -> None:
    kinds = set()
    for index, (done, data) in enumerate(damaged(name, DATA[name])):
        asked = ASKED[index % len(ASKED)]
        kernel, pure = outcome("cython", data, asked), outcome("pure", data, asked)
        assert kernel == pure, done
        if isinstance(kernel, DecodeResult):
            kinds.add("rows")
        else:
            assert WHERE.match(kernel[1]), done
            kinds.add(re.sub(r"-?\d+", "", kernel[1]))
    # Neither is the damage always found at once, nor never.
    assert "rows" in kinds
    assert len(kinds) > 8
