"""Functions whose source code is generated, like the methods of dataclasses.

A function that decodes or encodes a struct is several times faster if it consists of separate
statements for each field instead of a loop over the fields. `reader` and `writer` therefore
generate one function for each struct.
"""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterable
from typing import Any


class Source:
    """The lines of a function, and the objects that they refer to by name."""

    def __init__(self, signature: str) -> None:
        """Start a function with this `signature`, such as `read(cursor)`."""
        self._signature = signature
        self._lines: list[str] = []
        self._names: dict[str, object] = {}

    def name(self, value: object) -> str:
        """Return a name by which the lines can refer to an object."""
        name = f"_{len(self._names)}"
        self._names[name] = value
        return name

    def pack(self, layout: str) -> str:
        """Return the name of the function that encodes values of a `struct` format."""
        return self.name(struct.Struct(f">{layout}").pack)

    def add(self, *lines: str) -> None:
        """Add lines to the body of the function."""
        self._lines += lines

    def add_block(self, head: str, lines: Iterable[str]) -> None:
        """Add a compound statement: `head` ends in a colon, and `lines` are its body."""
        self.add(head, *(f"    {line}" for line in lines))

    def function(self, origin: str) -> Callable[..., Any]:
        """Return the function. `origin` describes it in tracebacks."""
        name = self._signature.partition("(")[0]
        text = "\n    ".join([f"def {self._signature}:", *(self._lines or ["pass"])]) + "\n"
        path = f"<generated {origin}>"
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        namespace = dict(self._names)
        exec(compile(text, path, "exec"), namespace)  # noqa: S102
        function: Callable[..., Any] = namespace[name]  # type: ignore[assignment]
        return function
