"""The available implementations, as parameters of tests.

If the kernel is not built, one test is skipped instead of hundreds.
"""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest

from pyspark_kafka.errors import KafkaError
from pyspark_kafka.records import Decode, DecodeRequest, DecodeResult

KERNEL_IS_BUILT = importlib.util.find_spec("pyspark_kafka.records._kernel") is not None
NOT_BUILT = "the kernel is not built: install the project on a machine with a C compiler"

needs_kernel = pytest.mark.skipif(not KERNEL_IS_BUILT, reason=NOT_BUILT)
IMPLEMENTATIONS = ["cython", "pure"] if KERNEL_IS_BUILT else ["pure"]


def implementation(name: str) -> Decode:
    module = importlib.import_module(
        f"pyspark_kafka.records._{'kernel' if name == 'cython' else name}"
    )
    decode: Decode = module.decode
    return decode


def outcome(name: str, data: bytes, options: DecodeRequest) -> DecodeResult | tuple[type, str]:
    """Return the result of the implementation, validated by Arrow, or its error.

    The memory of the input ends at its last byte, so that an address sanitizer detects reads beyond
    it. A `bytes` object has one more byte.
    """
    exact = np.frombuffer(data, np.uint8).copy().data
    try:
        found = implementation(name)(exact, options)
    except KafkaError as error:
        return type(error), str(error)
    for arrow in found.batches:
        arrow.validate(full=True)
    return found
