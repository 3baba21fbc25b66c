// The number format of attention: bfloat16 in pairs where the CPU multiplies them, twice as many at once, else float32.
#pragma once

#include "layout.h"

namespace {

#if defined(USE_BF16)
typedef uint16_t Element;
typedef uint32_t Word;
inline void store(Element* to, Floats values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)values));
}
// sums + the products of one word of a row with LANES words of columns.
inline Floats add_word_products(Floats sums, Word a, const Word* b) {
    return (Floats)_mm512_dpbf16_ps(
        (__m512)sums, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)_mm512_loadu_si512(b)
    );
}
// LANES words, each of an element of `first` and one of `second`.
inline void interleave(const Element* first, const Element* second, Word* to) {
    const auto widen = [](const Element* from) {
        return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    };
    _mm512_storeu_si512(to, _mm512_or_si512(widen(first), _mm512_slli_epi32(widen(second), 16)));
}
#else
typedef float Element;
typedef float Word;
inline Floats add_word_products(Floats sums, Word a, const Word* b) { return sums + load(b) * a; }
inline void interleave(const Element* first, const Element*, Word* to) { store(to, load(first)); }
#endif
constexpr int ELEMENTS_PER_WORD = sizeof(Word) / sizeof(Element);

#if defined(USE_AMX)
constexpr int WIDTH_MULTIPLE = ELEMENTS_PER_WORD * LANES;
#else
constexpr int WIDTH_MULTIPLE = LANES;
#endif
inline int padded_to_lanes(int width) { return (width + WIDTH_MULTIPLE - 1) / WIDTH_MULTIPLE * WIDTH_MULTIPLE; }
inline int words_in(int width) { return padded_to_lanes(width) / ELEMENTS_PER_WORD; }

}  // namespace
