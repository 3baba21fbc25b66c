// int8 matrix products: quantized rows times a quantized weight, to float32 or the number format of attention.
#pragma once

#include <cstring>

#include "amx.h"
#include "elements.h"
#include "quantize.h"
#include "structs.h"

namespace {

// Where x @ weight + bias (+ residual) goes. `data` is the address of row `first_row`, column `first_column`.
template <typename Out>
struct MatmulOutput {
    Out* data;
    int stride;
    const float* residual = nullptr;
    int first_row = 0, first_column = 0;
};

// Scales the int32 sums of one quantization group, `sums(r, v)`, and adds them to the output: `rows` rows from `row`
// and V vectors of columns from `column`. The first group also adds bias and residual.
template <int V, typename Out, typename Sums>
inline void dequantize_and_store(
    const QuantizedLinear& linear, int column, int group, const QuantizedRows& x, int row, int rows,
    const MatmulOutput<Out>& output, Sums sums
) {
    Floats scale[V], column_sums[V], bias[V];
    for (int v = 0; v < V; ++v) {
        scale[v] = load(linear.scale + column + v * LANES), bias[v] = load(linear.bias + column + v * LANES);
        column_sums[v] = load(linear.column_sums + group * linear.columns + column + v * LANES);
    }
    const float *row_scale = x.scale + row * x.groups + group, *row_zero = x.zero_point + row * x.groups + group;
    const size_t offset = static_cast<size_t>(row - output.first_row) * output.stride + column - output.first_column;
    Out* out = output.data + offset;
    const float* residual = output.residual && !group ? output.residual + offset : nullptr;
    for (int r = 0; r < rows; ++r, row_scale += x.groups, row_zero += x.groups, out += output.stride) {
        const Floats activation_scale = broadcast(*row_scale), correction = broadcast(DOT4_OFFSET - *row_zero);
        for (int v = 0; v < V; ++v) {
            Floats total = bias[v];
            if constexpr (sizeof(Out) == sizeof(float)) {  // products of several groups are float32
                if (group) total = load(out + v * LANES);
                if (residual) total += load(residual + v * LANES);
            }
            const Floats sum =
                fused_multiply_add(__builtin_convertvector(sums(r, v), Floats), column_sums[v], correction);
            store(out + v * LANES, fused_multiply_add(total, sum, scale[v] * activation_scale));
        }
        if (residual) residual += output.stride;
    }
}

// Rows first_row to last_row times the panels first_panel to last_panel.
#if defined(USE_AMX)
// While tiles are multiplied, the sums of the previous block are dequantized and the next weights are prefetched.
template <typename Out>
void int8_matmul(
    const QuantizedLinear& linear, int first_panel, int last_panel, const QuantizedRows& x, int first_row, int last_row,
    const MatmulOutput<Out>& output
) {
    constexpr int BLOCK_COLUMNS = 2 * TILE, CACHE_LINE = 64;
    struct Block {
        int column = 0, group = 0, row = 0, rows = 0;
    } previous;
    const int group_depth = linear.depth / linear.groups, words = linear.depth / 4, steps = group_depth / 4 / TILE;
    const int rows_per_step = (KERNEL_ROWS + steps - 1) / steps;
    const int row_blocks = (last_row - first_row + KERNEL_ROWS - 1) / KERNEL_ROWS;
    const int lines_per_step = (group_depth * TILE / CACHE_LINE + row_blocks * steps - 1) / (row_blocks * steps);
    alignas(64) int32_t sums[2][KERNEL_ROWS * BLOCK_COLUMNS];
    const int8_t* next_weights = linear.weight;
    int current = 0;
    const auto overlapped = [&](int step) {
        for (int line = 0; line < lines_per_step; ++line, next_weights += CACHE_LINE) {
            __builtin_prefetch(next_weights, 0, 2);
            __builtin_prefetch(next_weights + TILE * linear.depth, 0, 2);
        }
        const int from = step * rows_per_step, to = std::min(previous.rows, from + rows_per_step);
        const int32_t* block = sums[1 - current] + from * BLOCK_COLUMNS;
        dequantize_and_store<BLOCK_COLUMNS / LANES>(
            linear, previous.column, previous.group, x, previous.row + from, to - from, output,
            [=](int r, int v) { return *reinterpret_cast<const Ints*>(block + r * BLOCK_COLUMNS + v * LANES); }
        );
    };
    for (int column = first_panel * PANEL; column < last_panel * PANEL; column += BLOCK_COLUMNS)
        for (int group = 0; group < linear.groups; ++group) {
            const int8_t* weights = linear.weight + 4 * column_offset(column, group * group_depth / 4, words, 0);
            next_weights = group + 1 < linear.groups
                               ? weights + group_depth * TILE
                               : linear.weight + 4 * column_offset(column + BLOCK_COLUMNS, 0, words, 0);
            for (int row = first_row; row < last_row; row += KERNEL_ROWS, current = 1 - current) {
                const int rows = std::min(KERNEL_ROWS, last_row - row);
                multiply_tile_block<WordType::INT8>(
                    x.address(row, group * group_depth), weights, words, group_depth / 4, sums[current], BLOCK_COLUMNS,
                    rows, overlapped
                );
                previous = {column, group, row, rows};
            }
        }
    for (int step = 0; step < steps; ++step) overlapped(step);
}
#else
// R rows times one panel, within one quantization group.
template <int R, typename Out>
void int8_kernel(
    const QuantizedLinear& linear, int column, int group, const QuantizedRows& x, int row,
    const MatmulOutput<Out>& output
) {
    const int group_depth = linear.depth / linear.groups;
    const int8_t* weights =
        linear.weight + static_cast<size_t>(column) * linear.depth + group * group_depth * PANEL;
    const uint8_t* rows = x.values + static_cast<size_t>(row) * x.width + group * group_depth;
    Ints sums[R][PANEL_VECTORS] = {};
    for (int k = 0; k < group_depth / 4; ++k) {
        Ints panel[PANEL_VECTORS];
        for (int v = 0; v < PANEL_VECTORS; ++v)
            panel[v] = *reinterpret_cast<const Ints*>(weights + (k * PANEL_VECTORS + v) * 4 * LANES);
        for (int r = 0; r < R; ++r) {
            int32_t word;
            std::memcpy(&word, rows + r * x.width + 4 * k, 4);
            const Ints row_word = Ints{} + word;
            for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][v] = dot4(sums[r][v], row_word, panel[v]);
        }
    }
    dequantize_and_store<PANEL_VECTORS>(
        linear, column, group, x, row, R, output, [&](int r, int v) { return sums[r][v]; }
    );
}

template <typename Out>
void int8_matmul(
    const QuantizedLinear& linear, int first_panel, int last_panel, const QuantizedRows& x, int first_row, int last_row,
    const MatmulOutput<Out>& output
) {
    static constexpr void (*KERNELS[])(
        const QuantizedLinear&, int, int, const QuantizedRows&, int, const MatmulOutput<Out>&
    ) = {nullptr, int8_kernel<1, Out>, int8_kernel<2, Out>, int8_kernel<3, Out>, int8_kernel<4, Out>,
         int8_kernel<5, Out>, int8_kernel<6, Out>};
    for (int panel = first_panel; panel < last_panel; ++panel)
        for (int row = first_row; row < last_row; row += KERNEL_ROWS)
            for (int group = 0; group < linear.groups; ++group)
                KERNELS[std::min(KERNEL_ROWS, last_row - row)](linear, panel * PANEL, group, x, row, output);
}
#endif

}  // namespace
