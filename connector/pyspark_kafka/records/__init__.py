"""Kafka's record batches to Arrow and back: `decode` and `encode`, by one of two implementations.

Purpose: choose the implementation. `PYSPARK_KAFKA_RECORDS=cython` is the compiled kernel, `pure` the one in
plain Python; where it is not set, the kernel if it was built. `checksums` has a third function of
the implementations. Invariant: all are the same functions of their arguments whichever implementation it is; asking for
one that cannot load raises. What it must not know: connections, Spark.
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
"""Where `decode` and `encode` of a implementation are."""


def _load(asked: str | None) -> tuple[str, Decode, Encode]:
    """A implementation's name and functions. Raises `OptionError` if what is asked cannot be had."""
    if asked and asked not in _MODULES:
        raise OptionError(f"{_VARIABLE}={asked}: choose from {', '.join(_MODULES)}")
    for implementation in [asked] if asked else _MODULES:
        try:
            decoding, encoding = (
                importlib.import_module(f"{__name__}.{module}")
                for module in _MODULES[implementation]
            )
        except ImportError as error:
            if asked:
                raise OptionError(
                    f"{_VARIABLE}={asked}: it cannot be loaded ({error}). Install pyspark-kafka "
                    "where there is a C compiler (or from a wheel built for this platform), or "
                    f"set {_VARIABLE}=pure"
                ) from error
        else:
            return implementation, decoding.decode, encoding.encode
    raise AssertionError("the pure implementation always loads")


IMPLEMENTATION, decode, encode = _load(os.environ.get(_VARIABLE))
