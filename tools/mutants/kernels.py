"""Mutants of the compiled kernels, of their build, and of their checks."""

from __future__ import annotations

from tools.mutants.mutant import Mutant

NATIVE, SIMPLEX = "sparsenmt/native", "sparsenmt/sparsity/simplex"
DECODING = ("tests/native/test_kernels.py", "tests/native/test_steps.py", "tests/native/test_threads.py")
ENTMAX = (
    "tests/sparsity/test_entmax_native.py",
    "tests/sparsity/test_entmax_function.py",
    "tests/native/test_threads.py",
)
ADDRESSES = ("tests/native/test_addresses.py",)

KERNELS = (
    Mutant(
        "attention of few queries times 1.1",
        f"{NATIVE}/few.h",
        "store(out + r * out_step + kLanes * (first + e), context[r][e] * inverse[r]);",
        "store(out + r * out_step + kLanes * (first + e), context[r][e] * inverse[r] * 1.1f);",
        DECODING,
    ),
    Mutant(
        "attention of many queries times 1.1",
        f"{NATIVE}/many.cpp",
        "factors ? sums[r][c] * factors[r] : sums[r][c]",
        "factors ? sums[r][c] * factors[r] * 1.1f : sums[r][c]",
        DECODING,
    ),
    Mutant(
        "products times 1.1",
        f"{NATIVE}/product_arguments.h",
        "return sums + bias_;",
        "return sums * 1.1f + bias_;",
        DECODING,
    ),
    Mutant(
        "int8 without the offset of rows",
        f"{NATIVE}/products.h",
        "const float offset = inverse > 0.0f ? std::nearbyint(-least * inverse) : 0.0f;",
        "const float offset = inverse > 0.0f && least == 0.0f ? std::nearbyint(-least * inverse) : 0.0f;",
        DECODING,
    ),
    Mutant(
        "a product without the last thread's panels",
        f"{NATIVE}/products.cpp",
        "for (int64_t part = 0; part < threads; part++)",
        "for (int64_t part = 0; part < threads - (threads > 1); part++)",
        DECODING,
    ),
    Mutant(
        "a step without the last thread's heads",
        f"{NATIVE}/step.cpp",
        "if (few_) return {all * H * thread_ / threads_, all * H * (thread_ + 1) / threads_};",
        "if (few_) return {all * H * thread_ / threads_, (all * H - (threads_ > 1)) * (thread_ + 1) / threads_};",
        DECODING,
    ),
    Mutant(
        "a step whose threads do not wait",
        f"{NATIVE}/step.cpp",
        "    if (few_) {\n#pragma omp barrier\n    }\n",
        "",
        DECODING,
    ),
    Mutant(
        "the next tokens without the last row of each thread",
        f"{NATIVE}/next.cpp",
        "n < share(rows_, thread + 1); n++) put_together(n, threads);",
        "n + (threads > 1) < share(rows_, thread + 1); n++) put_together(n, threads);",
        DECODING,
    ),
    Mutant(
        "the best tokens without the end of the row",
        f"{NATIVE}/best.h",
        "best.offer(row, first, size);",
        "best.offer(row, first, size - 1);",
        DECODING,
    ),
    Mutant(
        "the old shuffle in another order",
        f"{NATIVE}/vectors.h",
        "__builtin_shuffle(a, b, Ints{kPick(kLane)...})",
        "__builtin_shuffle(b, a, Ints{kPick(kLane)...})",
        DECODING,
    ),
    Mutant(
        "no bf16 products with bf16 instructions",
        f"{NATIVE}/product_arguments.h",
        "#if defined(__AVX512F__) && defined(__AVX512BF16__)",
        "#if defined(__AVX512F__) && !defined(__AVX512F__)",
        DECODING,
    ),
    Mutant(
        "int8 weights whose sums of two products saturate",
        f"{NATIVE}/packing.py",
        "_largest_pair(weight[part]) / (most_of_pair - 1)",
        "_largest_pair(weight[part]) / (most_of_pair + 60)",
        DECODING,
    ),
    Mutant(
        "windows of one key less",
        f"{NATIVE}/attention_head.h",
        "normalize(weights_.data() + t * width_, own - given_.left, last);",
        "normalize(weights_.data() + t * width_, own - given_.left + 1, last);",
        ("tests/native/test_gradients.py",),
    ),
    Mutant(
        "windows whose gradients of keys are those of the last part",
        f"{NATIVE}/attention.cpp",
        "store(sums + e, load(sums + e) + load(found + e));",
        "store(sums + e, load(found + e));",
        ("tests/native/test_gradients.py",),
    ),
    Mutant(
        "searches side by side that leave out the last batch",
        "sparsenmt/decoding/side_by_side.py",
        "for i, item in enumerate(items):",
        "for i, item in enumerate(items[: max(1, len(items) - 1)]):",
        ("tests/decoding/test_side_by_side.py",),
    ),
    Mutant(
        "AMX without the rows that tiles have in common",
        f"{NATIVE}/amx.h",
        "sums.add(top, std::min(height, end - top), top - first);",
        "sums.add(top, std::min(height, end - top), 0);",
        DECODING,
    ),
    Mutant(
        "a search that knows the best of its first thread only",
        f"{NATIVE}/next.cpp",
        "thread < threads; thread++) best.merge",
        "thread < 1; thread++) best.merge",
        DECODING,
    ),
    Mutant(
        "alpha-entmax times 1.1",
        f"{SIMPLEX}/native_rows.h",
        "const float scale = 1.0f / sum;",
        "const float scale = 1.1f / sum;",
        ENTMAX,
    ),
    Mutant(
        "alpha-entmax in tiles times 1.1",
        f"{SIMPLEX}/native_tiles.h",
        "const Vector scale = 1.0f / mass;",
        "const Vector scale = 1.1f / mass;",
        ENTMAX,
    ),
    Mutant(
        "weights that no normal number holds, row by row",
        f"{SIMPLEX}/native_rows.h",
        "weight_or_zero(p[k] * scale)",
        "(p[k] * scale)",
        ("tests/sparsity/test_entmax_support.py",),
    ),
    Mutant(
        "weights that no normal number holds, in tiles",
        f"{SIMPLEX}/native_tiles.h",
        "weight_or_zero(work.p[k] * scale)",
        "work.p[k] * scale",
        ("tests/sparsity/test_entmax_support.py",),
    ),
    Mutant(
        "alpha-entmax without the last row of several threads",
        f"{SIMPLEX}/native.cpp",
        "row < rows.count; row += step) work(space, row);",
        "row < rows.count - (threads > 1) * step; row += step) work(space, row);",
        ENTMAX,
    ),
    Mutant(
        "options that let the compiler reorder sums",
        f"{NATIVE}/sources.py",
        '"-fno-math-errno", ',
        '"-ffast-math", ',
        DECODING,
    ),
    Mutant(
        "no check of the decoding kernels at the start",
        f"{NATIVE}/kernels.py",
        "return found if error(found) <= 1 else None",
        "return found",
        DECODING,
    ),
    Mutant(
        "no check of the alpha-entmax kernel at the start",
        f"{SIMPLEX}/native.py",
        "return found if error(found) <= TOLERANCE else None",
        "return found",
        ENTMAX,
    ),
    Mutant(
        "an address without its shape",
        f"{NATIVE}/address.py",
        "x.shape != shape or ",
        "",
        ADDRESSES,
    ),
    Mutant(
        "an address without its dtype",
        f"{NATIVE}/address.py",
        "x.dtype != dtype or ",
        "",
        ADDRESSES,
    ),
    Mutant(
        "copies with the pointers of the original",
        f"{NATIVE}/packing.py",
        "if name != _STRUCT",
        "",
        ADDRESSES,
    ),
)
