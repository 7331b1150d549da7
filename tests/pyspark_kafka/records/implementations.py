"""The available implementations, as parameters of tests.

Without the kernel one test is skipped instead of hundreds.
"""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest

from pyspark_kafka.errors import KafkaError
from pyspark_kafka.records import Decode, DecodeRequest, DecodeResult

KERNEL_IS_BUILT = importlib.util.find_spec("pyspark_kafka.records._kernel") is not None
NOT_BUILT = "the kernel is not built: install the project where there is a C compiler"

needs_kernel = pytest.mark.skipif(not KERNEL_IS_BUILT, reason=NOT_BUILT)
IMPLEMENTATIONS = ["cython", "pure"] if KERNEL_IS_BUILT else ["pure"]


def implementation(name: str) -> Decode:
    module = importlib.import_module(
        f"pyspark_kafka.records._{'kernel' if name == 'cython' else name}"
    )
    decode: Decode = module.decode
    return decode


def outcome(name: str, data: bytes, options: DecodeRequest) -> DecodeResult | tuple[type, str]:
    """What the implementation gives, checked by Arrow, or how it fails.

    It is given memory that ends where the data does, for an address sanitizer to see what is read
    behind: `bytes` have one more.
    """
    exact = np.frombuffer(data, np.uint8).copy().data
    try:
        found = implementation(name)(exact, options)
    except KafkaError as error:
        return type(error), str(error)
    for arrow in found.batches:
        arrow.validate(full=True)
    return found
