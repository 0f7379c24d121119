"""How kernels are compiled, and the vector instructions they use. The only import of numba in polyvoc."""

from __future__ import annotations

import mmap
from contextlib import contextmanager
from functools import partial

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils, event
from numba.extending import intrinsic

LANES = 64  # signatures that are compared at once
POINTS, WORDS = 8, 16  # whose products are computed at once: the sums stay in registers


def kernel(function, **settings):
    """Compile without the GIL, cached on disk where a folder can be written; division follows IEEE, as in NumPy."""
    compile_it = partial(njit, nogil=True, error_model="numpy", **settings)
    try:
        return compile_it(cache=True)(function)
    except RuntimeError:  # neither the source's folder nor the user's home can be written
        return compile_it()(function)


def fast_kernel(function):
    """Compile as `kernel`, but allow sums in any order, which vectorises them."""
    return kernel(function, fastmath={"reassoc", "contract", "nsz"})


def inlined(function):
    """Compile a part of kernels that is copied into its callers: a call would count references to every array it is given."""
    return njit(inline="always", nogil=True, error_model="numpy")(function)


class _Compiling(event.Listener):
    """Counts the kernels that are compiled; loading one that was compiled before is no event."""

    def __init__(self, report):
        self._report, self._count = report, 0

    def on_start(self, event):
        self._report(self._count)

    def on_end(self, event):
        self._count += 1
        self._report(self._count)


@contextmanager
def reported_compiling(report):
    """Call `report` with the number of kernels compiled so far, whenever one begins or ends, on whichever thread."""
    with event.install_listener("numba:compile", _Compiling(report)):
        yield


def instruction(python):
    """Decorate an intrinsic with the same in Python, which replaces it where kernels are not compiled (NUMBA_DISABLE_JIT=1)."""
    return (lambda _: python) if config.DISABLE_JIT else intrinsic


def _pack(bits):
    """Return LANES bits as one uint64, bit 0 first."""
    return np.uint64(sum(bool(bit) << i for i, bit in enumerate(bits)))


@instruction(lambda value: int(value).bit_count())
def popcount(typing_context, value):
    """Count the 1-bits of a uint64."""
    if value != types.uint64:
        return None

    def generate(context, builder, signature, arguments):
        return builder.ctpop(builder.bitcast(arguments[0], ir.IntType(64)))

    return types.int64(types.uint64), generate


@instruction(lambda value: (int(value) & -int(value)).bit_length() - 1)
def lowest_bit(typing_context, value):
    """Return the position of the lowest 1-bit of a uint64 that is not 0."""
    if value != types.uint64:
        return None

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate


@instruction(
    lambda signatures, position, signature, threshold: _pack(
        int(signatures[position + i] ^ signature).bit_count() <= threshold for i in range(LANES)
    )
)
def near_lanes(typing_context, signatures, position, signature, threshold):
    """Compare LANES signatures from a position on with one: bit i is set if distance i is within the threshold.

    Written as vector instructions because no loop over single postings compiles to them: most postings are rejected, and
    testing one by one costs a mispredicted branch for each that is not. The array must hold LANES elements from there on.
    """
    if not isinstance(signatures, types.Array) or signatures.dtype != types.uint64:
        return None

    def generate(context, builder, call, arguments):
        distances = _distances(context, builder, call.args[0], *arguments[:3])
        near = builder.icmp_unsigned("<=", distances, _spread(builder, arguments[3], distances.type))
        return builder.bitcast(near, ir.IntType(64))

    return types.uint64(signatures, types.int64, types.uint64, types.int64), generate


@instruction(
    lambda first, second, position, signature, other, threshold: _pack(
        int(first[position + i] ^ signature).bit_count() + int(second[position + i] ^ other).bit_count() <= threshold
        for i in range(LANES)
    )
)
def near_long_lanes(typing_context, first, second, position, signature, other, threshold):
    """Compare LANES signatures of 128 bits, stored in two arrays, with one. As `near_lanes`."""
    if not isinstance(first, types.Array) or first.dtype != types.uint64 or second != first:
        return None

    def generate(context, builder, call, arguments):
        one = _distances(context, builder, call.args[0], arguments[0], arguments[2], arguments[3])
        two = _distances(context, builder, call.args[1], arguments[1], arguments[2], arguments[4])
        near = builder.icmp_unsigned("<=", builder.add(one, two), _spread(builder, arguments[5], one.type))
        return builder.bitcast(near, ir.IntType(64))

    return types.uint64(first, second, types.int64, types.uint64, types.uint64, types.int64), generate


def _sum_chosen(values, bits, first=0):
    """Return the sum of those of LANES values, from `first` on, whose bits are set."""
    return sum(int(values[first + i]) for i in range(LANES) if int(bits) >> i & 1)


@instruction(lambda values, row, bits: _sum_chosen(values[row], bits))
def sum_lanes(typing_context, values, row, bits):
    """Sum those of the LANES bytes of a row whose bits are set. values: uint8 [rows, LANES], C order."""
    if not _is_byte_table(values):
        return None

    def generate(context, builder, call, arguments):
        pairs = _chosen_pairs(context, builder, call.args[0], arguments[0], arguments[1], 0, arguments[2])
        return _sum_pairs(builder, pairs)

    return types.int64(values, types.int64, types.uint64), generate


@instruction(lambda values, row, bits, other: _sum_chosen(values[row], bits) + _sum_chosen(values[row], other, LANES))
def sum_long_lanes(typing_context, values, row, bits, other):
    """Sum those of the 2 LANES bytes of a row whose bits are set. As `sum_lanes`."""
    if not _is_byte_table(values):
        return None

    def generate(context, builder, call, arguments):
        pairs = [
            _chosen_pairs(context, builder, call.args[0], arguments[0], arguments[1], first, chosen)
            for first, chosen in ((0, arguments[2]), (LANES, arguments[3]))
        ]
        return _sum_pairs(builder, builder.add(*pairs))

    return types.int64(values, types.int64, types.uint64, types.uint64), generate


@instruction(
    lambda values, row, limits, other, first: _pack(values[row, first + i] > limits[other, first + i] for i in range(LANES))
)
def above_lanes(typing_context, values, row, limits, other, first):
    """Compare LANES numbers of a row, from a column on, with those of another table: bit i is set if number i is larger.

    values, limits: float32 [.., columns], rows contiguous.
    """
    if not all(
        isinstance(array, types.Array) and array.dtype == types.float32 and array.ndim == 2 for array in (values, limits)
    ):
        return None

    def generate(context, builder, call, arguments):
        lanes = ir.VectorType(ir.FloatType(), LANES)
        loaded = [
            _load_row(context, builder, call.args[number], arguments[number], arguments[number + 1], arguments[4], lanes)
            for number in (0, 2)
        ]
        return builder.bitcast(builder.fcmp_ordered(">", *loaded), ir.IntType(64))

    return types.uint64(values, types.int64, limits, types.int64, types.int64), generate


@instruction(lambda values, row, first, level: _pack(values[row, first + i] > level for i in range(LANES)))
def beyond_lanes(typing_context, values, row, first, level):
    """Compare LANES numbers of a row, from a column on, with a level: bit i is set if number i is larger. As `above_lanes`."""
    if not isinstance(values, types.Array) or values.dtype != types.float32 or values.ndim != 2:
        return None

    def generate(context, builder, call, arguments):
        lanes = ir.VectorType(ir.FloatType(), LANES)
        loaded = _load_row(context, builder, call.args[0], *arguments[:3], lanes)
        return builder.bitcast(builder.fcmp_ordered(">", loaded, _spread(builder, arguments[3], lanes)), ir.IntType(64))

    return types.uint64(values, types.int64, types.int64, types.float32), generate


@instruction(lambda values, row, first: max(values[row, first : first + LANES]))
def largest_lane(typing_context, values, row, first):
    """Return the largest of LANES numbers of a row, from a column on, none of them NaN. As `above_lanes`."""
    if not isinstance(values, types.Array) or values.dtype != types.float32 or values.ndim != 2:
        return None

    def generate(context, builder, call, arguments):
        lanes = ir.VectorType(ir.FloatType(), LANES)
        kind = ir.FunctionType(ir.FloatType(), [lanes])
        largest = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fmax.v{LANES}f32")
        return builder.call(largest, [_load_row(context, builder, call.args[0], *arguments, lanes)], fastmath=("nnan",))

    return types.float32(values, types.int64, types.int64), generate


def _write_block(values, column, levels, out, masks):
    """Write values [POINTS, WORDS] to some columns, and the bits of those above the level of their row."""
    out[:, column : column + WORDS] = values
    masks[:] = [_pack(row) for row in np.ravel(values > levels[:, None]).reshape(-1, LANES)]


def _multiply_words(columns, block, rows, offsets, points, levels, column, products, masks):
    at = slice(block * WORDS, (block + 1) * WORDS)
    of_block = columns[block * rows.shape[1] * WORDS : (block + 1) * rows.shape[1] * WORDS].reshape(-1, WORDS)
    _write_block(rows[points] @ of_block - offsets[at], column, levels, products, masks)


@instruction(_multiply_words)
def multiply_words(typing_context, columns, block, rows, offsets, points, levels, column, products, masks):
    """Write products of POINTS points with the WORDS columns of a block, minus offsets, and which are above a point's level.

    columns: float32 [blocks, d, WORDS], flat; rows: [n, d]; offsets: [blocks WORDS]; points: int32 [POINTS] numbers; levels:
    [POINTS]. out: products [POINTS, ..] from a column on; masks: their bits, uint64 of LANES.
    """
    if not all(isinstance(array, types.Array) for array in (columns, rows, offsets, points, levels, products, masks)):
        return None

    def generate(context, builder, call, arguments):
        lanes, long = ir.VectorType(ir.FloatType(), WORDS), ir.IntType(64)
        columns, _, rows, offsets, points, levels, _, products, masks = _arrays(context, builder, call, arguments)
        start, width = builder.mul(arguments[1], long(WORDS)), builder.extract_value(rows.shape, 1)
        addresses = [address for _, address in _points_of(builder, points, rows)]
        offset = _load_at(builder, offsets, start, lanes)
        sums = [cgutils.alloca_once_value(builder, builder.fneg(offset)) for _ in addresses]
        kind = ir.FunctionType(lanes, [lanes, lanes, lanes])
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{WORDS}f32")
        first = builder.mul(start, width)
        with cgutils.for_range(builder, width) as loop:
            values = _load_at(builder, columns, builder.add(first, builder.mul(loop.index, long(WORDS))), lanes)
            for address, total in zip(addresses, sums, strict=True):
                x = _spread(builder, builder.load(builder.gep(address, [loop.index])), lanes)
                builder.store(builder.call(multiply_add, [x, values, builder.load(total)]), total)
        _store_block(builder, [builder.load(total) for total in sums], arguments[6], levels, products, masks)
        return context.get_dummy_value()

    return types.void(columns, types.int64, rows, offsets, points, levels, types.int64, products, masks), generate


def _bound_words(heads, block, unit, rows, units, tails, word_tails, halves, points, levels, column, bounds, masks):
    at, width = slice(block * WORDS, (block + 1) * WORDS), rows.shape[1]
    pairs = heads[block * width * WORDS : (block + 1) * width * WORDS].reshape(-1, WORDS, 2)
    of_block = pairs.transpose(0, 2, 1).reshape(-1, WORDS).astype(np.int32)
    products = (rows[points].astype(np.int32) @ of_block) * (units[points] * unit)[:, None]
    _write_block(products + tails[points, None] * word_tails[at] - halves[at], column, levels, bounds, masks)


@instruction(_bound_words)
def bound_words(
    typing_context, heads, block, unit, rows, units, tails, word_tails, halves, points, levels, column, bounds, masks
):
    """Write upper bounds of the scores of POINTS points with the WORDS words of a block, and which are above a point's level.

    Whole numbers of 16 bits: processors multiply and add two in each lane at once, where they would multiply one of 32 bits.
    heads: int16 [blocks, head / 2, WORDS, 2], flat, in units of `unit`; rows: int16 [n, head], in units [n]; products must fit
    into 32 bits; tails: [n]; word_tails, halves: [blocks WORDS]; points: int32 [POINTS] numbers; levels: [POINTS]. out: bounds
    [POINTS, ..] from a column on; masks: their bits, uint64 of LANES.
    """
    arrays = (heads, rows, units, tails, word_tails, halves, points, levels, bounds, masks)
    if any(not isinstance(array, types.Array) for array in arrays) or {heads.dtype, rows.dtype} != {types.int16}:
        return None

    def generate(context, builder, call, arguments):
        lanes, whole = ir.VectorType(ir.FloatType(), WORDS), ir.VectorType(ir.IntType(32), WORDS)
        pairs, long = ir.VectorType(ir.IntType(16), 2 * WORDS), ir.IntType(64)
        heads, _, _, rows, units, tails, word_tails, halves, points, levels, _, bounds, masks = _arrays(
            context, builder, call, arguments
        )
        start, head = builder.mul(arguments[1], long(WORDS)), builder.extract_value(rows.shape, 1)
        found = _points_of(builder, points, rows)
        sums = [cgutils.alloca_once_value(builder, ir.Constant(whole, [0] * WORDS)) for _ in found]
        first = builder.mul(start, head)
        with cgutils.for_range(builder, builder.sdiv(head, long(2))) as loop:
            values = _load_at(builder, heads, builder.add(first, builder.mul(loop.index, long(2 * WORDS))), pairs)
            for (_, address), total in zip(found, sums, strict=True):
                pair = builder.bitcast(builder.gep(address, [builder.mul(loop.index, long(2))]), whole.element.as_pointer())
                x = builder.bitcast(_spread(builder, builder.load(pair, align=2), whole), pairs)
                builder.store(builder.add(_multiply_pairs(builder, x, values), builder.load(total)), total)
        word_tail, half, of_points = _load_at(builder, word_tails, start, lanes), _load_at(builder, halves, start, lanes), []
        for (number, _), total in zip(found, sums, strict=True):
            tail = _spread(builder, builder.load(builder.gep(tails.data, [number])), lanes)
            unit = builder.fmul(builder.load(builder.gep(units.data, [number])), arguments[2])
            product = builder.fmul(builder.sitofp(builder.load(total), lanes), _spread(builder, unit, lanes))
            of_points.append(builder.fadd(product, builder.fsub(builder.fmul(tail, word_tail), half)))
        _store_block(builder, of_points, arguments[10], levels, bounds, masks)
        return context.get_dummy_value()

    result = types.void(heads, types.int64, types.float32, *arrays[1:8], types.int64, bounds, masks)
    return result, generate


def _arrays(context, builder, call, arguments):
    """Return the arrays among the arguments of an intrinsic, None in the place of others."""
    return [
        context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else None
        for kind, value in zip(call.args, arguments, strict=True)
    ]


def _points_of(builder, points, rows):
    """Return number and address of the rows of POINTS points."""
    found = []
    for p in range(POINTS):
        number = builder.sext(builder.load(builder.gep(points.data, [ir.IntType(64)(p)])), ir.IntType(64))
        found.append((number, builder.gep(rows.data, [builder.mul(number, builder.extract_value(rows.shape, 1))])))
    return found


def _load_at(builder, array, at, lanes):
    """Load a vector from a position of an array on."""
    return builder.load(builder.bitcast(builder.gep(array.data, [at]), lanes.as_pointer()), align=2)


def _multiply_pairs(builder, one, other):
    """Return the sums of the products of neighbouring numbers of 16 bits, as numbers of 32 bits; one instruction on x86."""
    count, index = one.type.count, ir.IntType(32)
    wide = ir.VectorType(index, count)
    products = builder.mul(builder.sext(one, wide), builder.sext(other, wide))
    even, odd = (
        ir.Constant(ir.VectorType(index, count // 2), [index(i) for i in range(first, count, 2)]) for first in range(2)
    )
    undefined = ir.Constant(wide, ir.Undefined)
    return builder.add(builder.shuffle_vector(products, undefined, even), builder.shuffle_vector(products, undefined, odd))


def _store_block(builder, vectors, column, levels, out, masks):
    """Store vectors of WORDS numbers, one for each of POINTS points, and the bits of those above the level of their point."""
    long, lanes = ir.IntType(64), vectors[0].type
    mask_address = builder.bitcast(masks.data, ir.IntType(WORDS).as_pointer())
    for p, vector in enumerate(vectors):
        at = builder.add(builder.mul(long(p), builder.extract_value(out.shape, 1)), column)
        builder.store(vector, builder.bitcast(builder.gep(out.data, [at]), lanes.as_pointer()), align=4)
        level = _spread(builder, builder.load(builder.gep(levels.data, [long(p)])), lanes)
        mask = builder.bitcast(builder.fcmp_ordered(">", vector, level), ir.IntType(WORDS))
        builder.store(mask, builder.gep(mask_address, [long(p)]))


@instruction(lambda words, position, word: _pack(words[position + i] == word for i in range(LANES)))
def equal_lanes(typing_context, words, position, word):
    """Compare LANES words from a position on with one: bit i is set if word i is equal. As `near_lanes`."""
    if not isinstance(words, types.Array) or words.dtype not in (types.uint16, types.uint32, types.uint64):
        return None

    def generate(context, builder, call, arguments):
        element = ir.IntType(call.args[0].dtype.bitwidth)
        lanes = ir.VectorType(element, LANES)
        loaded = _load(context, builder, call.args[0], arguments[0], arguments[1], lanes)
        wanted = _spread(builder, builder.trunc(arguments[2], element), lanes)
        return builder.bitcast(builder.icmp_unsigned("==", loaded, wanted), ir.IntType(64))

    return types.uint64(words, types.int64, types.int64), generate


@instruction(lambda array, position: None)
def prefetch(typing_context, array, position):
    """Start loading the cache line of an element before it is needed. Any position is harmless."""
    if not isinstance(array, types.Array):
        return None

    def generate(context, builder, call, arguments):
        data = context.make_array(call.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, number(0), number(3), number(1)])  # to read, soon, data
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@instruction(lambda array, first, last: None)
def will_need(typing_context, array, first, last):
    """Have the system read elements first .. last of a mapped array from the disk, without waiting for it.

    Nothing happens to arrays in memory, nor where a system has no `madvise`.
    """
    if not isinstance(array, types.Array) or array.ndim != 1 or array.layout != "C":
        return None

    def generate(context, builder, call, arguments):
        if hasattr(mmap, "MADV_WILLNEED"):
            word, number, pointer = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
            data = context.make_array(call.args[0])(context, builder, arguments[0]).data
            begin, end = (builder.ptrtoint(builder.gep(data, [at]), word) for at in arguments[1:])
            begin = builder.and_(begin, word(-mmap.PAGESIZE))  # it takes whole pages
            kind = ir.FunctionType(number, [pointer, word, number])
            advise = cgutils.get_or_insert_function(builder.module, kind, "madvise")
            builder.call(advise, [builder.inttoptr(begin, pointer), builder.sub(end, begin), number(mmap.MADV_WILLNEED)])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


def _is_byte_table(values):
    return isinstance(values, types.Array) and values.dtype == types.uint8 and values.ndim == 2 and values.layout == "C"


def _chosen_pairs(context, builder, array_type, array, row, first, chosen):
    """Return the sums of neighbouring bytes of a row, from column `first` on, as LANES / 2 numbers of 16 bits.

    Bytes whose bits are not set count 0.
    """
    values = context.make_array(array_type)(context, builder, array)
    start = builder.add(builder.mul(row, builder.extract_value(values.shape, 1)), row.type(first))
    lanes, wide = ir.VectorType(ir.IntType(8), LANES), ir.VectorType(ir.IntType(16), LANES // 2)
    loaded = builder.load(builder.bitcast(builder.gep(values.data, [start]), lanes.as_pointer()), align=1)
    bits = builder.bitcast(chosen, ir.VectorType(ir.IntType(1), LANES))
    kept = builder.bitcast(builder.select(bits, loaded, ir.Constant(lanes, [0] * LANES)), wide)
    low = builder.and_(kept, ir.Constant(wide, [255] * (LANES // 2)))
    return builder.add(low, builder.lshr(kept, ir.Constant(wide, [8] * (LANES // 2))))


def _sum_pairs(builder, pairs):
    """Return the sum of LANES / 2 numbers of 16 bits."""
    wide = ir.VectorType(ir.IntType(32), LANES // 4)
    values = builder.bitcast(pairs, wide)
    low = builder.and_(values, ir.Constant(wide, [65535] * (LANES // 4)))
    sums = builder.add(low, builder.lshr(values, ir.Constant(wide, [16] * (LANES // 4))))
    kind = ir.FunctionType(ir.IntType(32), [wide])
    add = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.add.v{LANES // 4}i32")
    return builder.zext(builder.call(add, [sums]), ir.IntType(64))


def _spread(builder, value, lanes):
    """Return a vector with a value in every lane."""
    index = ir.IntType(32)
    undefined = ir.Constant(lanes, ir.Undefined)
    first_lane = ir.Constant(ir.VectorType(index, lanes.count), [ir.Constant(index, 0)] * lanes.count)
    return builder.shuffle_vector(builder.insert_element(undefined, value, index(0)), undefined, first_lane)


def _load_row(context, builder, array_type, array, row, first, lanes):
    """Load LANES elements of a row of a table from a column on; rows are contiguous."""
    table = context.make_array(array_type)(context, builder, array)
    start = builder.ptrtoint(table.data, ir.IntType(64))
    start = builder.add(start, builder.mul(row, builder.extract_value(table.strides, 0)))
    start = builder.add(start, builder.mul(first, builder.extract_value(table.strides, 1)))
    return builder.load(builder.inttoptr(start, lanes.as_pointer()), align=array_type.dtype.bitwidth // 8)


def _load(context, builder, array_type, array, position, lanes):
    """Load LANES elements of an array from a position on."""
    data = context.make_array(array_type)(context, builder, array).data
    first = builder.bitcast(builder.gep(data, [position]), lanes.as_pointer())
    return builder.load(first, align=array_type.dtype.bitwidth // 8)


def _distances(context, builder, array_type, array, position, signature):
    """Return the Hamming distances of LANES signatures from a position on to one."""
    lanes = ir.VectorType(ir.IntType(64), LANES)
    loaded = _load(context, builder, array_type, array, position, lanes)
    differing = builder.xor(loaded, _spread(builder, signature, lanes))
    count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(lanes, [lanes]), f"llvm.ctpop.v{LANES}i64")
    return builder.call(count, [differing])
