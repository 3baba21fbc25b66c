// How the memory of a call is divided.
#pragma once

#include <algorithm>

#include "attention.h"
#include "int8_matmul.h"
#include "structs.h"
#include "thread_team.h"

namespace {

constexpr int MAX_GROUP_TOKENS = 384;  // of sequences that take all steps together, so that they stay in the cache

inline int bundles_of(const Network& network) {
    return (network.heads + network.heads_per_bundle - 1) / network.heads_per_bundle;
}

// How many of the wanted rows lie between these.
int count_wanted_rows(const Batch& batch, int first, int last) {
    return std::count_if(batch.wanted_rows, batch.wanted_rows + batch.wanted_count, [=](int64_t row) {
        return first <= row && row < last;
    });
}

// The end of the group of sequences that starts with `first`.
int group_end(const Batch& batch, int first) {
    int last = first + 1;
    while (last < batch.sequences &&
           batch.sequence_starts[last + 1] - batch.sequence_starts[first] <= MAX_GROUP_TOKENS)
        ++last;
    return last;
}

// Rows of the largest group.
int max_group_rows(const Batch& batch) {
    int most = 0;
    for (int first = 0, last; first < batch.sequences; first = last) {
        last = group_end(batch, first);
        const int start = batch.sequence_starts[first], end = batch.sequence_starts[last];
        most = std::max({most, end - start, count_wanted_rows(batch, start, end)});
    }
    return most;
}

// The memory of a group of sequences. With null as its memory, only `bytes` is meaningful.
struct Workspace {
    float *states, *sums, *context, *thread_scratch;  // `sums`: states before LayerNorm
    QuantizedRows quantized_states, quantized_intermediate;
    size_t rows, bytes, scratch_floats;  // `rows` has room for a whole tile; `scratch_floats` is per thread

    Workspace(uint8_t* memory, int group_rows, int threads, const Network& network, const Batch& batch) {
        const QuantizedLinear& down = network.feed_forward[0].down;
        const size_t qkv_width = network.attention[0].qkv.columns / bundles_of(network);
        const size_t hidden = padded_to_panels(network.hidden);
        rows = group_rows + KERNEL_ROWS;
        bytes = 0;
        auto take = [&](size_t size) {
            uint8_t* place = memory + bytes;
            bytes += (size + 63) / 64 * 64;
            return place;
        };
        auto floats = [&](size_t count) { return reinterpret_cast<float*>(take(4 * count)); };
        states = floats(rows * hidden), sums = floats(rows * hidden), context = floats(rows * hidden);
        quantized_states = {take(rows * hidden), floats(rows), floats(rows), static_cast<int>(hidden), 1};
        quantized_intermediate = {
            take(rows * down.depth), floats(rows * down.groups), floats(rows * down.groups), down.depth, down.groups
        };
        const size_t attention_floats =
            rows * qkv_width * sizeof(Element) / sizeof(float) +
            AttentionScratch::floats(
                padded_to_lanes(batch.max_length), padded_to_lanes(network.hidden / network.heads)
            );
        const size_t needed = std::max(
            {attention_floats, static_cast<size_t>(ROW_BLOCK) * down.depth / down.groups,
             static_cast<size_t>(ROW_CHUNK) * (batch.embeddings ? batch.embeddings->embedding_size : 0)}
        );
        scratch_floats = (needed + 15) / 16 * 16;
        thread_scratch = floats(threads * scratch_floats);
    }
};

}  // namespace
