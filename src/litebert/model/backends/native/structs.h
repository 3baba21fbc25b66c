// The structures that structs.py fills in, field by field the same. At load, Python compares the size of each.
#pragma once

#include <cstdint>

extern "C" {

// An int8 matrix in panels of columns: (columns / TILE_COLUMNS, depth / 4 / TILE_WORDS, TILE_WORDS, TILE_COLUMNS, 4).
struct QuantizedLinear {
    const int8_t* weight;
    const float* scale;        // (columns,)
    const float* bias;         // (columns,)
    const float* column_sums;  // (groups, columns): the sum of the int8 weights, by quantization group of the input
    int32_t columns, depth, groups;
};

struct LayerNorm {
    const float *weight, *bias;
};

// The columns of `qkv` belong to one bundle of heads after the other: its queries, its keys, its values, each padded to
// whole panels.
struct AttentionBlock {
    QuantizedLinear qkv, out;
    LayerNorm norm;
};

struct FeedForwardBlock {
    QuantizedLinear up, down;
    LayerNorm norm;
};

struct Network {
    const AttentionBlock* attention;
    const FeedForwardBlock* feed_forward;
    int32_t hidden, heads, heads_per_bundle, activation;  // the heads of a bundle are multiplied together
    float epsilon;
};

// Embedding lookup, for a batch that is given as token ids.
struct Embeddings {
    const int64_t *token_ids, *token_type_ids;                       // (T,)
    const float *word_table, *type_table, *position_table;           // (V, E), (types, E), (positions, E)
    LayerNorm norm;                                                  // (E,)
    const float *projection_weight, *projection_bias;                // (columns / PANEL, E, PANEL), (columns,)
    int32_t embedding_size, vocab_size, type_vocab_size;
};

// Early exit: a classifier over the pooled first token, evaluated after some of the steps.
struct EarlyExit {
    const float *pooler_weight, *pooler_bias;  // (H, H), (H,)
    const float *head_weight, *head_bias;      // (classes, H), (classes,)
    const int32_t* exit_steps;                 // (exits,) steps after which it is evaluated; the last is the last step
    float* logits;                             // (sequences, classes)
    int32_t* exit_of;                          // (sequences,) exit taken, from 1; negative while a sequence goes on
    int32_t classes, exits;
    float threshold;  // probability of the likeliest class from which a sequence exits
};

// Mean pooling, for a batch of which only one vector per sequence is wanted.
struct Pooling {
    const float* token_weights;  // (V,) weight of a token in the mean, or null: all the same
    const float *weight, *bias;  // (size, H), (size,) linear map of the mean, or null
    float* output;               // (sequences, size)
    int32_t size;
};

// A batch and what is wanted of it. Sequences stand end to end, without padding.
struct Batch {
    const float* input;              // (T, H), or null with `embeddings`
    float* output;                   // (T, H), or (wanted_count, H), or null with `early_exit` or `pooling`
    const int32_t* sequence_starts;  // (sequences + 1,)
    const int32_t* step_blocks;      // (steps, 2): the attention and the feed-forward block of each step
    const float* step_embeddings;    // (steps, H) added before each step, or null
    const float* attention_bias;     // (N, max_length, max_length) by column, or null
    const int64_t* wanted_rows;      // (wanted_count,), or null: all
    uint8_t* workspace;
    const EarlyExit* early_exit;   // or null; excludes output, step_embeddings and wanted_rows
    const Embeddings* embeddings;  // or null
    const Pooling* pooling;        // or null; excludes wanted_rows, requires embeddings
    int32_t sequences, steps, max_length, wanted_count;
};

}  // extern "C"
