"""Sums of rows in registers and dot products, for the `_cpu.py` files. Everything but `dot` is strict IEEE."""

from collections.abc import Callable

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from ._numba_cpu import NEAR, ROWS_AHEAD


def _row_sums(vectors: int, weighted: bool) -> Callable:
    """Make an intrinsic that sums `vectors` cache lines of rows in registers, which no loop in Python compiles to.

    (out, bag, table, ids, weights, low, high, last, column): for the columns j of the block,
    out[bag, j] = sum over i = low .. high - 1 of  weights[i] * table[ids[i], j],  one i after another, while the lines
    of rows up to ids[last - 1] are fetched ahead. Without `weighted` the weights count as ones.
    """

    @intrinsic
    def row_sums(typingctx, out, bag, table, ids, weights, low, high, last, column):  # noqa: ANN001, ANN202
        index = types.intp
        signature = types.void(out, index, table, ids, weights, index, index, index, index)

        def codegen(context, builder, signature, args):  # noqa: ANN001, ANN202
            number = context.get_value_type(table.dtype)
            lanes = 512 // table.dtype.bitwidth
            vector = ir.VectorType(number, lanes)
            views = [context.make_array(signature.args[k])(context, builder, args[k]) for k in (0, 2, 3, 4)]
            out_view, table_view, ids_view, weights_view = views
            bag, low, high, last, column = (args[k] for k in (1, 5, 6, 7, 8))
            i8p, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
            dim = builder.extract_value(table_view.shape, 1)

            def lines(view, row):  # noqa: ANN001, ANN202
                first = builder.gep(view.data, [builder.add(builder.mul(row, dim), column)])
                first = builder.bitcast(first, vector.as_pointer())
                return [builder.gep(first, [i32(v)]) for v in range(vectors)]

            sums = [cgutils.alloca_once(builder, vector) for _ in range(vectors)]
            for total in sums:
                builder.store(ir.Constant(vector, [0.0] * lanes), total)
            prefetch_type = ir.FunctionType(ir.VoidType(), [i8p, i32, i32, i32])
            prefetch = builder.module.declare_intrinsic("llvm.prefetch", [i8p], prefetch_type)
            with cgutils.for_range_slice(builder, low, high, low.type(1), low.type) as (i, _):
                row = builder.load(builder.gep(ids_view.data, [i]))
                ahead = builder.add(i, i.type(ROWS_AHEAD))
                ahead = builder.select(builder.icmp_signed("<", ahead, last), ahead, i)
                later = builder.load(builder.gep(ids_view.data, [ahead]))
                for line in lines(table_view, later):
                    builder.call(prefetch, [builder.bitcast(line, i8p), i32(0), i32(NEAR), i32(1)])
                if weighted:
                    weight = builder.load(builder.gep(weights_view.data, [i]))
                    one = builder.insert_element(ir.Constant(vector, ir.Undefined), weight, i32(0))
                    weight = builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(i32, lanes), [0] * lanes))
                for line, total in zip(lines(table_view, row), sums, strict=True):
                    term = builder.load(line, align=table.dtype.bitwidth // 8)
                    term = builder.fmul(weight, term) if weighted else term
                    builder.store(builder.fadd(builder.load(total), term), total)
            for line, total in zip(lines(out_view, bag), sums, strict=True):
                builder.store(builder.load(total), line, align=table.dtype.bitwidth // 8)
            return context.get_dummy_value()

        return signature, codegen

    return row_sums


_sum_eight_lines, _sum_four_lines, _sum_one_line = (_row_sums(n, weighted=False) for n in (8, 4, 1))
_weigh_eight_lines, _weigh_four_lines, _weigh_one_line = (_row_sums(n, weighted=True) for n in (8, 4, 1))


@njit(nogil=True, error_model="numpy", inline="always")  # a call a bag costs more than a bag of one row
def sum_rows(out, bag, table, ids, weights, low, high, last):  # noqa: ANN001, ANN202
    """out[bag] = sum over i = low .. high - 1 of  weights[i] * table[ids[i]],  one i after another, from 0 on.

    Rows up to ids[last - 1] are fetched ahead; `weights` of length 0 count as ones. The forward sums rows of the table
    with it, the backward rows of gradients: segment_grads and sparse_update agree bit for bit.
    """
    dim, line = table.shape[1], 64 // table.itemsize
    column = 0
    while column + 8 * line <= dim:
        if len(weights):
            _weigh_eight_lines(out, bag, table, ids, weights, low, high, last, column)
        else:
            _sum_eight_lines(out, bag, table, ids, weights, low, high, last, column)
        column += 8 * line
    if column + 4 * line <= dim:
        if len(weights):
            _weigh_four_lines(out, bag, table, ids, weights, low, high, last, column)
        else:
            _sum_four_lines(out, bag, table, ids, weights, low, high, last, column)
        column += 4 * line
    while column + line <= dim:
        if len(weights):
            _weigh_one_line(out, bag, table, ids, weights, low, high, last, column)
        else:
            _sum_one_line(out, bag, table, ids, weights, low, high, last, column)
        column += line
    for j in range(column, dim):
        out[bag, j] = 0
    for i in range(low, high):
        weight = weights[i] if len(weights) else table.dtype.type(1)  # times 1 is exact
        for j in range(column, dim):
            out[bag, j] += weight * table[ids[i], j]


@njit(nogil=True, fastmath={"reassoc"})
def dot(a, b):  # noqa: ANN001, ANN202
    """Sum of a[j] * b[j], in the order the compiler finds best for this processor: a function of the length alone."""
    total = a.dtype.type(0)
    for j in range(len(a)):
        total += a[j] * b[j]
    return total
