"""How a kernel is compiled, and the machine instructions that Python has no name for."""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


LANES = 64  # signatures that `near_lanes` compares at once


def kernel(function):
    """Compile without the GIL, cached on disk; division follows IEEE, as in NumPy."""
    return njit(cache=True, nogil=True, error_model="numpy")(function)


@intrinsic
def popcount(typing_context, value):
    """Count the 1-bits of a uint64."""
    if value != types.uint64:
        return None

    def generate(context, builder, signature, arguments):
        return builder.ctpop(builder.bitcast(arguments[0], ir.IntType(64)))

    return types.int64(types.uint64), generate


@intrinsic
def lowest_bit(typing_context, value):
    """Give the place of the lowest 1-bit of a uint64 that is not 0."""
    if value != types.uint64:
        return None

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@intrinsic
def near_lanes(typing_context, signatures, position, signature, threshold):
    """Compare LANES signatures from a position on with one: bit i is set if distance i is within the threshold.

    Written as vector instructions because no loop over single postings becomes them: most postings are rejected, and asking
    one by one costs a mispredicted branch for each that is not.
    """
    if not isinstance(signatures, types.Array) or signatures.dtype != types.uint64:
        return None

    def generate(context, builder, call, arguments):
        word, index = ir.IntType(64), ir.IntType(32)
        lanes = ir.VectorType(word, LANES)
        undefined = ir.Constant(lanes, ir.Undefined)
        first_lane = ir.Constant(ir.VectorType(index, LANES), [ir.Constant(index, 0)] * LANES)

        def in_every_lane(value):
            return builder.shuffle_vector(builder.insert_element(undefined, value, index(0)), undefined, first_lane)

        array = context.make_array(call.args[0])(context, builder, arguments[0])
        first = builder.bitcast(builder.gep(array.data, [arguments[1]]), lanes.as_pointer())
        differing = builder.xor(builder.load(first, align=8), in_every_lane(arguments[2]))
        count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, [lanes]), f"llvm.ctpop.v{LANES}i64")
        near = builder.icmp_unsigned("<=", builder.call(count, [differing]), in_every_lane(arguments[3]))
        return builder.bitcast(near, word)

    return types.uint64(signatures, types.int64, types.uint64, types.int64), generate
