// Self-attention of one head over one sequence.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "activations.h"
#include "amx.h"
#include "elements.h"

namespace {

// (rows, columns) = (rows, depth) @ (depth, columns), depth in words, at most KERNEL_ROWS rows.
#if defined(USE_AMX)
void element_matmul(const Word* a, const Word* b, int depth, float* out, int columns, int rows) {
    for (int column = 0; column < columns; column += 2 * TILE)
        multiply_tile_block<WordType::BF16>(
            a, b + column_offset(column, 0, depth, 0), depth, depth, out + column, columns, rows, [](int) {}
        );
}
#else
template <int V>
void element_kernel(const Word* a, const Word* b, int depth, float* out, int columns) {
    Floats sums[KERNEL_ROWS][V] = {};
    for (int d = 0; d < depth; ++d)
        for (int r = 0; r < KERNEL_ROWS; ++r)
            for (int v = 0; v < V; ++v) {
                const Word* words = b + column_offset(v * LANES, d, depth, columns);
                sums[r][v] = add_word_products(sums[r][v], a[row_offset(r, d, depth)], words);
            }
    for (int r = 0; r < KERNEL_ROWS; ++r)
        for (int v = 0; v < V; ++v) store(out + static_cast<size_t>(r) * columns + v * LANES, sums[r][v]);
}

void element_matmul(const Word* a, const Word* b, int depth, float* out, int columns, int) {
    int column = 0;
    for (; column + PANEL <= columns; column += PANEL)
        element_kernel<PANEL_VECTORS>(a, b + column, depth, out + column, columns);
    for (; column < columns; column += LANES) element_kernel<1>(a, b + column, depth, out + column, columns);
}
#endif

// Writes exp(scale * score - maximum) of the first `count` scores, and 0 after them, to row `row` of `to`, a matrix of
// `words` words per row. Returns the factor that makes them add up to 1.
float softmax(const float* scores, int count, float scale, int row, int words, Word* to) {
    const int width = words * ELEMENTS_PER_WORD;
    const auto score = [=](int i) {
        const Floats values = load(scores + i);
        return i + LANES <= count ? values : i + LANE_INDEX < count ? values : broadcast(-1e30f);
    };
    Floats largest = score(0);
    for (int i = LANES; i < width; i += LANES) largest = maximum(largest, score(i));
    const float scale_log2 = scale * LOG2_E, offset = reduce_max(largest) * scale_log2;
    Floats total = broadcast(0.0f);
    for (int i = 0; i < width; i += LANES) {
        const Floats exponential = vector_exp2(score(i) * scale_log2 - offset);
        store(reinterpret_cast<Element*>(to + row_offset(row, i / ELEMENTS_PER_WORD, words)), exponential);
        total += exponential;
    }
    return 1.0f / reduce_sum(total);
}

// The memory of one thread: a sequence padded to `length` tokens, a head padded to `channels`.
struct AttentionScratch {
    Word *keys, *values;             // of the whole sequence
    Word *queries, *probabilities;   // of KERNEL_ROWS tokens
    float* scores;                   // of KERNEL_ROWS tokens; later their context
    Element* padded_rows;            // two rows of channels

    AttentionScratch(float* memory, size_t length, size_t channels) {
        auto take = [&](size_t count) { return (memory += count) - count; };
        auto take_words = [&](size_t count) { return reinterpret_cast<Word*>(take(count / ELEMENTS_PER_WORD)); };
        keys = take_words(channels * length), values = take_words(length * channels);
        queries = take_words(KERNEL_ROWS * channels), probabilities = take_words(KERNEL_ROWS * length);
        scores = take(KERNEL_ROWS * std::max(length, channels));
        padded_rows = reinterpret_cast<Element*>(take(2 * channels));
    }
    static size_t floats(size_t length, size_t channels) {
        return 2 * length * channels + KERNEL_ROWS * (length + channels + std::max(length, channels)) + 2 * channels;
    }
};

class AttentionHead {
  public:
    // `queries` is the query of the first token; its key and its value follow after `width` and 2 * `width` elements,
    // the next token after `stride`.
    AttentionHead(const Element* queries, int stride, int width, int channels, int length, float* memory)
        : queries(queries),
          stride(stride),
          width(width),
          channels(channels),
          length(length),
          padded_length(padded_to_lanes(length)),
          padded_channels(padded_to_lanes(channels)),
          scratch(memory, padded_length, padded_channels) {
        std::fill_n(scratch.padded_rows, 2 * padded_channels, Element{});
    }

    // `bias`: added to the scores, (length, length), or null.
    void operator()(const float* bias, int bias_stride, float* context, int context_stride) const {
        pack_keys_and_values();
        const float scale = 1.0f / std::sqrt(static_cast<float>(channels));
        float normalizers[KERNEL_ROWS];
        for (int first = 0; first < length; first += KERNEL_ROWS) {
            const int rows = std::min(KERNEL_ROWS, length - first);
            for (int r = 0; r < rows; ++r)
                for (int d = 0; d < padded_channels; d += LANES)
                    std::memcpy(
                        scratch.queries + row_offset(r, d / ELEMENTS_PER_WORD, words_in(padded_channels)),
                        padded_row(first + r, QUERY, 0) + d, LANES * sizeof(Element)
                    );
            element_matmul(
                scratch.queries, scratch.keys, words_in(padded_channels), scratch.scores, padded_length, rows
            );
            for (int r = 0; r < rows; ++r) {
                float* row = scratch.scores + static_cast<size_t>(r) * padded_length;
                for (int j = 0; bias && j < length; ++j)
                    row[j] += bias[static_cast<size_t>(first + r) * bias_stride + j] / scale;
                normalizers[r] = softmax(row, length, scale, r, words_in(padded_length), scratch.probabilities);
            }
            element_matmul(
                scratch.probabilities, scratch.values, words_in(padded_length), scratch.scores, padded_channels, rows
            );
            for (int r = 0; r < rows; ++r) {
                float* to = context + static_cast<size_t>(first + r) * context_stride;
                for (int d = 0; d < channels; ++d) to[d] = scratch.scores[r * padded_channels + d] * normalizers[r];
            }
        }
    }

  private:
    enum Part { QUERY, KEY, VALUE };

    const Element* const queries;
    const int stride, width, channels, length, padded_length, padded_channels;
    const AttentionScratch scratch;

    // A token's query, key or value followed by zeros; all zeros after the last token. Padded copies go to one of two
    // slots.
    const Element* padded_row(int token, Part part, int slot) const {
        const Element* row = queries + static_cast<size_t>(token) * stride + part * width;
        if (token < length && channels == padded_channels) return row;
        Element* padded = scratch.padded_rows + slot * padded_channels;
        if (token < length)
            std::memcpy(padded, row, sizeof(Element) * channels);
        else
            std::fill_n(padded, channels, Element{});
        return padded;
    }

    // Keys by channel, values by token.
    void pack_keys_and_values() const {
        const int key_words = words_in(padded_channels), value_words = words_in(padded_length);
        for (int token = 0; token < padded_length; ++token) {
            const Word* key = reinterpret_cast<const Word*>(padded_row(token, KEY, 0));
            for (int d = 0; d < key_words; d += TILE_WORDS) {
                Word* to = scratch.keys + column_offset(token, d, key_words, padded_length);
                for (int i = 0; i < TILE_WORDS; ++i) to[i * TILE_COLUMNS] = key[d + i];
            }
        }
        for (int word = 0; word < value_words; ++word) {
            const Element* first = padded_row(ELEMENTS_PER_WORD * word, VALUE, 0);
            const Element* second = ELEMENTS_PER_WORD == 2 ? padded_row(2 * word + 1, VALUE, 1) : first;
            for (int d = 0; d < padded_channels; d += LANES)
                interleave(
                    first + d, second + d, scratch.values + column_offset(d, word, value_words, padded_channels)
                );
        }
    }
};

}  // namespace
