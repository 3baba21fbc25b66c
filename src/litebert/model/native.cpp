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

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(NARROW)
#define LANES_ 16
constexpr int LANES = 16, VECTORS = 4, ROWS = 6;  // 24 of 32 registers add up
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
constexpr int ROW_BLOCK = 8 * ROWS;  // rows that one task takes through a panel of weights
constexpr int AT_ONCE = 384;         // tokens whose activations stay in the cache for all passes
constexpr int CHUNK = 4;             // rows that a thread asks for at once, where little is done with each
constexpr int SPINS = 2000;

typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline void store(float* to, Floats values) { *reinterpret_cast<Floats*>(to) = values; }
inline Floats all(float value) { return Floats{} + value; }

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

#if LANES_ == 4
inline Floats inverse(Floats x) { return 1.0f / x; }
#else
// One step of Newton's makes it as exact as a division, and it is several times as fast.
inline Floats inverse(Floats x) {
    const Floats near = about_inverse(x);
    return near * (2.0f - x * near);
}
#endif

inline float sum(Floats values) {
    float found = 0;
    for (int i = 0; i < LANES; ++i) found += values[i];
    return found;
}
inline float largest(Floats values) {
    float found = values[0];
    for (int i = 1; i < LANES; ++i) found = std::max(found, values[i]);
    return found;
}
inline float least(Floats values) { return -largest(-values); }

inline Floats exp_of(Floats x) {
    x = larger(x, all(-87.0f));
    const Floats shifted = x * 1.44269504f + 12582912.0f;  // whose last bits are the power of two
    const Floats power = shifted - 12582912.0f;
    const Floats rest = x - power * 0.693145752f - power * 1.42860677e-6f;
    Floats y = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * rest * rest + rest + 1.0f;
    return (Floats)((Ints)y + ((Ints)shifted << 23));
}

enum Activation { GELU, GELU_TANH, RELU, SILU };

// Abramowitz and Stegun 7.1.26, 1.5e-7 off at the most.
inline Floats erf_of(Floats x) {
    const Floats size = larger(x, -x);
    const Floats t = inverse(size * 0.3275911f + 1.0f);
    Floats y = t * 1.061405429f - 1.453152027f;
    y = y * t + 1.421413741f;
    y = y * t - 0.284496736f;
    y = y * t + 0.254829592f;
    y = 1.0f - y * t * exp_of(-size * size);
    return x < 0.0f ? -y : y;
}

inline Floats bent(Floats x, int activation) {
    switch (activation) {
        case GELU:
            return x * 0.5f * (erf_of(x * 0.70710678f) + 1.0f);
        case GELU_TANH:
            return x * inverse(exp_of(smaller((x * x * 0.044715f + 1.0f) * x * -1.59576912f, all(80.0f))) + 1.0f);
        case RELU:
            return larger(x, all(0.0f));
        default:
            return x * inverse(exp_of(smaller(-x, all(80.0f))) + 1.0f);
    }
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

// A matrix, in panels: (columns / PANEL, depth / 4, PANEL, 4).
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
    int32_t hidden, heads, activation;
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

// Rows in eight bits.
struct Rounded {
    uint8_t* values;
    float *scale, *zero;  // (T, groups)
    int width, groups;

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
        uint8_t* to_row = values + static_cast<size_t>(row) * width + group * count;
        const float factor = 1.0f / step;
        for (i = 0; i < count; i += LANES) {
            const Floats whole = smaller(larger(load(from + i) * factor + (origin + 0.5f), all(0.0f)), all(255.0f));
            *reinterpret_cast<Bytes*>(to_row + i) =
                __builtin_convertvector(__builtin_convertvector(whole, Ints), Bytes);
        }
    }
};

// Rows of a product, a panel of its columns: x @ weight + bias (+ residual).
struct Answer {
    float* out;
    int stride;
    const float* residual = nullptr;
    int row = 0, column = 0;  // of the first number of `out`
};

// R rows of one panel, as far as one group of what goes in tells.
template <int R>
void tile(const Product& product, int column, int group, const Rounded& x, int row, const Answer& answer) {
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
    for (int v = 0; v < VECTORS; ++v) {
        const int here = column + v * LANES;
        const Floats scale = load(product.scale + here), bias = load(product.bias + here);
        const Floats weight_sums = load(product.sums + group * product.columns + here);
        for (int r = 0; r < R; ++r) {
            const int at = (row + r) * x.groups + group;
            const size_t place = static_cast<size_t>(row + r - answer.row) * answer.stride + here - answer.column;
            Floats before = group ? load(answer.out + place) : bias;
            if (answer.residual && !group) before += load(answer.residual + place);
            const Floats whole = __builtin_convertvector(sums[r][v], Floats) - weight_sums * (x.zero[at] - SHIFT);
            store(answer.out + place, before + whole * (scale * x.scale[at]));
        }
    }
}

typedef void (*Tile)(const Product&, int, int, const Rounded&, int, const Answer&);
constexpr Tile TILES[] = {nullptr, tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};

// Rows first to last of one panel.
void multiply(const Product& product, int panel, const Rounded& x, int first, int last, const Answer& answer) {
    for (int row = first; row < last; row += ROWS)
        for (int group = 0; group < product.groups; ++group)
            TILES[std::min(ROWS, last - row)](product, panel * PANEL, group, x, row, answer);
}

#if defined(__AVX512BF16__) && LANES_ == 16
// Attention multiplies pairs of bfloat16, twice as many at once as of float32.
typedef uint32_t Unit;
constexpr int IN_UNIT = 2;

inline Floats add_product(Floats sums, Unit a, const Unit* b) {
    return (Floats)_mm512_dpbf16_ps(
        (__m512)sums, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)_mm512_loadu_si512(b)
    );
}
inline __m256i halves(const float* from) { return (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from)); }
// LANES numbers, two and two.
inline void in_units(const float* from, Unit* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves(from)); }
// LANES numbers of one row, and those of the next beside them.
inline void beside(const float* first, const float* second, Unit* to) {
    const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves(second)), 16);
    _mm512_storeu_si512(to, _mm512_or_si512(_mm512_cvtepu16_epi32(halves(first)), upper));
}
#else
typedef float Unit;
constexpr int IN_UNIT = 1;

inline Floats add_product(Floats sums, Unit a, const Unit* b) { return sums + load(b) * a; }
inline void in_units(const float* from, Unit* to) { store(to, load(from)); }
inline void beside(const float* first, const float*, Unit* to) { store(to, load(first)); }
#endif

inline int in_lanes(int width) { return (width + LANES - 1) / LANES * LANES; }
inline int units(int width) { return in_lanes(width) / IN_UNIT; }

// (ROWS, V * LANES) = (ROWS, depth) @ (depth, V * LANES)
template <int V>
void dots(const Unit* a, int a_stride, const Unit* b, int b_stride, int depth, float* out, int out_stride) {
    Floats sums[ROWS][V] = {};
    for (int d = 0; d < depth; ++d)
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < V; ++v)
                sums[r][v] =
                    add_product(sums[r][v], a[r * a_stride + d], b + static_cast<size_t>(d) * b_stride + v * LANES);
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < V; ++v) store(out + static_cast<size_t>(r) * out_stride + v * LANES, sums[r][v]);
}

void dots_of(
    const Unit* a, int a_stride, const Unit* b, int b_stride, int depth, float* out, int out_stride, int columns
) {
    int column = 0;
    for (; column + PANEL <= columns; column += PANEL)
        dots<VECTORS>(a, a_stride, b + column, b_stride, depth, out + column, out_stride);
    for (; column < columns; column += LANES)
        dots<1>(a, a_stride, b + column, b_stride, depth, out + column, out_stride);
}

// exp(factor * score), so that the first `count` of a row add up to 1 and the others are 0.
void softmax(float* scores, int count, float factor) {
    const int width = in_lanes(count);
    for (int i = count; i < width; ++i) scores[i] = -1e30f;
    Floats most = load(scores);
    for (int i = LANES; i < width; i += LANES) most = larger(most, load(scores + i));
    const float top = largest(most);
    Floats total = all(0.0f);
    for (int i = 0; i < width; i += LANES) {
        const Floats one = exp_of((load(scores + i) - top) * factor);
        store(scores + i, one);
        total += one;
    }
    for (int i = count; i < width; ++i) {
        total[i % LANES] -= scores[i];
        scores[i] = 0;
    }
    const float share = 1.0f / sum(total);
    for (int i = 0; i < width; i += LANES) store(scores + i, load(scores + i) * share);
}

// What one thread needs for attention: sequences of `wide` columns, heads of `deep` channels, both in whole lanes.
struct Scratch {
    Unit *keys, *values, *queries, *weights;  // (deep, wide) and (wide, deep), in units; a tile of rows of either
    float *scores, *row;                      // a tile; two rows of channels

    Scratch(float* memory, size_t wide, size_t deep) {
        auto take = [&](size_t count) { return (memory += count) - count; };
        auto take_units = [&](size_t count) { return reinterpret_cast<Unit*>(take(count)); };
        keys = take_units(deep * wide), values = take_units(wide * deep);
        queries = take_units(ROWS * deep), weights = take_units(ROWS * wide);
        scores = take(ROWS * std::max(wide, deep)), row = take(2 * deep);
    }
    static size_t floats(size_t wide, size_t deep) {
        return 2 * wide * deep + ROWS * (wide + deep + std::max(wide, deep)) + 2 * deep;
    }
};

// One head of one sequence. `head` is where its queries stand in the first row, `hidden` before its keys.
class Head {
  public:
    Head(const float* head, int stride, int hidden, int channels, int length, float* memory)
        : head(head),
          stride(stride),
          hidden(hidden),
          channels(channels),
          length(length),
          wide(in_lanes(length)),
          deep(in_lanes(channels)),
          scratch(memory, wide, deep) {
        std::fill_n(scratch.row, 2 * deep, 0.0f);
    }

    void operator()(const float* bias, int bias_stride, float* context, int context_stride) const {
        lay_out();
        const float factor = 1.0f / std::sqrt(static_cast<float>(channels));
        for (int first = 0; first < length; first += ROWS) {
            const int count = std::min(ROWS, length - first);
            for (int r = 0; r < count; ++r)
                in_units_all(part(first + r, 0, 0), deep, scratch.queries + r * units(deep));
            dots_of(scratch.queries, units(deep), scratch.keys, wide, units(deep), scratch.scores, wide, wide);
            for (int r = 0; r < count; ++r) {
                float* row = scratch.scores + static_cast<size_t>(r) * wide;
                for (int j = 0; bias && j < length; ++j)
                    row[j] += bias[static_cast<size_t>(first + r) * bias_stride + j] / factor;
                softmax(row, length, factor);
                in_units_all(row, wide, scratch.weights + r * units(wide));
            }
            dots_of(scratch.weights, units(wide), scratch.values, deep, units(wide), scratch.scores, deep, deep);
            for (int r = 0; r < count; ++r)
                std::memcpy(
                    context + static_cast<size_t>(first + r) * context_stride, scratch.scores + r * deep, 4 * channels
                );
        }
    }

  private:
    const float* const head;
    const int stride, hidden, channels, length, wide, deep;
    const Scratch scratch;

    // A token's queries (0), keys (1) or values (2), with zeros behind them, in the first or second place for that.
    const float* part(int token, int which, int place) const {
        float* row = scratch.row + place * deep;
        if (token < length)
            std::memcpy(row, head + static_cast<size_t>(token) * stride + which * hidden, 4 * channels);
        else
            std::fill_n(row, channels, 0.0f);
        return row;
    }

    static void in_units_all(const float* from, int count, Unit* to) {
        for (int i = 0; i < count; i += LANES) in_units(from + i, to + i / IN_UNIT);
    }

    // Keys by channel, values by token.
    void lay_out() const {
        for (int j = 0; j < wide; ++j) {
            Unit* row = scratch.queries;
            in_units_all(part(j, 1, 0), deep, row);
            for (int d = 0; d < units(deep); ++d) scratch.keys[static_cast<size_t>(d) * wide + j] = row[d];
        }
        for (int j = 0; j < units(wide); ++j) {
            const float *first = part(IN_UNIT * j, 2, 0), *second = IN_UNIT == 2 ? part(2 * j + 1, 2, 1) : first;
            for (int d = 0; d < deep; d += LANES)
                beside(first + d, second + d, scratch.values + static_cast<size_t>(j) * deep + d);
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

// The memory of a group of sequences.
struct Space {
    float *states, *sums, *qkv, *context, *scratch;
    Rounded small, wide;
    size_t bytes;

    Space(uint8_t* memory, int count, int threads, const Network& net, const Job& job) {
        const Product &qkv_ = net.attention[0].qkv, &narrow = net.ffn[0].narrow;
        const size_t rows = count + ROWS, hidden = padded(net.hidden);  // room for a whole tile
        bytes = 0;
        auto take = [&](size_t size) {
            uint8_t* place = memory + bytes;
            bytes += (size + 63) / 64 * 64;
            return place;
        };
        auto floats = [&](size_t count) { return reinterpret_cast<float*>(take(4 * count)); };
        states = floats(rows * hidden), sums = floats(rows * hidden), context = floats(rows * hidden);
        qkv = floats(rows * qkv_.columns);
        small = {take(rows * hidden), floats(rows), floats(rows), static_cast<int>(hidden), 1};
        wide = {
            take(rows * narrow.depth), floats(rows * narrow.groups), floats(rows * narrow.groups), narrow.depth,
            narrow.groups
        };
        const size_t own = std::max(
            {Scratch::floats(in_lanes(job.longest), in_lanes(net.hidden / net.heads)),
             static_cast<size_t>(ROW_BLOCK) * narrow.depth / narrow.groups,
             static_cast<size_t>(CHUNK) * (job.words ? job.words->width : 0)}
        );
        scratch_floats = (own + 15) / 16 * 16;
        scratch = floats(threads * scratch_floats);
    }
    size_t scratch_floats;
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

    void mix(const AttentionHalf& attention) {
        const int panels = attention.qkv.columns / PANEL, stride = attention.qkv.columns;
        const int blocks = (tokens + ROW_BLOCK - 1) / ROW_BLOCK;
        team.share(panels * blocks, [&](int task) {
            const int panel = task / blocks, row = task % blocks * ROW_BLOCK;
            multiply(attention.qkv, panel, space.small, row, std::min(tokens, row + ROW_BLOCK), {space.qkv, stride});
        });
        team.share(static_cast<int>(numbers.size()) * net.heads, [&](int task) {
            const int at = starts[task / net.heads], length = starts[task / net.heads + 1] - at;
            const int channels = net.hidden / net.heads;
            const int number = task % net.heads, place = number * channels;
            const Head head(
                space.qkv + static_cast<size_t>(at) * stride + place, stride, net.hidden, channels, length, own
            );
            const float* bias = job.bias ? job.bias + static_cast<size_t>(number) * job.longest * job.longest : nullptr;
            head(bias, job.longest, space.context + static_cast<size_t>(at) * hidden + place, hidden);
        });
    }

    // Of the last step only the wanted rows go on: they are moved to the front.
    int choose(int start) {
        const int count = job.look ? numbers.size() : wanted_of(job, start, start + tokens);
        // in memory that is free now: that of q, k and v
        team.share(1, [&](int) {
            int to = 0;
            const auto take = [&](size_t from) {
                std::memcpy(space.qkv + static_cast<size_t>(to) * hidden, space.states + from * hidden, 4 * hidden);
                space.small.set(to++, 0, space.context + from * hidden, net.hidden);
            };
            for (int i = 0; job.look && i < count; ++i) take(starts[i]);
            for (int i = 0; !job.look && i < job.wanted; ++i)
                if (job.rows[i] >= start && job.rows[i] < start + tokens) take(job.rows[i] - start);
            std::memcpy(space.states, space.qkv, sizeof(float) * count * hidden);
        });
        return count;
    }

    // sums = states + x @ weight + bias
    void narrow(const Product& product, const Rounded& x, int rows) {
        const int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
        team.share(hidden / PANEL * blocks, [&](int task) {
            const int panel = task / blocks, row = task % blocks * ROW_BLOCK;
            multiply(product, panel, x, row, std::min(rows, row + ROW_BLOCK), {space.sums, hidden, space.states});
        });
    }

    void widen(const Product& product, int rows) {
        const int groups = space.wide.groups, columns = product.columns / groups;
        const int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
        team.share(groups * blocks, [&](int task) {
            const int group = task / blocks, row = task % blocks * ROW_BLOCK, last = std::min(rows, row + ROW_BLOCK);
            const Answer answer{own, columns, nullptr, row, group * columns};
            for (int panel = group * columns / PANEL; panel < (group + 1) * columns / PANEL; ++panel)
                multiply(product, panel, space.small, row, last, answer);
            for (int r = row; r < last; ++r) {
                float* from = own + static_cast<size_t>(r - row) * columns;
                for (int i = 0; i < columns; i += LANES) store(from + i, bent(load(from + i), net.activation));
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
                std::memmove(space.small.values + to * hidden, space.small.values + from * hidden, rows * hidden);
                std::memmove(space.small.scale + to, space.small.scale + from, sizeof(float) * rows);
                std::memmove(space.small.zero + to, space.small.zero + from, sizeof(float) * rows);
            }
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
    for (int first = 0, last; first < call.job.sequences; first = last) run(first, last = group_end(call.job, first));
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

int litebert_panel() { return PANEL; }

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
