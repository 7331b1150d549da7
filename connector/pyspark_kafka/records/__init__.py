"""Convert between Kafka's record batches and Arrow: `decode` and `encode`.

There are two implementations with the same results: `cython`, the compiled kernel, and `pure`, in
plain Python. The environment variable `PYSPARK_KAFKA_RECORDS` selects one of them. By default, the
kernel is used if it is installed. Importing this package raises an error if the selected
implementation cannot be loaded. `checksums` contains a third function with two implementations.
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
"""The modules that contain `decode` and `encode`, by implementation."""


def _load(selected: str | None) -> tuple[str, Decode, Encode]:
    """Return the name of the selected implementation, and its functions. Raises `OptionError`."""
    if selected and selected not in _MODULES:
        raise OptionError(
            f"The environment variable {_VARIABLE} has the invalid value {selected!r}.",
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
                    f"The environment variable {_VARIABLE} selects the implementation "
                    f"{selected!r}, which cannot be loaded ({error}).",
                    advice=(
                        "Install a pyspark-kafka wheel for this system, build pyspark-kafka with a "
                        f"C compiler, or set {_VARIABLE} to 'pure'."
                    ),
                    option=_VARIABLE,
                ) from error
        else:
            return implementation, decoding.decode, encoding.encode
    raise AssertionError("the pure Python implementation cannot be loaded")


IMPLEMENTATION, decode, encode = _load(os.environ.get(_VARIABLE))
