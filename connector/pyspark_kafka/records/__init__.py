"""Kafka's record batches to Arrow and back: `decode` and `encode`, in two implementations.

Purpose: choose the implementation. `PYSPARK_KAFKA_RECORDS=cython` is the compiled kernel, `pure`
the one in plain Python. If it is not set, the kernel is used where it was built. `checksums` has a
third function. Invariant: both implementations return the same results; a selected one that cannot
be loaded raises. What it must not know: connections, Spark.
"""

from __future__ import annotations

import importlib
import os
from typing import Final

from pyspark_kafka.errors import OptionError
from pyspark_kafka.records.contract import Codec, Decode, DecodeRequest, DecodeResult
from pyspark_kafka.records.encoding import Encode, EncodedBatch, Encoding, ProducerState

__all__ = [
    "IMPLEMENTATION",
    "Codec",
    "Decode",
    "DecodeRequest",
    "DecodeResult",
    "Encode",
    "EncodedBatch",
    "Encoding",
    "ProducerState",
    "decode",
    "encode",
]

_VARIABLE: Final = "PYSPARK_KAFKA_RECORDS"
_MODULES: Final = {"cython": ("_kernel", "_kernel"), "pure": ("_pure", "_pure_encode")}
"""The modules of `decode` and `encode` of each implementation."""


def _load(selected: str | None) -> tuple[str, Decode, Encode]:
    """Return an implementation's name and functions. Raises `OptionError` if it cannot load."""
    if selected and selected not in _MODULES:
        raise OptionError(
            f"The environment variable {_VARIABLE} has the value {selected!r}.",
            advice=f"Set it to one of: {', '.join(_MODULES)}.",
            option=_VARIABLE,
        )
    for implementation in [selected] if selected else _MODULES:
        try:
            decoding, encoding = (
                importlib.import_module(f"{__name__}.{module}")
                for module in _MODULES[implementation]
            )
        except ImportError as error:
            if selected:
                raise OptionError(
                    f"The environment variable {_VARIABLE} has the value {selected!r}, but this "
                    f"implementation cannot be loaded ({error}).",
                    advice=(
                        "Install pyspark-kafka with a C compiler or from a wheel for this system, "
                        f"or set {_VARIABLE} to 'pure'."
                    ),
                    option=_VARIABLE,
                ) from error
        else:
            return implementation, decoding.decode, encoding.encode
    raise AssertionError("the pure implementation always loads")


IMPLEMENTATION, decode, encode = _load(os.environ.get(_VARIABLE))
