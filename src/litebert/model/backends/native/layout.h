// Where the numbers of matrices lie in memory.
//
// A word is 32 bits that are multiplied at once: four int8 values or two bfloat16. Without AMX, rows lie one after the
// other and columns in panels. With AMX, both lie in tiles of 16 rows, or columns, by 16 words.
#pragma once

#include <cstddef>

#include "simd.h"

namespace {

constexpr int PANEL = LANES * PANEL_VECTORS;  // columns of a weight that are multiplied together
#if defined(USE_AMX)
constexpr int ROW_BLOCK = 5 * KERNEL_ROWS;  // rows that one task multiplies by a panel
#else
constexpr int ROW_BLOCK = 8 * KERNEL_ROWS;
#endif

inline int padded_to_panels(int width) { return (width + PANEL - 1) / PANEL * PANEL; }

// row_offset, column_offset: where a word lies, counted in words, in a matrix of so many words per row, or column.
#if defined(USE_AMX)
constexpr int TILE = 16, TILE_ROWS = TILE, TILE_COLUMNS = TILE, TILE_WORDS = TILE;
inline size_t tile_offset(int row_or_column, int word, int words) {
    return (static_cast<size_t>(row_or_column / TILE) * (words / TILE) + word / TILE) * TILE * TILE;
}
inline size_t row_offset(int row, int word, int words) {
    return tile_offset(row, word, words) + row % TILE * TILE + word % TILE;
}
inline size_t column_offset(int column, int word, int words, int) {
    return tile_offset(column, word, words) + word % TILE * TILE + column % TILE;
}
#else
constexpr int TILE_ROWS = 1, TILE_COLUMNS = PANEL, TILE_WORDS = 1;
inline size_t row_offset(int row, int word, int words) { return static_cast<size_t>(row) * words + word; }
inline size_t column_offset(int column, int word, int, int columns) {
    return static_cast<size_t>(word) * columns + column;
}
#endif

}  // namespace
