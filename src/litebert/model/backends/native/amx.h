// Blocks of matrix products by AMX, Intel's tile instructions.
#pragma once

#include "layout.h"

#if defined(USE_AMX)

#define ALWAYS_INLINE __attribute__((always_inline)) inline  // a call makes it a fifth slower

namespace {

// The argument of _tile_loadconfig: 8 tiles of 16 rows of 64 bytes. Tiles 0 to 3 accumulate two blocks of rows by two
// of columns; 4 and 5 hold rows, 6 and 7 columns.
struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr int TILE_BYTES = 4 * TILE * TILE;
enum class WordType { INT8, BF16 };  // four bytes, unsigned in rows and signed in columns, or two bfloat16

#define ADD_TILE_PRODUCT(sums, a, b)     \
    if constexpr (TYPE == WordType::INT8) \
        _tile_dpbusd(sums, a, b);        \
    else                                 \
        _tile_dpbf16ps(sums, a, b)

// (32, 32) = (32, 16 * steps) @ (16 * steps, 32) in words, or only its upper 16 rows. The strides, in bytes, lead to
// the next 16 rows, the next 16 columns and the next row of the output. `overlapped(step)` runs while tiles are
// multiplied.
template <WordType TYPE, bool TWO_ROW_TILES, typename Overlapped>
ALWAYS_INLINE void multiply_tiles(
    const char* a, size_t a_stride, const char* b, size_t b_stride, int steps, char* out, size_t out_stride,
    Overlapped overlapped
) {
    __asm__ volatile("" ::: "memory");  // earlier stores are done
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int step = 0; step < steps; ++step, a += TILE_BYTES, b += TILE_BYTES) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        ADD_TILE_PRODUCT(0, 4, 6);
        _tile_loadd(7, b + b_stride, 64);
        ADD_TILE_PRODUCT(1, 4, 7);
        if constexpr (TWO_ROW_TILES) {
            _tile_loadd(5, a + a_stride, 64);
            ADD_TILE_PRODUCT(2, 5, 6);
            ADD_TILE_PRODUCT(3, 5, 7);
        }
        overlapped(step);
    }
    _tile_stored(0, out, out_stride);
    _tile_stored(1, out + 64, out_stride);
    if constexpr (TWO_ROW_TILES) {
        _tile_stored(2, out + 16 * out_stride, out_stride);
        _tile_stored(3, out + 16 * out_stride + 64, out_stride);
    }
}
#undef ADD_TILE_PRODUCT

// (rows, 32) from rows and columns of `words` words each, of which the first `depth` are multiplied.
template <WordType TYPE, typename Overlapped>
ALWAYS_INLINE void multiply_tile_block(
    const void* a, const void* b, int words, int depth, void* out, int out_words, int rows, Overlapped overlapped
) {
    const char *row_tiles = static_cast<const char*>(a), *column_tiles = static_cast<const char*>(b);
    const size_t stride = 4 * TILE * static_cast<size_t>(words), out_stride = 4 * static_cast<size_t>(out_words);
    char* const to = static_cast<char*>(out);
    if (rows > TILE)
        multiply_tiles<TYPE, true>(row_tiles, stride, column_tiles, stride, depth / TILE, to, out_stride, overlapped);
    else
        multiply_tiles<TYPE, false>(row_tiles, stride, column_tiles, stride, depth / TILE, to, out_stride, overlapped);
}

}  // namespace

#endif
