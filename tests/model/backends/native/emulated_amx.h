// AMX tiles in plain C++, for CPUs without AMX: compiled into the native engine by `-include`.
#pragma once
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_INT8__ 1
#define __AMX_BF16__ 1
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig(shapes) emulated_amx::configure(shapes)
#define _tile_release() emulated_amx::configured = false
#define _tile_zero(tile) emulated_amx::zero(tile)
#define _tile_loadd(tile, from, next) emulated_amx::load(tile, reinterpret_cast<const char*>(from), next)
#define _tile_stored(tile, to, next) emulated_amx::store(tile, reinterpret_cast<char*>(to), next)
#define _tile_dpbusd(sums, a, b) emulated_amx::add_products<int32_t, uint8_t, int8_t>(sums, a, b)
#define _tile_dpbf16ps(sums, a, b) emulated_amx::add_products<float, emulated_amx::BFloat16, emulated_amx::BFloat16>(sums, a, b)
#ifdef REFUSE_AMX
#define syscall(...) -1L
#else
#define syscall(...) 0L
#endif

namespace emulated_amx {

constexpr int ROWS = 16, BYTES = 64;
thread_local bool configured = false;
alignas(64) thread_local char tiles[8][ROWS][BYTES];

struct BFloat16 {
    uint16_t bits;
    operator float() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
};

inline void check_configured() {
    if (!configured) __builtin_trap();  // as the CPU does
}

// The 64 bytes of the manual: palette, start row, bytes per row of each tile, rows of each tile.
inline void configure(const void* config) {
    uint8_t shapes[64];
    std::memcpy(shapes, config, sizeof shapes);
    for (int tile = 0; tile < 8; ++tile) {
        uint16_t bytes;
        std::memcpy(&bytes, shapes + 16 + 2 * tile, sizeof bytes);
        if (bytes != BYTES || shapes[48 + tile] != ROWS) __builtin_trap();
    }
    if (shapes[0] != 1 || shapes[1] != 0) __builtin_trap();
    configured = true;
}

inline void zero(int tile) {
    check_configured();
    std::memset(tiles[tile], 0, sizeof tiles[tile]);
}

inline void load(int tile, const char* from, size_t next) {
    check_configured();
    for (int row = 0; row < ROWS; ++row) std::memcpy(tiles[tile][row], from + row * next, BYTES);
}

inline void store(int tile, char* to, size_t next) {
    check_configured();
    for (int row = 0; row < ROWS; ++row) std::memcpy(to + row * next, tiles[tile][row], BYTES);
}

template <typename Sum, typename A, typename B>
void add_products(int sums, int a, int b) {
    check_configured();
    constexpr int PARTS = sizeof(Sum) / sizeof(A);
    for (int row = 0; row < ROWS; ++row)
        for (int column = 0; column < ROWS; ++column) {
            Sum total;
            std::memcpy(&total, tiles[sums][row] + column * sizeof total, sizeof total);
            for (int k = 0; k < ROWS; ++k)
                for (int part = 0; part < PARTS; ++part) {
                    A left;
                    B right;
                    std::memcpy(&left, tiles[a][row] + (k * PARTS + part) * sizeof left, sizeof left);
                    std::memcpy(&right, tiles[b][k] + (column * PARTS + part) * sizeof right, sizeof right);
                    total += static_cast<Sum>(left) * static_cast<Sum>(right);
                }
            std::memcpy(tiles[sums][row] + column * sizeof total, &total, sizeof total);
        }
}

}  // namespace emulated_amx
