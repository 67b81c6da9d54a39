"""Windows: 64 bytes of an array at once, as masks of 64 bits. What numba lacks: vector instructions.

Bit k of a mask speaks of byte i + k. A window must lie within its array; no one checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WINDOW = 64  # bytes
LETTERS = 16  # bytes that `put` writes
LINE = 64  # bytes that a processor fetches at once

_BYTE, _INT = ir.IntType(8), ir.IntType(32)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, i: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [i])


def _load(builder: Any, pointer: Any, size: int) -> Any:
    word = builder.load(builder.bitcast(pointer, ir.VectorType(_BYTE, size).as_pointer()))
    word.align = 1
    return word


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer())).align = 1


def _spread(builder: Any, byte: Any, size: int) -> Any:
    """A vector whose every byte is the low one of a number."""
    nothing = ir.Constant(ir.VectorType(_BYTE, size), ir.Undefined)
    first = builder.insert_element(nothing, builder.trunc(byte, _BYTE), _INT(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_INT, size), [0] * size))


def _mask(order: str) -> Callable[[Any, Any, Any, Any], Any]:
    """Of (data, i, byte), the bytes that compare so with `byte`, unsigned."""

    def typed(_context: Any, data: Any, _i: Any, _byte: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            window = _load(builder, _pointer(context, builder, signature.args[0], *arguments[:2]), WINDOW)
            found = builder.icmp_unsigned(order, window, _spread(builder, arguments[2], WINDOW))
            return builder.bitcast(found, ir.IntType(WINDOW))

        return types.uint64(data, types.int64, types.int64), generate

    return typed


equal = intrinsic(_mask("=="))  # (data, i, byte) -> uint64, where data is that byte
below = intrinsic(_mask("<"))  # (data, i, byte) -> uint64, where data is less than that byte


@intrinsic  # type: ignore[untyped-decorator]
def ones(_context: Any, _mask: Any) -> Any:
    """How many bits are set."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest(_context: Any, _mask: Any) -> Any:
    """Which bit is the lowest one set; 64 where none is."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, 0))

    return types.int64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def copy(_context: Any, out: Any, _to: Any, data: Any, _i: Any) -> Any:
    """out[to : to + 64] = data[i : i + 64]; the two may overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = _pointer(context, builder, signature.args[2], *arguments[2:])
        target = _pointer(context, builder, signature.args[0], *arguments[:2])
        _store(builder, _load(builder, source, WINDOW), target)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def put(_context: Any, out: Any, _to: Any, data: Any, _i: Any, _count: Any, _shift: Any) -> Any:
    """out[to : to + 16] = data[i : i + 16] + shift, but 0 from byte number `count` (0 to 16) on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = _pointer(context, builder, signature.args[2], *arguments[2:4])
        target = _pointer(context, builder, signature.args[0], *arguments[:2])
        letters = builder.add(_load(builder, source, LETTERS), _spread(builder, arguments[5], LETTERS))
        numbers = ir.Constant(letters.type, list(range(LETTERS)))
        kept = builder.icmp_unsigned("<", numbers, _spread(builder, arguments[4], LETTERS))
        _store(builder, builder.select(kept, letters, ir.Constant(letters.type, [0] * LETTERS)), target)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_context: Any, data: Any, _i: Any) -> Any:
    """Have the line of data[i] brought near; a place outside of the array is no error."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT, _INT, _INT])
        name = "llvm.prefetch.p0"
        fetch = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(fetch, [pointer, _INT(0), _INT(3), _INT(1)])  # read, keep in all caches, data
        return context.get_dummy_value()

    return types.void(data, types.int64), generate
