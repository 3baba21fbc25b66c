// Vectors of LANES numbers and the instruction set they are compiled for: AVX-512, AVX2 or ARM NEON.
//
// All headers of this folder belong to one translation unit, interface.cpp. What they define has internal linkage, so
// that the compiler may inline it.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include <cstdint>

namespace {

// SIMD_LANES: float32 numbers per register. PANEL_VECTORS x KERNEL_ROWS: registers that accumulate one block of a
// matrix product; the rest hold weights and rows.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(NO_AVX512)
#define SIMD_LANES 16
#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && !defined(NO_AMX)
#define USE_AMX
constexpr int LANES = 16, PANEL_VECTORS = 4, KERNEL_ROWS = 32;  // a block of 2 x 2 AMX tiles
#else
constexpr int LANES = 16, PANEL_VECTORS = 4, KERNEL_ROWS = 6;  // 24 of 32 registers accumulate
#endif
#elif defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define SIMD_LANES 8
constexpr int LANES = 8, PANEL_VECTORS = 2, KERNEL_ROWS = 6;  // 12 of 16
#elif defined(__AVX2__) && defined(__FMA__)
#define SIMD_LANES 8
constexpr int LANES = 8, PANEL_VECTORS = 2, KERNEL_ROWS = 4;  // 8 of 16; the two halves of weights and rows take 6
#elif defined(__ARM_FEATURE_DOTPROD)
#define SIMD_LANES 4
constexpr int LANES = 4, PANEL_VECTORS = 4, KERNEL_ROWS = 6;  // 24 of 32
#else
#error "this CPU lacks the instructions for int8: AVX2 or newer on x86, the dot product extension on ARM"
#endif

#if defined(__AVX512BF16__) && SIMD_LANES == 16
#define USE_BF16  // attention multiplies pairs of bfloat16
#endif

typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline void store(float* to, Floats values) { *reinterpret_cast<Floats*>(to) = values; }
inline Floats broadcast(float value) { return Floats{} + value; }

#if SIMD_LANES == 16
constexpr Ints LANE_INDEX = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif SIMD_LANES == 8
constexpr Ints LANE_INDEX = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr Ints LANE_INDEX = {0, 1, 2, 3};
#endif

// `dot4`: four bytes of an activation row times four bytes of each of LANES weight columns, added to `sums`. A CPU that
// multiplies only signed bytes reads activations as DOT4_OFFSET less than they are.
#if SIMD_LANES == 16
constexpr float DOT4_OFFSET = 0;
inline Floats maximum(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
inline Floats minimum(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
inline Floats approximate_reciprocal(Floats x) { return (Floats)_mm512_rcp14_ps((__m512)x); }
inline void spin_pause() { _mm_pause(); }
inline Ints dot4(Ints sums, Ints row, Ints weights) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)row, (__m512i)weights);
}
#elif SIMD_LANES == 8
constexpr float DOT4_OFFSET = 0;
inline Floats maximum(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
inline Floats minimum(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
inline Floats approximate_reciprocal(Floats x) { return (Floats)_mm256_rcp_ps((__m256)x); }
inline void spin_pause() { _mm_pause(); }
inline Ints dot4(Ints sums, Ints row, Ints weights) {
#if defined(__AVXVNNI__)
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)row, (__m256i)weights);
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return (Ints)_mm256_dpbusd_epi32((__m256i)sums, (__m256i)row, (__m256i)weights);
#else
    // Widen bytes 0 and 2, then 1 and 3, to 16 bits: _mm256_maddubs_epi16 would add pairs in 16 bits and overflow.
    const __m256i rows = (__m256i)row, columns = (__m256i)weights;
    const __m256i even = _mm256_madd_epi16(
        _mm256_and_si256(rows, _mm256_set1_epi16(0xff)), _mm256_srai_epi16(_mm256_slli_epi16(columns, 8), 8)
    );
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(rows, 8), _mm256_srai_epi16(columns, 8));
    return sums + (Ints)_mm256_add_epi32(even, odd);
#endif
}
#else
constexpr float DOT4_OFFSET = 128;
inline Floats maximum(Floats a, Floats b) { return (Floats)vmaxnmq_f32((float32x4_t)a, (float32x4_t)b); }
inline Floats minimum(Floats a, Floats b) { return (Floats)vminnmq_f32((float32x4_t)a, (float32x4_t)b); }
inline void spin_pause() { __asm__ volatile("yield"); }
inline Ints dot4(Ints sums, Ints row, Ints weights) {
    const uint8x16_t signed_row = veorq_u8((uint8x16_t)row, vdupq_n_u8(0x80));
    return (Ints)vdotq_s32((int32x4_t)sums, (int8x16_t)signed_row, (int8x16_t)weights);
}
#endif

#if SIMD_LANES == 16
inline Floats round_to_nearest(Floats x) {
    return (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Floats scale_by_power_of_2(Floats x, Floats power) { return (Floats)_mm512_scalef_ps((__m512)x, (__m512)power); }
#else
constexpr float ROUNDING_BIAS = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits for a fraction
inline Floats round_to_nearest(Floats x) { return x + ROUNDING_BIAS - ROUNDING_BIAS; }
inline Floats scale_by_power_of_2(Floats x, Floats power) {
    return (Floats)((Ints)x + ((Ints)(power + ROUNDING_BIAS) << 23));
}
#endif

// sum + a * b, rounded once. Written as a formula, the compiler would contract it in some places and not in others.
inline Floats fused_multiply_add(Floats sum, Floats a, Floats b) {
#if SIMD_LANES == 16
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif SIMD_LANES == 8
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#endif
}

#if SIMD_LANES == 4
inline Floats reciprocal(Floats x) { return 1.0f / x; }
#else
// One Newton step makes the estimate as exact as a division and is several times as fast.
inline Floats reciprocal(Floats x) {
    const Floats estimate = approximate_reciprocal(x);
    return estimate * (2.0f - x * estimate);
}
#endif

// Reductions over all lanes, by halves: ten times as fast as lane by lane.
#if SIMD_LANES == 4
inline float reduce_sum(Floats values) { return vaddvq_f32((float32x4_t)values); }
inline float reduce_max(Floats values) { return vmaxnmvq_f32((float32x4_t)values); }
#elif SIMD_LANES == 16
inline float reduce_sum(Floats values) { return _mm512_reduce_add_ps((__m512)values); }
inline float reduce_max(Floats values) { return _mm512_reduce_max_ps((__m512)values); }
#else
#define REDUCE_BY_HALVES(COMBINE)                                                     \
    const __m256 all = (__m256)values;                                                \
    __m128 half = COMBINE(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)); \
    half = COMBINE(half, _mm_movehl_ps(half, half));                                  \
    return _mm_cvtss_f32(COMBINE(half, _mm_shuffle_ps(half, half, 1)))
inline float reduce_sum(Floats values) { REDUCE_BY_HALVES(_mm_add_ps); }
inline float reduce_max(Floats values) { REDUCE_BY_HALVES(_mm_max_ps); }
#undef REDUCE_BY_HALVES
#endif
inline float reduce_min(Floats values) { return -reduce_max(-values); }

}  // namespace
