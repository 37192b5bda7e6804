"""float16 and bfloat16 in the `_cpu.py` files: Numba has neither, so a table travels as its bits, int16 and uint16.

The integer's type is the format: `widen` and `narrow` pick their code by it when compiled.
"""
# ruff: noqa: ANN001, ANN202

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

VIEWS = {torch.float16: torch.int16, torch.bfloat16: torch.uint16}
"""Which integers stand for which format."""


def bits_of(tensor: torch.Tensor) -> np.ndarray:
    """`tensor` as an array Numba takes, sharing its memory: the bits of float16 and bfloat16, others as they are."""
    tensor = tensor.detach()
    return tensor.view(VIEWS.get(tensor.dtype, tensor.dtype)).numpy()


_F32, _I32, _I16, _HALF = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.HalfType()


@intrinsic
def widen(typingctx, number):
    """The number in float32 (float32 and float64 as they are): exact."""
    out = number if isinstance(number, types.Float) else types.float32

    def codegen(context, builder, signature, args):
        (value,) = args
        if number == types.int16:
            return builder.fpext(builder.bitcast(value, _HALF), _F32)
        if number == types.uint16:
            return builder.bitcast(builder.shl(builder.zext(value, _I32), _I32(16)), _F32)
        return value

    return out(number), codegen


@intrinsic
def narrow(typingctx, number, like):
    """`number` in the format of `like`, to nearest even."""

    def codegen(context, builder, signature, args):
        value = args[0]
        if like == types.int16:
            return builder.bitcast(builder.fptrunc(value, _HALF), _I16)
        if like == types.uint16:
            bits = builder.bitcast(value, _I32)
            odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
            near = builder.add(bits, builder.add(_I32(0x7FFF), odd))
            nan = builder.or_(bits, _I32(0x400000))  # stays one when cut
            near = builder.select(builder.fcmp_unordered("uno", value, value), nan, near)
            return builder.trunc(builder.lshr(near, _I32(16)), _I16)
        return value

    return like(number, like), codegen


@intrinsic
def float_bits(typingctx, number):
    """The 32 bits of a float32, as uint32."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], _I32)

    return types.uint32(types.float32), codegen


@intrinsic
def float_of_bits(typingctx, bits):
    """The float32 of 32 bits."""

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], _F32)

    return types.float32(types.uint32), codegen
