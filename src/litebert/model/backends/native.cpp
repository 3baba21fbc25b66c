// Passes of an ALBERT in eight bits, all of them in one call: what native.py compiles for the CPU at hand.
//
// A weight is a whole number from -127 to 127 times a scale of its row. What goes into a product is one from 0 to 255,
// less a zero point, times a scale, both of its own row of tokens (and of a group of columns where there are many), so
// that no text depends on another and nothing has to be known before. Between the products everything is float32.
// Widths are padded to panels of columns; padded weights are 0, so what stands beside them counts for nothing.
//
// Threads are torch's own. They take tasks from a counter and meet between the stages of a pass.
//
// Shapes: T tokens in rows, H hidden, W intermediate, N heads of D channels, L tokens of one sequence.

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif
#include <sched.h>
#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(NARROW)
#define LANES_ 16
#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && !defined(NO_TILES)
#define TILES_
constexpr int LANES = 16, VECTORS = 4, ROWS = 32;  // four tiles, two above the others, add up
#else
constexpr int LANES = 16, VECTORS = 4, ROWS = 6;  // 24 of 32 registers add up
#endif
#elif defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define LANES_ 8
constexpr int LANES = 8, VECTORS = 2, ROWS = 6;  // 12 of 16
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES_ 8
constexpr int LANES = 8, VECTORS = 2, ROWS = 4;  // 8 of 16; weights and rows, each in two halves, take 6
#elif defined(__ARM_FEATURE_DOTPROD)
#define LANES_ 4
constexpr int LANES = 4, VECTORS = 4, ROWS = 6;  // 24 of 32
#else
#error "this CPU has no instructions for it (AVX2 or better, or ARM's dot products)"
#endif
constexpr int PANEL = LANES * VECTORS;
#if defined(TILES_)
constexpr int ROW_BLOCK = 5 * ROWS;  // rows that one task takes through a panel of weights
#else
constexpr int ROW_BLOCK = 8 * ROWS;
#endif
constexpr int AT_ONCE = 384;         // tokens whose activations stay in the cache for all passes
constexpr int CHUNK = 4;             // rows that a thread asks for at once, where little is done with each
constexpr int SPINS = 2000;
constexpr int RUNS = 4;  // of panels that a thread takes one after the other

typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline void store(float* to, Floats values) { *reinterpret_cast<Floats*>(to) = values; }
inline Floats all(float value) { return Floats{} + value; }
#if LANES_ == 16
constexpr Ints NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif LANES_ == 8
constexpr Ints NUMBERS = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr Ints NUMBERS = {0, 1, 2, 3};
#endif

// `dot4`: four bytes of a row of tokens, times four of each of LANES rows of weights, added to `sums`. Where a CPU can
// only multiply signed bytes, a row counts as SHIFT less than it is.
#if LANES_ == 16
constexpr float SHIFT = 0;
inline Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
inline Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
inline Floats about_inverse(Floats x) { return (Floats)_mm512_rcp14_ps((__m512)x); }
inline void pause() { _mm_pause(); }
inline Ints dot4(Ints sums, Ints row, Ints weights) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)row, (__m512i)weights);
}
#elif LANES_ == 8
constexpr float SHIFT = 0;
inline Floats larger(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
inline Floats smaller(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
inline Floats about_inverse(Floats x) { return (Floats)_mm256_rcp_ps((__m256)x); }
inline void pause() { _mm_pause(); }
inline Ints dot4(Ints sums, Ints row, Ints weights) {
#if defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)row, (__m256i)weights);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (Ints)_mm256_dpbusd_epi32((__m256i)sums, (__m256i)row, (__m256i)weights);
#else
    // Bytes 0 and 2, then 1 and 3, as numbers of 16 bits: what multiplies bytes directly adds pairs in 16 and overflows.
    const __m256i rows = (__m256i)row, four = (__m256i)weights;
    const __m256i even = _mm256_madd_epi16(
        _mm256_and_si256(rows, _mm256_set1_epi16(0xff)), _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8)
    );
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(rows, 8), _mm256_srai_epi16(four, 8));
    return sums + (Ints)_mm256_add_epi32(even, odd);
#endif
}
#else
constexpr float SHIFT = 128;
inline Floats larger(Floats a, Floats b) { return (Floats)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b); }
inline Floats smaller(Floats a, Floats b) { return (Floats)vminnmq_f32((float32x4_t)a, (float32x4_t)b); }
inline void pause() { __asm__ volatile("yield"); }
inline Ints dot4(Ints sums, Ints row, Ints weights) {
    const uint8x16_t less = veorq_u8((uint8x16_t)row, vdupq_n_u8(0x80));
    return (Ints)vdotq_s32((int32x4_t)sums, (int8x16_t)less, (int8x16_t)weights);
}
#endif

#if LANES_ == 16
inline Floats nearest(Floats x) { return (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats times_power_of_2(Floats x, Floats power) { return (Floats)_mm512_scalef_ps((__m512)x, (__m512)power); }
#else
constexpr float WHOLE_BEHIND = 12582912.0f;  // numbers as large have nothing behind the point
inline Floats nearest(Floats x) { return x + WHOLE_BEHIND - WHOLE_BEHIND; }
inline Floats times_power_of_2(Floats x, Floats power) {
    return (Floats)((Ints)x + ((Ints)(power + WHOLE_BEHIND) << 23));
}
#endif

// sum + a * b, rounded once: what the compiler makes of the formula differs from place to place.
inline Floats plus_product(Floats sum, Floats a, Floats b) {
#if LANES_ == 16
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif LANES_ == 8
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#endif
}

#if LANES_ == 4
inline Floats inverse(Floats x) { return 1.0f / x; }
#else
// One step of Newton's makes it as exact as a division, and it is several times as fast.
inline Floats inverse(Floats x) {
    const Floats near = about_inverse(x);
    return near * (2.0f - x * near);
}
#endif

// Of all lanes: halves on halves, a tenth of the time of one after the other.
#if LANES_ == 4
inline float sum(Floats values) { return vaddvq_f32((float32x4_t)values); }
inline float largest(Floats values) { return vmaxnmvq_f32((float32x4_t)values); }
#else
#define HALVED(OF)                                                               \
    OF(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));            \
    four = OF(four, _mm_movehl_ps(four, four));                                  \
    return _mm_cvtss_f32(OF(four, _mm_shuffle_ps(four, four, 1)))
#if LANES_ == 16
inline float sum(Floats values) { return _mm512_reduce_add_ps((__m512)values); }
inline float largest(Floats values) { return _mm512_reduce_max_ps((__m512)values); }
#else
inline float sum(Floats values) {
    const __m256 half = (__m256)values;
    __m128 four = HALVED(_mm_add_ps);
}
inline float largest(Floats values) {
    const __m256 half = (__m256)values;
    __m128 four = HALVED(_mm_max_ps);
}
#endif
#undef HALVED
#endif
inline float least(Floats values) { return -largest(-values); }

// 2 to the power of x, 3e-6 off at the most. What is smaller than a normal number would take a hundred times as long.
inline Floats exp2_of(Floats x) {
    x = larger(x, all(-125.0f));
    const Floats power = nearest(x), rest = x - power;
    Floats y = rest * 9.5701003e-3f + 5.5917859e-2f;
    y = y * rest + 2.4024744e-1f;
    y = y * rest + 6.9312179e-1f;
    y = y * rest + 9.9999928e-1f;
    return times_power_of_2(y, power);
}
constexpr float LOG2_E = 1.44269504f;

enum Activation { GELU, GELU_TANH, RELU, SILU };

// Abramowitz and Stegun 7.1.26, 1.5e-7 off at the most.
inline Floats erf_of(Floats x) {
    const Floats size = larger(x, -x);
    const Floats t = inverse(size * 0.3275911f + 1.0f);
    Floats y = t * 1.061405429f - 1.453152027f;
    y = y * t + 1.421413741f;
    y = y * t - 0.284496736f;
    y = y * t + 0.254829592f;
    y = 1.0f - y * t * exp2_of(size * size * -LOG2_E);
    return x < 0.0f ? -y : y;
}

inline Floats bent(Floats x, int activation) {
    switch (activation) {
        case GELU:
            return x * 0.5f * (erf_of(x * 0.70710678f) + 1.0f);
        case GELU_TANH:
            return x * inverse(exp2_of(smaller((x * x * 0.044715f + 1.0f) * x * (-1.59576912f * LOG2_E), all(100.0f))) + 1.0f);
        case RELU:
            return larger(x, all(0.0f));
        default:
            return x * inverse(exp2_of(smaller(x * -LOG2_E, all(100.0f))) + 1.0f);
    }
}

template <int ACTIVATION>
void bend(float* values, int count) {
    for (int i = 0; i < count; i += 2 * LANES) {
        const Floats one = bent(load(values + i), ACTIVATION), other = bent(load(values + i + LANES), ACTIVATION);
        store(values + i, one), store(values + i + LANES, other);
    }
}
void bend(float* values, int count, int activation) {
    constexpr void (*BEND[])(float*, int) = {bend<GELU>, bend<GELU_TANH>, bend<RELU>, bend<SILU>};
    BEND[activation](values, count);
}

// Threads that work through the same stages.
struct Team {
    std::atomic<int> size, task{0}, waiting{0}, stage{0};

    // All of them wait for the last one here; then tasks are counted from 0 again.
    void meet() {
        const int now = stage.load(std::memory_order_acquire);
        if (waiting.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
            waiting.store(0, std::memory_order_relaxed);
            task.store(0, std::memory_order_relaxed);
            stage.store(now + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; stage.load(std::memory_order_acquire) == now; ++spins)
            if (spins < SPINS)
                pause();
            else
                sched_yield();
    }

    // Rows, some at a time: one is too little to be asked for.
    template <typename Work>
    void share_rows(int count, Work work) {
        share((count + CHUNK - 1) / CHUNK, [&](int chunk) {
            for (int row = chunk * CHUNK; row < std::min(count, (chunk + 1) * CHUNK); ++row) work(row);
        });
    }

    template <typename Work>
    void share(int count, Work work) {
        for (int number; (number = task.fetch_add(1, std::memory_order_relaxed)) < count;) work(number);
        meet();
    }
};

}  // namespace

extern "C" {

// A matrix, in tiles: (columns / TILE_COLUMNS, depth / 4 / TILE_UNITS, TILE_UNITS, TILE_COLUMNS, 4).
struct Product {
    const int8_t* weight;
    const float* scale;  // (columns,)
    const float* bias;   // (columns,)
    const float* sums;   // (groups, columns) of whole weights, by group of what goes in
    int32_t columns, depth, groups;
};

struct Norm {
    const float *weight, *bias;
};

// The columns of `qkv` are of some heads at a time: their queries, their keys, their values, each padded to whole panels.
struct AttentionHalf {
    Product qkv, out;
    Norm norm;
};

struct FeedForwardHalf {
    Product widen, narrow;
    Norm norm;
};

struct Network {
    const AttentionHalf* attention;
    const FeedForwardHalf* ffn;
    int32_t hidden, heads, bundle, activation;  // heads of a bundle are multiplied together
    float epsilon;
};

// A classifier that answers early: what it reads after some of the steps, and where its answers go.
struct Look {
    const float *pooler, *pooler_bias;  // (H, H), (H,)
    const float *head, *head_bias;      // (classes, H), (classes,)
    const int32_t* steps;               // (looks,) that are done when it looks, the last one all of them
    float* scores;                      // (sequences, classes)
    int32_t* stopped;                   // (sequences,) at which look, counted from 1; below 0 while it goes on
    int32_t classes, looks;
    float sure;
};

// What is read where no states are given: tokens, whose embeddings are added up, normalized and widened.
struct Words {
    const int64_t *ids, *kinds;                 // (T,), those of kinds 0 or 1 in most models
    const float *words, *segments, *positions;  // (words_known, E), (kinds_known, E), (longest or more, E)
    Norm norm;                                  // (E,)
    const float *weight, *bias;                 // (columns / PANEL, E, PANEL), (columns,)
    int32_t width, words_known, kinds_known;    // E first
};

// One vector of each sequence, where no states are wanted: the mean of its last states, and a linear map of it.
struct Vectors {
    const float* counts;         // (words_known,) how much a token counts in the mean, or none: all alike
    const float *weight, *bias;  // (size, H), (size,), or none
    float* found;                // (sequences, size)
    int32_t size;
};

struct Job {
    const float* given;     // (T, H), or none
    float* found;           // (T, H), or (R, H) for the wanted rows, or none
    const int32_t* starts;  // (sequences + 1,)
    const int32_t* blocks;  // (steps, 2): which attention and which ffn, one after the other
    const float* added;     // (steps, H) before each of them, or none
    const float* bias;      // (N, longest, longest) by column, or none
    const int64_t* rows;    // (wanted,), or none
    uint8_t* workspace;
    const Look* look;        // or none; nothing is found then, or added, or wanted
    const Words* words;      // or none
    const Vectors* vectors;  // or none; nothing is wanted then, and there are words
    int32_t sequences, steps, longest, wanted;
};

}  // extern "C"

namespace {

inline int padded(int width) { return (width + PANEL - 1) / PANEL * PANEL; }

// Where a unit, which is four bytes that are multiplied at once, lies among rows of so many, and among columns. For tiles
// 16 units of 16 rows, or columns, lie together.
#if defined(TILES_)
constexpr int TILE = 16, TILE_ROWS = TILE, TILE_COLUMNS = TILE, TILE_UNITS = TILE;
inline size_t in_tiles(int across, int unit, int units) {
    return (static_cast<size_t>(across / TILE) * (units / TILE) + unit / TILE) * TILE * TILE;
}
inline size_t in_rows(int row, int unit, int units) {
    return in_tiles(row, unit, units) + row % TILE * TILE + unit % TILE;
}
inline size_t in_columns(int column, int unit, int units, int) {
    return in_tiles(column, unit, units) + unit % TILE * TILE + column % TILE;
}
#else
constexpr int TILE_ROWS = 1, TILE_COLUMNS = PANEL, TILE_UNITS = 1;
inline size_t in_rows(int row, int unit, int units) { return static_cast<size_t>(row) * units + unit; }
inline size_t in_columns(int column, int unit, int, int columns) { return static_cast<size_t>(unit) * columns + column; }
#endif

// Rows in eight bits.
struct Rounded {
    uint8_t* values;
    float *scale, *zero;  // (T, groups)
    int width, groups;

    // Of LANES numbers.
    uint8_t* at(int row, int column) const { return values + 4 * in_rows(row, column / 4, width / 4) + column % 4; }

    // `count` numbers, of which those beyond `real` are padding.
    void set(int row, int group, const float* from, int real) const {
        const int count = width / groups;
        Floats low = all(0.0f), high = all(0.0f);
        int i = 0;
        for (; i + LANES <= real; i += LANES) {
            low = smaller(low, load(from + i));
            high = larger(high, load(from + i));
        }
        float from_ = least(low), to = largest(high);
        for (; i < real; ++i) from_ = std::min(from_, from[i]), to = std::max(to, from[i]);
        const float step = std::max((to - from_) / 255.0f, 1e-12f), origin = std::nearbyint(-from_ / step);
        scale[row * groups + group] = step;
        zero[row * groups + group] = origin;
        const float factor = 1.0f / step;
        for (i = 0; i < count; i += LANES) {
            const Floats whole = smaller(larger(load(from + i) * factor + (origin + 0.5f), all(0.0f)), all(255.0f));
            *reinterpret_cast<Bytes*>(at(row, group * count + i)) =
                __builtin_convertvector(__builtin_convertvector(whole, Ints), Bytes);
        }
    }
};

#if defined(__AVX512BF16__) && LANES_ == 16
// Attention multiplies pairs of bfloat16, twice as many at once as of float32.
typedef uint16_t Part;
typedef uint32_t Unit;
inline void store(Part* to, Floats values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)values));
}
#else
typedef float Part;
typedef float Unit;
#endif
constexpr int IN_UNIT = sizeof(Unit) / sizeof(Part);

// Rows of a product, a panel of its columns: x @ weight + bias (+ residual).
template <typename Out>
struct Answer {
    Out* out;
    int stride;
    const float* residual = nullptr;
    int row = 0, column = 0;  // of the first number of `out`
};

// What becomes of the sums of whole numbers, `sums(r, v)`, of some rows and vectors of columns, as far as one group of
// what goes in tells.
template <int V, typename Out, typename Sums>
inline void finish(
    const Product& product, int column, int group, const Rounded& x, int row, int count, const Answer<Out>& answer,
    Sums sums
) {
    Floats scale[V], weight_sums[V], bias[V];
    for (int v = 0; v < V; ++v) {
        scale[v] = load(product.scale + column + v * LANES), bias[v] = load(product.bias + column + v * LANES);
        weight_sums[v] = load(product.sums + group * product.columns + column + v * LANES);
    }
    const float *row_scale = x.scale + row * x.groups + group, *row_zero = x.zero + row * x.groups + group;
    const size_t first = static_cast<size_t>(row - answer.row) * answer.stride + column - answer.column;
    Out* out = answer.out + first;
    const float* residual = answer.residual && !group ? answer.residual + first : nullptr;
    for (int r = 0; r < count; ++r, row_scale += x.groups, row_zero += x.groups, out += answer.stride) {
        const Floats by = all(*row_scale), less = all(SHIFT - *row_zero);
        for (int v = 0; v < V; ++v) {
            Floats before = bias[v];
            if constexpr (sizeof(Out) == sizeof(float)) {  // others are of one group
                if (group) before = load(out + v * LANES);
                if (residual) before += load(residual + v * LANES);
            }
            const Floats whole = plus_product(__builtin_convertvector(sums(r, v), Floats), weight_sums[v], less);
            store(out + v * LANES, plus_product(before, whole, scale[v] * by));
        }
        if (residual) residual += answer.stride;
    }
}

#if defined(TILES_)
// Tiles of 16 rows of 64 bytes: 0 to 3 add up two rows of two tiles, 4 and 5 hold rows, 6 and 7 columns.
struct TileShapes {
    uint8_t palette = 1, first = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr int TILE_BYTES = 4 * TILE * TILE;
enum class Of { BYTES, HALVES };  // a unit is four bytes, of rows without and of columns with a sign, or two bfloat16

#define INLINE __attribute__((always_inline)) inline  // called, it is a fifth slower
#define ADD_PRODUCT(sums, a, b)      \
    if constexpr (KIND == Of::BYTES) \
        _tile_dpbusd(sums, a, b);    \
    else                             \
        _tile_dpbf16ps(sums, a, b)

// (32, 32) = (32, 16 * steps) @ (16 * steps, 32) in units, or the upper half of it. The next 16 rows, the next 16 columns
// and the next row of what is found lie so many bytes farther. `meanwhile(step)` is done while tiles are multiplied.
template <Of KIND, bool TALL, typename Meanwhile>
INLINE void multiply_tiles(
    const char* a, size_t a_next, const char* b, size_t b_next, int steps, char* out, size_t next, Meanwhile meanwhile
) {
    __asm__ volatile("" ::: "memory");  // what was stored before is there
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int k = 0; k < steps; ++k, a += TILE_BYTES, b += TILE_BYTES) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        ADD_PRODUCT(0, 4, 6);
        _tile_loadd(7, b + b_next, 64);
        ADD_PRODUCT(1, 4, 7);
        if constexpr (TALL) {
            _tile_loadd(5, a + a_next, 64);
            ADD_PRODUCT(2, 5, 6);
            ADD_PRODUCT(3, 5, 7);
        }
        meanwhile(k);
    }
    _tile_stored(0, out, next);
    _tile_stored(1, out + 64, next);
    if constexpr (TALL) {
        _tile_stored(2, out + 16 * next, next);
        _tile_stored(3, out + 16 * next + 64, next);
    }
}
#undef ADD_PRODUCT

// (count, 32) of rows and columns of so many units, of which `depth` count.
template <Of KIND, typename Meanwhile>
INLINE void multiply_tiles(
    const void* a, const void* b, int units, int depth, void* out, int out_units, int count, Meanwhile meanwhile
) {
    const char *rows = static_cast<const char*>(a), *columns = static_cast<const char*>(b);
    const size_t next = 4 * TILE * static_cast<size_t>(units), out_next = 4 * static_cast<size_t>(out_units);
    char* const to = static_cast<char*>(out);
    if (count > TILE)
        multiply_tiles<KIND, true>(rows, next, columns, next, depth / TILE, to, out_next, meanwhile);
    else
        multiply_tiles<KIND, false>(rows, next, columns, next, depth / TILE, to, out_next, meanwhile);
}

// Rows first to last of some panels. While tiles are multiplied, the sums before them become what is wanted, and the
// weights that come next are fetched.
template <typename Out>
void multiply(
    const Product& product, int first_panel, int last_panel, const Rounded& x, int first, int last,
    const Answer<Out>& answer
) {
    constexpr int WIDE = 2 * TILE, LINE = 64;
    struct Block {
        int column = 0, group = 0, row = 0, count = 0;
    } before;
    const int deep = product.depth / product.groups, units = product.depth / 4, steps = deep / 4 / TILE;
    const int at_once = (ROWS + steps - 1) / steps, rounds = (last - first + ROWS - 1) / ROWS;
    const int lines = (deep * TILE / LINE + rounds * steps - 1) / (rounds * steps);
    alignas(64) int32_t sums[2][ROWS * WIDE];
    const int8_t* next = product.weight;
    int here = 0;
    const auto meanwhile = [&](int step) {
        for (int line = 0; line < lines; ++line, next += LINE) {
            __builtin_prefetch(next, 0, 2);
            __builtin_prefetch(next + TILE * product.depth, 0, 2);
        }
        const int from = step * at_once, to = std::min(before.count, from + at_once);
        const int32_t* whole = sums[1 - here] + from * WIDE;
        finish<WIDE / LANES>(
            product, before.column, before.group, x, before.row + from, to - from, answer,
            [=](int r, int v) { return *reinterpret_cast<const Ints*>(whole + r * WIDE + v * LANES); }
        );
    };
    for (int column = first_panel * PANEL; column < last_panel * PANEL; column += WIDE)
        for (int group = 0; group < product.groups; ++group) {
            const int8_t* weights = product.weight + 4 * in_columns(column, group * deep / 4, units, 0);
            next = group + 1 < product.groups ? weights + deep * TILE : product.weight + 4 * in_columns(column + WIDE, 0, units, 0);
            for (int row = first; row < last; row += ROWS, here = 1 - here) {
                const int count = std::min(ROWS, last - row);
                multiply_tiles<Of::BYTES>(
                    x.at(row, group * deep), weights, units, deep / 4, sums[here], WIDE, count, meanwhile
                );
                before = {column, group, row, count};
            }
        }
    for (int step = 0; step < steps; ++step) meanwhile(step);
}
#else
// R rows of one panel, as far as one group of what goes in tells.
template <int R, typename Out>
void tile(const Product& product, int column, int group, const Rounded& x, int row, const Answer<Out>& answer) {
    const int deep = product.depth / product.groups;
    const int8_t* weights = product.weight + static_cast<size_t>(column) * product.depth + group * deep * PANEL;
    const uint8_t* rows = x.values + static_cast<size_t>(row) * x.width + group * deep;
    Ints sums[R][VECTORS] = {};
    for (int k = 0; k < deep / 4; ++k) {
        Ints panel[VECTORS];
        for (int v = 0; v < VECTORS; ++v)
            panel[v] = *reinterpret_cast<const Ints*>(weights + (k * VECTORS + v) * 4 * LANES);
        for (int r = 0; r < R; ++r) {
            int32_t four;
            std::memcpy(&four, rows + r * x.width + 4 * k, 4);
            const Ints all_four = Ints{} + four;
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = dot4(sums[r][v], all_four, panel[v]);
        }
    }
    finish<VECTORS>(product, column, group, x, row, R, answer, [&](int r, int v) { return sums[r][v]; });
}

// Rows first to last of some panels.
template <typename Out>
void multiply(
    const Product& product, int first_panel, int last_panel, const Rounded& x, int first, int last,
    const Answer<Out>& answer
) {
    static constexpr void (*TILES[])(const Product&, int, int, const Rounded&, int, const Answer<Out>&) = {
        nullptr, tile<1, Out>, tile<2, Out>, tile<3, Out>, tile<4, Out>, tile<5, Out>, tile<6, Out>
    };
    for (int panel = first_panel; panel < last_panel; ++panel)
        for (int row = first; row < last; row += ROWS)
            for (int group = 0; group < product.groups; ++group)
                TILES[std::min(ROWS, last - row)](product, panel * PANEL, group, x, row, answer);
}
#endif

#if defined(__AVX512BF16__) && LANES_ == 16
inline Floats add_product(Floats sums, Unit a, const Unit* b) {
    return (Floats)_mm512_dpbf16_ps(
        (__m512)sums, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)_mm512_loadu_si512(b)
    );
}
// LANES numbers of one row, and those of the next beside them.
inline void beside(const Part* first, const Part* second, Unit* to) {
    const auto wide = [](const Part* from) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    };
    _mm512_storeu_si512(to, _mm512_or_si512(wide(first), _mm512_slli_epi32(wide(second), 16)));
}
#else
inline Floats add_product(Floats sums, Unit a, const Unit* b) { return sums + load(b) * a; }
inline void beside(const Part* first, const Part*, Unit* to) { store(to, load(first)); }
#endif

#if defined(TILES_)
constexpr int WHOLE = IN_UNIT * LANES;
#else
constexpr int WHOLE = LANES;
#endif
inline int in_lanes(int width) { return (width + WHOLE - 1) / WHOLE * WHOLE; }
inline int units(int width) { return in_lanes(width) / IN_UNIT; }

// (rows, columns) = (rows, depth) @ (depth, columns) in units, ROWS rows at the most.
#if defined(TILES_)
void dots_of(const Unit* a, const Unit* b, int depth, float* out, int columns, int rows) {
    for (int column = 0; column < columns; column += 2 * TILE)
        multiply_tiles<Of::HALVES>(
            a, b + in_columns(column, 0, depth, 0), depth, depth, out + column, columns, rows, [](int) {}
        );
}
#else
template <int V>
void dots(const Unit* a, const Unit* b, int depth, float* out, int columns) {
    Floats sums[ROWS][V] = {};
    for (int d = 0; d < depth; ++d)
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < V; ++v)
                sums[r][v] = add_product(sums[r][v], a[in_rows(r, d, depth)], b + in_columns(v * LANES, d, depth, columns));
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < V; ++v) store(out + static_cast<size_t>(r) * columns + v * LANES, sums[r][v]);
}

void dots_of(const Unit* a, const Unit* b, int depth, float* out, int columns, int) {
    int column = 0;
    for (; column + PANEL <= columns; column += PANEL) dots<VECTORS>(a, b + column, depth, out + column, columns);
    for (; column < columns; column += LANES) dots<1>(a, b + column, depth, out + column, columns);
}
#endif

// exp(factor * score) of the first `count` of a row, 0 behind them, to where this row of so many units lies; what they
// have to be multiplied by to add up to 1.
float softmax(const float* scores, int count, float factor, int row, int units, Unit* to) {
    const int width = units * IN_UNIT;
    const auto score = [=](int i) {
        const Floats found = load(scores + i);
        return i + LANES <= count ? found : i + NUMBERS < count ? found : all(-1e30f);
    };
    Floats most = score(0);
    for (int i = LANES; i < width; i += LANES) most = larger(most, score(i));
    const float by = factor * LOG2_E, top = largest(most) * by;
    Floats total = all(0.0f);
    for (int i = 0; i < width; i += LANES) {
        const Floats one = exp2_of(score(i) * by - top);
        store(reinterpret_cast<Part*>(to + in_rows(row, i / IN_UNIT, units)), one);
        total += one;
    }
    return 1.0f / sum(total);
}

// What one thread needs for attention: sequences of `wide` columns, heads of `deep` channels, both whole.
struct Scratch {
    Unit *keys, *values, *queries, *weights;  // of a sequence, the first two; of ROWS of its tokens
    float* scores;                            // of ROWS tokens
    Part* row;                                // two rows of channels

    Scratch(float* memory, size_t wide, size_t deep) {
        auto take = [&](size_t count) { return (memory += count) - count; };
        auto take_units = [&](size_t count) { return reinterpret_cast<Unit*>(take(count / IN_UNIT)); };
        keys = take_units(deep * wide), values = take_units(wide * deep);
        queries = take_units(ROWS * deep), weights = take_units(ROWS * wide);
        scores = take(ROWS * std::max(wide, deep)), row = reinterpret_cast<Part*>(take(2 * deep));
    }
    static size_t floats(size_t wide, size_t deep) {
        return 2 * wide * deep + ROWS * (wide + deep + std::max(wide, deep)) + 2 * deep;
    }
};

// One head of one sequence. `head` is where its queries stand in the first row, `width` before its keys.
class Head {
  public:
    Head(const Part* head, int stride, int width, int channels, int length, float* memory)
        : head(head),
          stride(stride),
          width(width),
          channels(channels),
          length(length),
          wide(in_lanes(length)),
          deep(in_lanes(channels)),
          scratch(memory, wide, deep) {
        std::fill_n(scratch.row, 2 * deep, Part{});
    }

    void operator()(const float* bias, int bias_stride, float* context, int context_stride) const {
        lay_out();
        const float factor = 1.0f / std::sqrt(static_cast<float>(channels));
        float shares[ROWS];
        for (int first = 0; first < length; first += ROWS) {
            const int count = std::min(ROWS, length - first);
            for (int r = 0; r < count; ++r)
                for (int d = 0; d < deep; d += LANES)
                    std::memcpy(
                        scratch.queries + in_rows(r, d / IN_UNIT, units(deep)), part(first + r, 0, 0) + d,
                        LANES * sizeof(Part)
                    );
            dots_of(scratch.queries, scratch.keys, units(deep), scratch.scores, wide, count);
            for (int r = 0; r < count; ++r) {
                float* row = scratch.scores + static_cast<size_t>(r) * wide;
                for (int j = 0; bias && j < length; ++j)
                    row[j] += bias[static_cast<size_t>(first + r) * bias_stride + j] / factor;
                shares[r] = softmax(row, length, factor, r, units(wide), scratch.weights);
            }
            dots_of(scratch.weights, scratch.values, units(wide), scratch.scores, deep, count);
            for (int r = 0; r < count; ++r) {
                float* to = context + static_cast<size_t>(first + r) * context_stride;
                for (int d = 0; d < channels; ++d) to[d] = scratch.scores[r * deep + d] * shares[r];
            }
        }
    }

  private:
    const Part* const head;
    const int stride, width, channels, length, wide, deep;
    const Scratch scratch;

    // A token's queries (0), keys (1) or values (2), with zeros behind them; where there are none, in one of two places.
    const Part* part(int token, int which, int place) const {
        const Part* there = head + static_cast<size_t>(token) * stride + which * width;
        if (token < length && channels == deep) return there;
        Part* row = scratch.row + place * deep;
        if (token < length)
            std::memcpy(row, there, sizeof(Part) * channels);
        else
            std::fill_n(row, channels, Part{});
        return row;
    }

    // Keys by channel, values by token.
    void lay_out() const {
        for (int j = 0; j < wide; ++j) {
            const Unit* row = reinterpret_cast<const Unit*>(part(j, 1, 0));
            for (int d = 0; d < units(deep); d += TILE_UNITS) {
                Unit* to = scratch.keys + in_columns(j, d, units(deep), wide);
                for (int i = 0; i < TILE_UNITS; ++i) to[i * TILE_COLUMNS] = row[d + i];
            }
        }
        for (int j = 0; j < units(wide); ++j) {
            const Part *first = part(IN_UNIT * j, 2, 0), *second = IN_UNIT == 2 ? part(2 * j + 1, 2, 1) : first;
            for (int d = 0; d < deep; d += LANES)
                beside(first + d, second + d, scratch.values + in_columns(d, j, units(wide), deep));
        }
    }
};

float dot(const float* a, const float* b, int count) {
    Floats sums[4] = {};
    int i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int v = 0; v < 4; ++v) sums[v] += load(a + i + v * LANES) * load(b + i + v * LANES);
    float found = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < count; ++i) found += a[i] * b[i];
    return found;
}

// In place; what is padded stays 0.
void normalize(float* row, int hidden, const Norm& norm, float epsilon) {
    const int whole = hidden / LANES * LANES;
    Floats total = all(0.0f);
    for (int i = 0; i < whole; i += LANES) total += load(row + i);
    float mean = sum(total);
    for (int i = whole; i < hidden; ++i) mean += row[i];
    mean /= hidden;
    Floats squares = all(0.0f);
    for (int i = 0; i < whole; i += LANES) {
        const Floats off = load(row + i) - mean;
        squares += off * off;
    }
    float spread = sum(squares);
    for (int i = whole; i < hidden; ++i) spread += (row[i] - mean) * (row[i] - mean);
    const float share = 1.0f / std::sqrt(spread / hidden + epsilon);
    for (int i = 0; i < whole; i += LANES)
        store(row + i, (load(row + i) - mean) * share * load(norm.weight + i) + load(norm.bias + i));
    for (int i = whole; i < hidden; ++i) row[i] = (row[i] - mean) * share * norm.weight[i] + norm.bias[i];
}

inline int bundles_of(const Network& net) { return (net.heads + net.bundle - 1) / net.bundle; }

// The memory of a group of sequences.
struct Space {
    float *states, *sums, *context, *scratch;
    Rounded small, wide;
    size_t rows, bytes, scratch_floats;  // rows with room for a whole tile

    Space(uint8_t* memory, int count, int threads, const Network& net, const Job& job) {
        const Product& narrow = net.ffn[0].narrow;
        const size_t qkv_width = net.attention[0].qkv.columns / bundles_of(net);
        const size_t hidden = padded(net.hidden);
        rows = count + ROWS;
        bytes = 0;
        auto take = [&](size_t size) {
            uint8_t* place = memory + bytes;
            bytes += (size + 63) / 64 * 64;
            return place;
        };
        auto floats = [&](size_t count) { return reinterpret_cast<float*>(take(4 * count)); };
        states = floats(rows * hidden), sums = floats(rows * hidden), context = floats(rows * hidden);
        small = {take(rows * hidden), floats(rows), floats(rows), static_cast<int>(hidden), 1};
        wide = {
            take(rows * narrow.depth), floats(rows * narrow.groups), floats(rows * narrow.groups), narrow.depth,
            narrow.groups
        };
        const size_t own = std::max(
            {rows * qkv_width * sizeof(Part) / sizeof(float) +
                 Scratch::floats(in_lanes(job.longest), in_lanes(net.hidden / net.heads)),
             static_cast<size_t>(ROW_BLOCK) * narrow.depth / narrow.groups,
             static_cast<size_t>(CHUNK) * (job.words ? job.words->width : 0)}
        );
        scratch_floats = (own + 15) / 16 * 16;
        scratch = floats(threads * scratch_floats);
    }
};

// How many of the wanted rows lie between these.
int wanted_of(const Job& job, int first, int last) {
    return std::count_if(job.rows, job.rows + job.wanted, [=](int64_t row) { return first <= row && row < last; });
}

class Runner {
  public:
    Runner(const Network& net, const Job& job, Team& team, int most_rows, int thread)
        : net(net),
          job(job),
          team(team),
          hidden(padded(net.hidden)),
          space(job.workspace, most_rows, team.size, net, job),
          own(space.scratch + thread * space.scratch_floats) {}

    // Sequences first to last through all steps.
    void operator()(int first, int last) {
        const int start = job.starts[first];
        tokens = job.starts[last] - start;
        starts.clear(), numbers.clear();
        for (int sequence = first; sequence <= last; ++sequence) starts.push_back(job.starts[sequence] - start);
        for (int sequence = first; sequence < last; ++sequence) numbers.push_back(sequence);
        team.share((tokens + CHUNK - 1) / CHUNK, [&](int chunk) {
            const int from = chunk * CHUNK, to = std::min(tokens, from + CHUNK);
            if (job.words) embed(start, from, to);
            for (int row = from; row < to; ++row) {
                float* state = space.states + static_cast<size_t>(row) * hidden;
                if (job.given)
                    std::memcpy(state, job.given + static_cast<size_t>(start + row) * net.hidden, 4 * net.hidden);
                std::fill(state + net.hidden, state + hidden, 0.0f);
                std::fill_n(space.context + static_cast<size_t>(row) * hidden, hidden, 0.0f);
                begin(row, 0);
            }
        });
        for (int step = 0, next = 0; step < job.steps && !numbers.empty(); ++step) {
            const AttentionHalf& attention = net.attention[job.blocks[2 * step]];
            const FeedForwardHalf& ffn = net.ffn[job.blocks[2 * step + 1]];
            const bool is_last = step == job.steps - 1, some = (job.rows || job.look) && is_last;
            int rows = tokens;
            mix(attention);
            if (some)
                rows = choose(start);
            else
                team.share_rows(rows, [&](int row) {
                    space.small.set(row, 0, space.context + static_cast<size_t>(row) * hidden, net.hidden);
                });
            narrow(attention.out, space.small, rows);
            normalize_all(attention.norm, rows, -1);
            widen(ffn.widen, rows);
            narrow(ffn.narrow, space.wide, rows);
            normalize_all(ffn.norm, rows, step + 1);
            if (job.look && step + 1 == job.look->steps[next])
                look(++next, is_last);
            else if (is_last && job.vectors)
                give_vectors(start);
            else if (is_last)
                give(start, rows, some);
        }
    }

  private:
    const Network& net;
    const Job& job;
    Team& team;
    const int hidden;
    const Space space;
    float* const own;
    int tokens = 0;
    std::vector<int> starts, numbers;  // of the sequences that are left: where they begin here, and which they are

    // The first states of some rows, CHUNK at the most.
    void embed(int start, int first, int last) {
        const Words& by = *job.words;
        const size_t width = by.width;
        for (int row = first; row < last; ++row) {
            const int sequence = std::upper_bound(starts.begin(), starts.end(), row) - starts.begin() - 1;
            const float *word = by.words + by.ids[start + row] * width,
                        *segment = by.segments + by.kinds[start + row] * width,
                        *position = by.positions + (row - starts[sequence]) * width;
            float* to = own + (row - first) * width;
            for (size_t i = 0; i < width; ++i) to[i] = word[i] + segment[i] + position[i];
            normalize(to, by.width, by.norm, net.epsilon);
        }
        for (int column = 0; column < hidden; column += PANEL) {
            Floats sums[CHUNK][VECTORS];
            for (int r = 0; r < CHUNK; ++r)
                for (int v = 0; v < VECTORS; ++v) sums[r][v] = load(by.bias + column + v * LANES);
            for (size_t k = 0; k < width; ++k)
                for (int v = 0; v < VECTORS; ++v) {
                    const Floats weight = load(by.weight + column * width + k * PANEL + v * LANES);
                    for (int r = 0; r < CHUNK; ++r) sums[r][v] += weight * own[r * width + k];
                }
            for (int row = first; row < last; ++row)
                for (int v = 0; v < VECTORS; ++v)
                    store(space.states + static_cast<size_t>(row) * hidden + column + v * LANES, sums[row - first][v]);
        }
    }

    // A row of states before a step: what is added to it there, and in eight bits.
    void begin(int row, int step) {
        float* state = space.states + static_cast<size_t>(row) * hidden;
        if (job.added && step < job.steps)
            for (int i = 0; i < net.hidden; ++i) state[i] += job.added[static_cast<size_t>(step) * net.hidden + i];
        space.small.set(row, 0, state, net.hidden);
    }

    // What one thread multiplies for some heads it also attends with, so that it is still in its cache.
    void mix(const AttentionHalf& attention) {
        const int channels = net.hidden / net.heads, bundles = bundles_of(net);
        const int stride = attention.qkv.columns / bundles, width = stride / 3, count = numbers.size();
        const int parts = std::min(count, (2 * team.size + bundles - 1) / bundles);
        team.share(bundles * parts, [&](int task) {
            const int bundle = task / parts, part = task % parts;
            const int first = count * part / parts, last = count * (part + 1) / parts;
            const int row = starts[first] / TILE_ROWS * TILE_ROWS;
            Part* const qkv = reinterpret_cast<Part*>(own);
            float* const rest = own + static_cast<size_t>(space.rows) * stride * sizeof(Part) / sizeof(float);
            const Answer<Part> answer{qkv, stride, nullptr, row, bundle * stride};
            const int panel = bundle * stride / PANEL;
            multiply(attention.qkv, panel, panel + stride / PANEL, space.small, row, starts[last], answer);
            for (int s = first; s < last; ++s)
                for (int h = 0; h < std::min(net.bundle, net.heads - bundle * net.bundle); ++h) {
                    const int at = starts[s], number = bundle * net.bundle + h;
                    const Head head(
                        qkv + static_cast<size_t>(at - row) * stride + h * channels, stride, width, channels,
                        starts[s + 1] - at, rest
                    );
                    const float* bias =
                        job.bias ? job.bias + static_cast<size_t>(number) * job.longest * job.longest : nullptr;
                    head(bias, job.longest, space.context + static_cast<size_t>(at) * hidden + number * channels, hidden);
                }
        });
    }

    // Of the last step only the wanted rows go on: they are moved to the front, by way of memory that is free now.
    int choose(int start) {
        const int count = job.look ? numbers.size() : wanted_of(job, start, start + tokens);
        team.share(1, [&](int) {
            int to = 0;
            const auto take = [&](size_t from) {
                std::memcpy(space.sums + static_cast<size_t>(to) * hidden, space.states + from * hidden, 4 * hidden);
                space.small.set(to++, 0, space.context + from * hidden, net.hidden);
            };
            for (int i = 0; job.look && i < count; ++i) take(starts[i]);
            for (int i = 0; !job.look && i < job.wanted; ++i)
                if (job.rows[i] >= start && job.rows[i] < start + tokens) take(job.rows[i] - start);
            std::memcpy(space.states, space.sums, sizeof(float) * count * hidden);
        });
        return count;
    }

    // sums = states + x @ weight + bias
    void narrow(const Product& product, const Rounded& x, int rows) {
        multiply_all(product, x, rows, Answer<float>{space.sums, hidden, space.states});
    }

    template <typename Out>
    void multiply_all(const Product& product, const Rounded& x, int rows, const Answer<Out>& answer) {
        const int panels = product.columns / PANEL;
#if defined(TILES_)
        if (!rows) return;  // none of these is wanted
        const int runs = std::min(panels, RUNS * team.size);  // of weights that lie together
        team.share(runs, [&](int run) {
            multiply(product, panels * run / runs, panels * (run + 1) / runs, x, 0, rows, answer);
        });
#else
        const int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
        team.share(panels * blocks, [&](int task) {
            const int panel = task / blocks, row = task % blocks * ROW_BLOCK;
            multiply(product, panel, panel + 1, x, row, std::min(rows, row + ROW_BLOCK), answer);
        });
#endif
    }

    void widen(const Product& product, int rows) {
        const int groups = space.wide.groups, columns = product.columns / groups;
        const int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
        team.share(groups * blocks, [&](int task) {
            const int group = task / blocks, row = task % blocks * ROW_BLOCK, last = std::min(rows, row + ROW_BLOCK);
            const Answer<float> answer{own, columns, nullptr, row, group * columns};
            multiply(product, group * columns / PANEL, (group + 1) * columns / PANEL, space.small, row, last, answer);
            for (int r = row; r < last; ++r) {
                float* from = own + static_cast<size_t>(r - row) * columns;
                bend(from, columns, net.activation);
                space.wide.set(r, group, from, columns);
            }
        });
    }

    // states = norm(sums), made ready for `step`, or for the half that follows (-1).
    void normalize_all(const Norm& norm, int rows, int step) {
        team.share_rows(rows, [&](int row) {
            float *to = space.states + static_cast<size_t>(row) * hidden,
                  *from = space.sums + static_cast<size_t>(row) * hidden;
            std::memcpy(to, from, sizeof(float) * hidden);
            normalize(to, net.hidden, norm, net.epsilon);
            begin(row, step < 0 ? job.steps : step);
        });
    }

    // What the classifier says of every sequence; those of which it is sure go no further. `packed`: of each only the
    // first row is left.
    void look(int number, bool packed) {
        const Look& by = *job.look;
        const int count = numbers.size(), block = 64;
        team.share((net.hidden + block - 1) / block, [&](int task) {
            for (int s = 0; s < count; ++s) {
                const float* state = space.states + static_cast<size_t>(packed ? s : starts[s]) * hidden;
                float* pooled = space.context + static_cast<size_t>(s) * hidden;  // free until the next step
                for (int i = task * block; i < std::min(net.hidden, (task + 1) * block); ++i)
                    pooled[i] = std::tanh(
                        dot(by.pooler + static_cast<size_t>(i) * net.hidden, state, net.hidden) + by.pooler_bias[i]
                    );
            }
        });
        team.share(count, [&](int s) {
            float* scores = by.scores + static_cast<size_t>(numbers[s]) * by.classes;
            for (int c = 0; c < by.classes; ++c)
                scores[c] = dot(by.head + static_cast<size_t>(c) * net.hidden,
                                space.context + static_cast<size_t>(s) * hidden, net.hidden) + by.head_bias[c];
            const float most = *std::max_element(scores, scores + by.classes);
            float total = 0;
            for (int c = 0; c < by.classes; ++c) total += std::exp(scores[c] - most);
            by.stopped[numbers[s]] = number == by.looks || 1.0f / total >= by.sure ? number : -number;
        });
        if (number < by.looks) close_up();
    }

    // Those that go on are a shorter batch.
    void close_up() {
        const std::vector<int> before = starts;
        std::vector<int> kept;
        for (size_t s = 0; s < numbers.size(); ++s)
            if (job.look->stopped[numbers[s]] < 0) kept.push_back(s);
        if (kept.size() == numbers.size()) return;
        starts.assign(1, 0);
        for (size_t to = 0; to < kept.size(); ++to) {
            numbers[to] = numbers[kept[to]];
            starts.push_back(starts[to] + before[kept[to] + 1] - before[kept[to]]);
        }
        numbers.resize(kept.size());
        tokens = starts.back();
        team.share(1, [&](int) {
            for (size_t s = 0; s < kept.size(); ++s) {
                const size_t from = before[kept[s]], to = starts[s], rows = starts[s + 1] - to;
                std::memmove(space.states + to * hidden, space.states + from * hidden, sizeof(float) * rows * hidden);
            }
        });
        team.share_rows(tokens, [&](int row) {
            space.small.set(row, 0, space.states + static_cast<size_t>(row) * hidden, net.hidden);
        });
    }

    void give_vectors(int start) {
        const Vectors& to = *job.vectors;
        const int count = numbers.size(), panels = hidden / PANEL, block = 16;
        team.share(count * panels, [&](int task) {
            const int s = task / panels, column = task % panels * PANEL;
            float total = 0;
            Floats sums[VECTORS] = {};
            for (int row = starts[s]; row < starts[s + 1]; ++row) {
                const float counts = to.counts ? to.counts[job.words->ids[start + row]] : 1.0f;
                total += counts;
                for (int v = 0; v < VECTORS; ++v)
                    sums[v] += load(space.states + static_cast<size_t>(row) * hidden + column + v * LANES) * counts;
            }
            for (int v = 0; v < VECTORS; ++v)
                store(space.sums + static_cast<size_t>(s) * hidden + column + v * LANES,
                      sums[v] * (1.0f / std::max(total, 1e-9f)));
        });
        team.share((to.size + block - 1) / block, [&](int task) {
            for (int i = task * block; i < std::min(to.size, (task + 1) * block); ++i)
                for (int s = 0; s < count; ++s) {
                    const float* mean = space.sums + static_cast<size_t>(s) * hidden;
                    to.found[static_cast<size_t>(numbers[s]) * to.size + i] =
                        to.weight ? dot(to.weight + static_cast<size_t>(i) * net.hidden, mean, net.hidden) + to.bias[i]
                                  : mean[i];
                }
        });
    }

    void give(int start, int rows, bool some) {
        team.share(1, [&](int) {
            if (!some) {
                for (int row = 0; row < rows; ++row)
                    std::memcpy(
                        job.found + static_cast<size_t>(start + row) * net.hidden,
                        space.states + static_cast<size_t>(row) * hidden, 4 * net.hidden
                    );
                return;
            }
            for (int i = 0, from = 0; i < job.wanted; ++i)
                if (job.rows[i] >= start && job.rows[i] < start + tokens)
                    std::memcpy(
                        job.found + static_cast<size_t>(i) * net.hidden,
                        space.states + static_cast<size_t>(from++) * hidden, 4 * net.hidden
                    );
        });
    }
};

struct Call {
    const Network& net;
    const Job& job;
    Team& team;
    int (*team_size)();
    int rows;  // of the largest group of sequences
    std::atomic<int> threads{0};
};

// The first of the sequences after `first` that is left for another group.
int group_end(const Job& job, int first) {
    int last = first + 1;
    while (last < job.sequences && job.starts[last + 1] - job.starts[first] <= AT_ONCE) ++last;
    return last;
}

void work(void* given) {
    Call& call = *static_cast<Call*>(given);
    const int thread = call.threads.fetch_add(1);
    if (call.team.size > 1) call.team.size = call.team_size();  // which may be fewer than were asked for
    Runner run(call.net, call.job, call.team, call.rows, thread);
#if defined(TILES_)
    const TileShapes shapes;
    // the compiler believes that the next line reads 8 of its bytes, and may not write the others
    __asm__ volatile("" : : "m"(shapes));
    _tile_loadconfig(&shapes);
#endif
    for (int first = 0, last; first < call.job.sequences; first = last) run(first, last = group_end(call.job, first));
#if defined(TILES_)
    _tile_release();
#endif
}

// Rows of the largest group.
int most_rows(const Job& job) {
    int most = 0;
    for (int first = 0, last; first < job.sequences; first = last) {
        last = group_end(job, first);
        const int start = job.starts[first], end = job.starts[last];
        most = std::max({most, end - start, wanted_of(job, start, end)});
    }
    return most;
}

}  // namespace

extern "C" {

// Widths are padded to whole panels; a weight lies in tiles of so many columns, and units of four bytes.
void litebert_layout(int32_t* found) { found[0] = PANEL, found[1] = TILE_COLUMNS, found[2] = TILE_UNITS; }

// May this process use all that it was compiled for? Linux wants to be asked for tiles.
bool litebert_may() {
#if defined(TILES_)
    constexpr long ASK = 0x1023, TILES = 18;
    return syscall(SYS_arch_prctl, ASK, TILES) == 0;
#else
    return true;
#endif
}

size_t litebert_workspace(const Network* net, const Job* job, int threads) {
    return Space(nullptr, most_rows(*job), threads, *net, *job).bytes;
}

// Is every token in the tables?
bool litebert_knows(const Job* job) {
    const Words& by = *job->words;
    const int tokens = job->starts[job->sequences];
    const auto all = [=](const int64_t* of, int known) {
        return std::all_of(of, of + tokens, [=](int64_t number) { return 0 <= number && number < known; });
    };
    return all(by.ids, by.words_known) && all(by.kinds, by.kinds_known);
}

// `parallel` and `team_size` are GOMP_parallel and omp_get_num_threads of the library whose threads torch uses.
void litebert_run(
    const Network* net, const Job* job, int threads, void (*parallel)(void (*)(void*), void*, unsigned, unsigned),
    int (*team_size)()
) {
    Team team{threads};
    Call call{*net, *job, team, team_size, most_rows(*job)};
    if (threads == 1)
        work(&call);
    else
        parallel(work, &call, threads, 0);
}

}  // extern "C"
