"""Reads Kafka's primitive types.

Every length is checked before it is used. Malformed bytes cause a `MalformedResponseError` and no
other error. The size of the frame limits the allocated memory: bytes fields are views of the frame,
and an array or a section of tagged fields has at most one element for each remaining byte.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

T = TypeVar("T")

ELEMENTS_MAX: Final = 5_000_000
"""The maximum number of array elements and tagged fields in a frame.

This maximum is sufficient for 500,000 partitions with three replicas each.
"""

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_VARINT_BYTES_MAX: Final = 5
_UINT32_MAX: Final = 2**32 - 1
_ERROR_CODES: Final = {int(code): code for code in ErrorCode}


class MalformedResponseError(Exception):
    """The bytes are not a valid response. The error message contains the field and the reason."""


class Reader:
    """A reader that starts at `position` in a frame.

    `what` is the name of the field in error messages.
    """

    __slots__ = ("_data", "_elements_left", "_size", "position")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._size = len(data)
        self._elements_left = ELEMENTS_MAX
        self.position = 0

    @property
    def left(self) -> int:
        """Return the number of unread bytes."""
        return self._size - self.position

    def int8(self, what: str) -> int:
        return self._fixed(_INT8, what)

    def int16(self, what: str) -> int:
        return self._fixed(_INT16, what)

    def int32(self, what: str) -> int:
        return self._fixed(_INT32, what)

    def int64(self, what: str) -> int:
        return self._fixed(_INT64, what)

    def boolean(self, what: str) -> bool:
        return self._fixed(_INT8, what) != 0

    def uuid(self, what: str) -> UUID | None:
        """Read a UUID. Return None for the zero UUID, which means that there is no id."""
        data = bytes(self.view(16, what))
        return UUID(bytes=data) if any(data) else None

    def error_code(self, what: str) -> ErrorCode:
        """Read an error code. Unknown codes become UNKNOWN_SERVER_ERROR, as in Kafka's clients."""
        return _ERROR_CODES.get(self.int16(what), ErrorCode.unknown_server_error)

    def unsigned_varint(self, what: str) -> int:
        """Read an unsigned varint of at most 32 bits and at most five bytes."""
        value = 0
        start = self.position
        end = min(start + _VARINT_BYTES_MAX, self._size)
        for position in range(start, end):
            byte = self._data[position]
            value |= (byte & 0x7F) << (7 * (position - start))
            if byte < 0x80 and value <= _UINT32_MAX:
                self.position = position + 1
                return value
        raise MalformedResponseError(f"{what} at byte {start} is not a valid 32-bit varint")

    def view(self, length: int, what: str) -> memoryview:
        """Return a view of the next `length` bytes."""
        start = self.position
        if length < 0 or length > self._size - start:
            raise MalformedResponseError(
                f"{what} at byte {start} has length {length}, but only {self._size - start} bytes "
                "of the response are left"
            )
        self.position = start + length
        return self._data[start : self.position]

    def string(self, what: str, *, flexible: bool) -> str:
        return _not_null(self.nullable_string(what, flexible=flexible), what)

    def nullable_string(self, what: str, *, flexible: bool) -> str | None:
        length = self.unsigned_varint(what) - 1 if flexible else self.int16(what)
        if length == -1:
            return None
        try:
            return str(self.view(length, what), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedResponseError(f"{what} is not valid UTF-8: {error.reason}") from None

    def nullable_data(self, what: str, *, flexible: bool) -> memoryview | None:
        """Read a nullable field of type bytes or records."""
        length = self.unsigned_varint(what) - 1 if flexible else self.int32(what)
        return None if length == -1 else self.view(length, what)

    def data(self, what: str, *, flexible: bool) -> memoryview:
        return _not_null(self.nullable_data(what, flexible=flexible), what)

    def array(self, element: Callable[[], T], what: str, *, flexible: bool) -> tuple[T, ...]:
        return _not_null(self.nullable_array(element, what, flexible=flexible), what)

    def nullable_array(
        self, element: Callable[[], T], what: str, *, flexible: bool
    ) -> tuple[T, ...] | None:
        length = self.unsigned_varint(what) - 1 if flexible else self.int32(what)
        if length == -1:
            return None
        self._take_elements(length, what)
        return tuple([element() for _ in range(length)])

    def _take_elements(self, count: int, what: str) -> None:
        """Add `count` to the number of elements read.

        Raises an error if `count` exceeds a limit.
        """
        possible = min(self.left, self._elements_left)
        if count < 0 or count > possible:
            raise MalformedResponseError(
                f"{what} declares {count} elements, but at most {possible} elements can follow "
                f"byte {self.position}"
            )
        self._elements_left -= count

    def tagged_fields(self, known: Callable[[int], bool], what: str) -> None:
        """Read a section of tagged fields.

        `known(tag)` reads a field, or returns False if the tag is unknown. Unknown fields are
        skipped. A known field must have exactly its declared size.
        """
        count = self.unsigned_varint(f"the number of tagged fields of {what}")
        if count:
            self._take_elements(count, f"the tagged fields of {what}")
        for _ in range(count):
            tag = self.unsigned_varint(f"a tag of {what}")
            field = f"tag {tag} of {what}"
            size = self.unsigned_varint(f"the size of {field}")
            start = self.position
            if size > self.left:
                raise MalformedResponseError(
                    f"{field} has size {size}, but only {self.left} bytes of the response are left"
                )
            if not known(tag):
                self.position = start + size
            elif self.position != start + size:
                raise MalformedResponseError(
                    f"{field} has size {size}, but its content has {self.position - start} bytes"
                )

    def skip_tagged_fields(self, what: str) -> None:
        self.tagged_fields(lambda _tag: False, what)

    def end(self, what: str) -> None:
        """Raise `MalformedResponseError` if there are unread bytes."""
        if self.left:
            raise MalformedResponseError(f"{self.left} unexpected bytes follow {what}")

    def _fixed(self, layout: struct.Struct, what: str) -> int:
        position = self.position
        if layout.size > self._size - position:
            raise MalformedResponseError(f"the response ends within {what} at byte {self._size}")
        self.position = position + layout.size
        (value,) = layout.unpack_from(self._data, position)
        return int(value)


def _not_null(value: T | None, what: str) -> T:
    if value is None:
        raise MalformedResponseError(f"{what} is null, but the field is not nullable")
    return value
