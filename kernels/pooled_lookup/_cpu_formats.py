"""pooled_lookup on the CPU where sums are not of the rows' own dtype: float16, bfloat16, bytes; and rounded results.

Tables come as `bits_of` gives them: int16 is float16, uint16 bfloat16, uint8 a byte to be scaled. The sum of a block of
columns stays in float32 registers until it is divided, rounded and stored.
"""
# ruff: noqa: ANN001, ANN202

from collections.abc import Callable

import numpy as np
import torch
from llvmlite import ir
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from .._numba_cpu import NEAR, ROWS_AHEAD, kernel, prefetch_row

FORMATS = {
    torch.float32: types.float32,
    torch.float16: types.int16,
    torch.bfloat16: types.uint16,
    torch.uint8: types.uint8,
    torch.float64: types.float64,
}
"""How Numba sees a dtype. Kernels that take bytes take its number in this order; results are in the first three."""

_F32, _I32 = ir.FloatType(), ir.IntType(32)


def _widened(builder: ir.IRBuilder, kind: types.Type, bits: ir.Value, lanes: int) -> ir.Value:
    """`lanes` stored numbers of `kind` in float32, exactly; a byte as 0 .. 255."""
    floats, ints = ir.VectorType(_F32, lanes), ir.VectorType(_I32, lanes)
    if kind == types.int16:
        return builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), lanes)), floats)
    if kind == types.uint16:
        high = builder.shl(builder.zext(bits, ints), ir.Constant(ints, [16] * lanes))
        return builder.bitcast(high, floats)
    if kind == types.uint8:
        return builder.uitofp(builder.zext(bits, ints), floats)
    return bits


def _narrowed(builder: ir.IRBuilder, kind: types.Type, value: ir.Value, lanes: int) -> ir.Value:
    """float32 numbers rounded to nearest even in the format of `kind`."""
    shorts, ints = ir.VectorType(ir.IntType(16), lanes), ir.VectorType(_I32, lanes)
    if kind == types.int16:
        return builder.bitcast(builder.fptrunc(value, ir.VectorType(ir.HalfType(), lanes)), shorts)
    if kind == types.uint16:
        bits = builder.bitcast(value, ints)
        shift = ir.Constant(ints, [16] * lanes)
        odd = builder.and_(builder.lshr(bits, shift), ir.Constant(ints, [1] * lanes))
        near = builder.add(bits, builder.add(odd, ir.Constant(ints, [0x7FFF] * lanes)))
        nan = builder.or_(bits, ir.Constant(ints, [0x400000] * lanes))  # stays one when cut
        near = builder.select(builder.fcmp_unordered("uno", value, value), nan, near)
        return builder.trunc(builder.lshr(near, shift), shorts)
    return value


def _splat(builder: ir.IRBuilder, scalar: ir.Value, lanes: int) -> ir.Value:
    one = builder.insert_element(ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined), scalar, _I32(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes))


def _block_sums(vectors: int, lanes: int) -> Callable:
    """Make an intrinsic that sums `vectors` x `lanes` columns of a bag's rows in registers and stores them.

    (out, format, bag, table, scale_bias, ids, weights, low, high, last, column, divisor): with the block's columns j,
    out[bag, j] = round((sum over i = low .. high - 1 of  weights[i] * value(ids[i], j)) / divisor),  one i after
    another, while the rows up to ids[last - 1] are fetched ahead. `weights` of length 0 are ones. `out` comes as
    bytes, in one of the FORMATS: one compiled kernel serves them all.
    """

    @intrinsic
    def block_sums(typingctx, out, format, bag, table, scale_bias, ids, weights, low, high, last, column, divisor):
        index = types.intp
        given = (out, index, index, table, scale_bias, ids, weights, index, index, index, index, types.float32)
        signature = types.void(*given)
        scaled = table.dtype == types.uint8

        def codegen(context, builder, signature, args):
            arrays = [context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 3, 4, 5, 6)]
            out_view, table_view, scale_view, ids_view, weights_view = arrays
            format, bag, low, high, last, column, divisor = (args[k] for k in (1, 2, 7, 8, 9, 10, 11))
            vector = ir.VectorType(_F32, lanes)
            i8p = ir.IntType(8).as_pointer()
            dim = builder.extract_value(table_view.shape, 1)
            weighted = builder.icmp_signed(">", builder.extract_value(weights_view.shape, 0), low.type(0))

            number = ir.VectorType(context.get_value_type(table.dtype), lanes)

            def blocks(row):
                first = builder.gep(table_view.data, [builder.add(builder.mul(row, dim), column)])
                first = builder.bitcast(first, number.as_pointer())
                return [builder.gep(first, [_I32(v)]) for v in range(vectors)]

            sums = [cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * lanes)) for _ in range(vectors)]
            for total in sums:
                builder.store(ir.Constant(vector, [0.0] * lanes), total)
            biases = cgutils.alloca_once(builder, _F32)
            builder.store(_F32(0.0), biases)
            factor = cgutils.alloca_once(builder, _F32)
            prefetch_type = ir.FunctionType(ir.VoidType(), [i8p, _I32, _I32, _I32])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", [i8p], prefetch_type)
            fma_type = ir.FunctionType(vector, [vector, vector, vector])
            fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fma.v{lanes}f32")
            bytes_apart = vectors * lanes * table.dtype.bitwidth // 8
            with cgutils.for_range_slice(builder, low, high, low.type(1), low.type) as (i, _):
                row = builder.load(builder.gep(ids_view.data, [i]))
                ahead = builder.add(i, i.type(ROWS_AHEAD))
                ahead = builder.select(builder.icmp_signed("<", ahead, last), ahead, i)
                later = builder.load(builder.gep(ids_view.data, [ahead]))
                first = builder.bitcast(blocks(later)[0], i8p)
                for line in range(0, bytes_apart, 64):
                    builder.call(prefetch, [builder.gep(first, [_I32(line)]), _I32(0), _I32(NEAR), _I32(1)])
                builder.store(_F32(1.0), factor)
                with builder.if_then(weighted):
                    builder.store(builder.load(builder.gep(weights_view.data, [i])), factor)
                weight = builder.load(factor)
                if scaled:
                    pair = builder.gep(scale_view.data, [builder.mul(later, later.type(2))])
                    builder.call(prefetch, [builder.bitcast(pair, i8p), _I32(0), _I32(NEAR), _I32(1)])
                    pair = builder.gep(scale_view.data, [builder.mul(row, row.type(2))])
                    bias = builder.fmul(weight, builder.load(builder.gep(pair, [_I32(1)])))
                    builder.store(builder.fadd(builder.load(biases), bias), biases)
                    weight = builder.fmul(weight, builder.load(pair))
                weight = _splat(builder, weight, lanes)
                for block, total in zip(blocks(row), sums, strict=True):
                    stored = builder.load(block, align=table.dtype.bitwidth // 8)
                    value = _widened(builder, table.dtype, stored, lanes)
                    builder.store(builder.call(fma, [weight, value, builder.load(total)]), total)
            one_divisor = divisor
            bias, divisor = (_splat(builder, scalar, lanes) for scalar in (builder.load(biases), divisor))
            results = [builder.load(total) for total in sums]
            if scaled:
                results = [builder.fadd(result, bias) for result in results]
            divided = [cgutils.alloca_once(builder, vector) for _ in range(vectors)]
            for result, place in zip(results, divided, strict=True):
                builder.store(result, place)
            with builder.if_then(builder.fcmp_ordered("!=", one_divisor, _F32(1.0))):  # division is slow, by 1 exact
                for result, place in zip(results, divided, strict=True):
                    builder.store(builder.fdiv(result, divisor), place)
            results = [builder.load(place) for place in divided]
            out_row = builder.gep(out_view.data, [builder.mul(bag, builder.extract_value(out_view.shape, 1))])
            for code, kind in enumerate([*FORMATS.values()][:3]):
                size = kind.bitwidth // 8
                with builder.if_then(builder.icmp_signed("==", format, format.type(code))):
                    block = builder.gep(out_row, [builder.mul(column, column.type(size))])
                    vector = ir.VectorType(context.get_value_type(kind), lanes)
                    block = builder.bitcast(block, vector.as_pointer())
                    for v, result in enumerate(results):
                        builder.store(
                            _narrowed(builder, kind, result, lanes), builder.gep(block, [_I32(v)]), align=size
                        )
            return context.get_dummy_value()

        return signature, codegen

    return block_sums


_eight_vectors, _four_vectors, _one_vector, _one_number = (
    _block_sums(vectors, lanes) for vectors, lanes in ((8, 16), (4, 16), (1, 16), (1, 1))
)


@kernel
def pool(format, out, table, scale_bias, ids, offsets, weights, mean, cuts):
    dim = table.shape[1]
    for t in prange(len(cuts) - 1):
        last = offsets[cuts[t + 1]]
        for bag in range(cuts[t], cuts[t + 1]):
            low, high = offsets[bag], offsets[bag + 1]
            divisor = np.float32(max(high - low, 1) if mean else 1)  # by 1 is exact
            column = 0
            while column + 128 <= dim:
                _eight_vectors(out, format, bag, table, scale_bias, ids, weights, low, high, last, column, divisor)
                column += 128
            while column + 64 <= dim:
                _four_vectors(out, format, bag, table, scale_bias, ids, weights, low, high, last, column, divisor)
                column += 64
            while column + 16 <= dim:
                _one_vector(out, format, bag, table, scale_bias, ids, weights, low, high, last, column, divisor)
                column += 16
            while column < dim:
                _one_number(out, format, bag, table, scale_bias, ids, weights, low, high, last, column, divisor)
                column += 1


@intrinsic
def _number(typingctx, like, table, format, row, column):
    """The number in `row` and `column` of `table`, given as bytes in one of the FORMATS, as a float of `like`'s type.

    The compiler takes the choice of format out of the loop over columns. float64 has a kernel of its own.
    """

    def codegen(context, builder, signature, args):
        _, table, format, row, column = args
        view = context.make_array(signature.args[1])(context, builder, table)
        first = builder.gep(view.data, [builder.mul(row, builder.extract_value(view.shape, 1))])
        result = cgutils.alloca_once(builder, context.get_value_type(like))
        wide = like == types.float64
        for code, kind in enumerate(FORMATS.values()):
            if (kind == types.float64) != wide:
                continue
            size, vector = kind.bitwidth // 8, ir.VectorType(context.get_value_type(kind), 1)
            with builder.if_then(builder.icmp_signed("==", format, format.type(code))):
                cell = builder.gep(first, [builder.mul(column, column.type(size))])
                stored = builder.load(builder.bitcast(cell, vector.as_pointer()), align=size)
                value = stored if wide else _widened(builder, kind, stored, 1)
                builder.store(builder.extract_element(value, _I32(0)), result)
        return builder.load(result)

    return like(like, table, types.intp, types.intp, types.intp), codegen


@njit(nogil=True, error_model="numpy")
def _scale_and_bias(like, scale_bias, row):
    if len(scale_bias):
        return like.dtype.type(scale_bias[row, 0]), like.dtype.type(scale_bias[row, 1])
    return like.dtype.type(1), like.dtype.type(0)


@kernel
def pool_max(out, winner, format, table, scale_bias, ids, offsets, cuts):
    dim, real = out.shape[1], out.dtype.type
    for t in prange(len(cuts) - 1):
        last = offsets[cuts[t + 1]]
        for bag in range(cuts[t], cuts[t + 1]):
            low, high = offsets[bag], offsets[bag + 1]
            for j in range(dim):
                out[bag, j] = 0
                winner[bag, j] = -1
            for i in range(low, high):
                if i + ROWS_AHEAD < last:
                    prefetch_row(table, ids[i + ROWS_AHEAD])
                row = ids[i]
                scale, bias = _scale_and_bias(out, scale_bias, row)
                for j in range(dim):
                    value = _number(real(0), table, format, row, j)
                    if len(scale_bias):
                        value = scale * value + bias
                    if i == low or value > out[bag, j]:
                        out[bag, j] = value
                        winner[bag, j] = i


@njit(nogil=True, fastmath={"reassoc"})
def _dot_row(grad, format, table, row, scale, bias):
    products = grad.dtype.type(0)
    total = grad.dtype.type(0)
    for j in range(len(grad)):
        products += grad[j] * _number(grad.dtype.type(0), table, format, row, j)
        total += grad[j]
    return scale * products + bias * total


@kernel
def dot_rows(out, grad_out, format, table, scale_bias, ids, offsets, cuts):
    for t in prange(len(cuts) - 1):
        last = offsets[cuts[t + 1]]
        for bag in range(cuts[t], cuts[t + 1]):
            for i in range(offsets[bag], offsets[bag + 1]):
                if i + ROWS_AHEAD < last:
                    prefetch_row(table, ids[i + ROWS_AHEAD])
                scale, bias = _scale_and_bias(out, scale_bias, ids[i])
                out[i] = _dot_row(grad_out[bag], format, table, ids[i], scale, bias)
