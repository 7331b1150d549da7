"""The twins that can be had here, as parameters of tests.

Where the kernel is missing, one test is skipped and says so, instead of hundreds.
"""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from pyspark_kafka.records import Decode

KERNEL_IS_BUILT = importlib.util.find_spec("pyspark_kafka.records._kernel") is not None
NOT_BUILT = "the kernel is not built: install the project where there is a C compiler"

needs_kernel = pytest.mark.skipif(not KERNEL_IS_BUILT, reason=NOT_BUILT)
TWINS = ["cython", "pure"] if KERNEL_IS_BUILT else ["pure"]


def twin(name: str) -> Decode:
    module = importlib.import_module(
        f"pyspark_kafka.records._{'kernel' if name == 'cython' else name}"
    )
    decode: Decode = module.decode
    return decode
