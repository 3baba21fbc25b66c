// The encoder: embeddings, then attention and feed-forward block by block, then what the caller wants of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "vector_ops.h"
#include "workspace.h"

namespace {

constexpr int PANEL_RUNS_PER_THREAD = 4;  // with AMX, a task multiplies a run of neighbouring panels

// What one thread of a team computes. All threads run the same code on the same workspace.
class Runner {
  public:
    Runner(const Network& network, const Batch& batch, ThreadTeam& team, int group_rows, int thread)
        : network(network),
          batch(batch),
          team(team),
          hidden(padded_to_panels(network.hidden)),
          space(batch.workspace, group_rows, team.size, network, batch),
          scratch(space.thread_scratch + thread * space.scratch_floats) {}

    // Takes sequences first to last through all steps.
    void operator()(int first, int last) {
        begin_group(first, last);
        for (int step = 0, exit = 0; step < batch.steps && !sequences.empty(); ++step) {
            const AttentionBlock& attention = network.attention[batch.step_blocks[2 * step]];
            const FeedForwardBlock& feed_forward = network.feed_forward[batch.step_blocks[2 * step + 1]];
            const bool is_last = step == batch.steps - 1;
            const bool only_wanted = (batch.wanted_rows || batch.early_exit) && is_last;
            int rows = tokens;
            attend(attention);
            if (only_wanted)
                rows = select_wanted_rows();
            else
                team.parallel_for_rows(rows, [&](int row) {
                    space.quantized_states.quantize(row, 0, row_of(space.context, row), network.hidden);
                });
            add_to_states(attention.out, space.quantized_states, rows);
            normalize_rows(attention.norm, rows, batch.steps);
            feed_forward_up(feed_forward.up, rows);
            add_to_states(feed_forward.down, space.quantized_intermediate, rows);
            normalize_rows(feed_forward.norm, rows, step + 1);
            if (batch.early_exit && step + 1 == batch.early_exit->exit_steps[exit])
                evaluate_exit(++exit, is_last);
            else if (is_last && batch.pooling)
                write_pooled();
            else if (is_last)
                write_output(rows, only_wanted);
        }
    }

  private:
    const Network& network;
    const Batch& batch;
    ThreadTeam& team;
    const int hidden;  // padded
    const Workspace space;
    float* const scratch;
    int group_start = 0, tokens = 0;     // of the group: its first token in the batch, how many are left
    std::vector<int> starts, sequences;  // of the sequences that are left: their first token here, their number

    float* row_of(float* matrix, size_t row) const { return matrix + row * hidden; }

    void begin_group(int first, int last) {
        group_start = batch.sequence_starts[first];
        tokens = batch.sequence_starts[last] - group_start;
        starts.clear(), sequences.clear();
        for (int s = first; s <= last; ++s) starts.push_back(batch.sequence_starts[s] - group_start);
        for (int s = first; s < last; ++s) sequences.push_back(s);
        team.parallel_for((tokens + ROW_CHUNK - 1) / ROW_CHUNK, [&](int chunk) {
            const int from = chunk * ROW_CHUNK, to = std::min(tokens, from + ROW_CHUNK);
            if (batch.embeddings) embed(from, to);
            for (int row = from; row < to; ++row) {
                float* state = row_of(space.states, row);
                if (batch.input)
                    std::memcpy(
                        state, batch.input + static_cast<size_t>(group_start + row) * network.hidden,
                        4 * network.hidden
                    );
                std::fill(state + network.hidden, state + hidden, 0.0f);
                std::fill_n(row_of(space.context, row), hidden, 0.0f);
                prepare_step(row, 0);
            }
        });
    }

    // States of rows first to last, at most ROW_CHUNK, from their token ids.
    void embed(int first, int last) {
        const Embeddings& tables = *batch.embeddings;
        const size_t width = tables.embedding_size;
        for (int row = first; row < last; ++row) {
            const int sequence = std::upper_bound(starts.begin(), starts.end(), row) - starts.begin() - 1;
            const float *word = tables.word_table + tables.token_ids[group_start + row] * width,
                        *type = tables.type_table + tables.token_type_ids[group_start + row] * width,
                        *position = tables.position_table + (row - starts[sequence]) * width;
            float* to = scratch + (row - first) * width;
            for (size_t i = 0; i < width; ++i) to[i] = word[i] + type[i] + position[i];
            layer_norm(to, tables.embedding_size, tables.norm, network.epsilon);
        }
        for (int column = 0; column < hidden; column += PANEL) {
            Floats sums[ROW_CHUNK][PANEL_VECTORS];
            for (int r = 0; r < ROW_CHUNK; ++r)
                for (int v = 0; v < PANEL_VECTORS; ++v) sums[r][v] = load(tables.projection_bias + column + v * LANES);
            for (size_t k = 0; k < width; ++k)
                for (int v = 0; v < PANEL_VECTORS; ++v) {
                    const Floats weight = load(tables.projection_weight + column * width + k * PANEL + v * LANES);
                    for (int r = 0; r < ROW_CHUNK; ++r) sums[r][v] += weight * scratch[r * width + k];
                }
            for (int row = first; row < last; ++row)
                for (int v = 0; v < PANEL_VECTORS; ++v)
                    store(row_of(space.states, row) + column + v * LANES, sums[row - first][v]);
        }
    }

    // Adds the embedding of a step to a row of states, and quantizes it. batch.steps stands for none.
    void prepare_step(int row, int step) {
        float* state = row_of(space.states, row);
        if (batch.step_embeddings && step < batch.steps)
            for (int i = 0; i < network.hidden; ++i)
                state[i] += batch.step_embeddings[static_cast<size_t>(step) * network.hidden + i];
        space.quantized_states.quantize(row, 0, state, network.hidden);
    }

    // A thread computes q, k and v of a bundle of heads and attends with them while they are in its cache.
    void attend(const AttentionBlock& attention) {
        const int channels = network.hidden / network.heads, bundles = bundles_of(network);
        const int stride = attention.qkv.columns / bundles, width = stride / 3, count = sequences.size();
        const int parts = std::min(count, (2 * team.size + bundles - 1) / bundles);
        team.parallel_for(bundles * parts, [&](int task) {
            const int bundle = task / parts, part = task % parts;
            const int first = count * part / parts, last = count * (part + 1) / parts;
            const int row = starts[first] / TILE_ROWS * TILE_ROWS;
            Element* const qkv = reinterpret_cast<Element*>(scratch);
            float* const memory = scratch + static_cast<size_t>(space.rows) * stride * sizeof(Element) / sizeof(float);
            const MatmulOutput<Element> output{qkv, stride, nullptr, row, bundle * stride};
            const int panel = bundle * stride / PANEL;
            int8_matmul(
                attention.qkv, panel, panel + stride / PANEL, space.quantized_states, row, starts[last], output
            );
            const int first_head = bundle * network.heads_per_bundle;
            for (int s = first; s < last; ++s)
                for (int h = 0; h < std::min(network.heads_per_bundle, network.heads - first_head); ++h) {
                    const int start = starts[s], number = first_head + h;
                    const AttentionHead head(
                        qkv + static_cast<size_t>(start - row) * stride + h * channels, stride, width, channels,
                        starts[s + 1] - start, memory
                    );
                    const size_t bias_size = static_cast<size_t>(batch.max_length) * batch.max_length;
                    const float* bias = batch.attention_bias ? batch.attention_bias + number * bias_size : nullptr;
                    head(bias, batch.max_length, row_of(space.context, start) + number * channels, hidden);
                }
        });
    }

    // In the last step only some rows go on: moves them to the front, with `sums` as a buffer. Returns how many.
    int select_wanted_rows() {
        const int group_end = group_start + tokens;
        const int count =
            batch.early_exit ? sequences.size() : count_wanted_rows(batch, group_start, group_end);
        team.parallel_for(1, [&](int) {
            int to = 0;
            const auto take = [&](size_t from) {
                std::memcpy(row_of(space.sums, to), row_of(space.states, from), 4 * hidden);
                space.quantized_states.quantize(to++, 0, row_of(space.context, from), network.hidden);
            };
            for (int i = 0; batch.early_exit && i < count; ++i) take(starts[i]);
            for (int i = 0; !batch.early_exit && i < batch.wanted_count; ++i)
                if (batch.wanted_rows[i] >= group_start && batch.wanted_rows[i] < group_end)
                    take(batch.wanted_rows[i] - group_start);
            std::memcpy(space.states, space.sums, sizeof(float) * count * hidden);
        });
        return count;
    }

    // sums = states + x @ weight + bias
    void add_to_states(const QuantizedLinear& linear, const QuantizedRows& x, int rows) {
        const MatmulOutput<float> output{space.sums, hidden, space.states};
        const int panels = linear.columns / PANEL;
#if defined(USE_AMX)
        if (!rows) return;  // no row of this group is wanted
        const int runs = std::min(panels, PANEL_RUNS_PER_THREAD * team.size);
        team.parallel_for(runs, [&](int run) {
            int8_matmul(linear, panels * run / runs, panels * (run + 1) / runs, x, 0, rows, output);
        });
#else
        const int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
        team.parallel_for(panels * blocks, [&](int task) {
            const int panel = task / blocks, row = task % blocks * ROW_BLOCK;
            int8_matmul(linear, panel, panel + 1, x, row, std::min(rows, row + ROW_BLOCK), output);
        });
#endif
    }

    // One quantization group of the intermediate columns after the other: multiply, activate, quantize.
    void feed_forward_up(const QuantizedLinear& up, int rows) {
        const int groups = space.quantized_intermediate.groups, columns = up.columns / groups;
        const int blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
        team.parallel_for(groups * blocks, [&](int task) {
            const int group = task / blocks, row = task % blocks * ROW_BLOCK, last = std::min(rows, row + ROW_BLOCK);
            const MatmulOutput<float> output{scratch, columns, nullptr, row, group * columns};
            int8_matmul(
                up, group * columns / PANEL, (group + 1) * columns / PANEL, space.quantized_states, row, last, output
            );
            for (int r = row; r < last; ++r) {
                float* values = scratch + static_cast<size_t>(r - row) * columns;
                activate(values, columns, network.activation);
                space.quantized_intermediate.quantize(r, group, values, columns);
            }
        });
    }

    // states = LayerNorm(sums), prepared for a step.
    void normalize_rows(const LayerNorm& norm, int rows, int step) {
        team.parallel_for_rows(rows, [&](int row) {
            float* to = row_of(space.states, row);
            std::memcpy(to, row_of(space.sums, row), sizeof(float) * hidden);
            layer_norm(to, network.hidden, norm, network.epsilon);
            prepare_step(row, step);
        });
    }

    // The classifier's logits for every sequence. Those above the threshold exit. `packed`: the states hold only the
    // first row of each sequence.
    void evaluate_exit(int exit, bool packed) {
        const EarlyExit& head = *batch.early_exit;
        const int count = sequences.size(), block = 64;
        team.parallel_for((network.hidden + block - 1) / block, [&](int task) {
            for (int s = 0; s < count; ++s) {
                const float* state = row_of(space.states, packed ? s : starts[s]);
                float* pooled = row_of(space.context, s);  // free until the next step
                for (int i = task * block; i < std::min(network.hidden, (task + 1) * block); ++i)
                    pooled[i] = std::tanh(
                        dot(head.pooler_weight + static_cast<size_t>(i) * network.hidden, state, network.hidden) +
                        head.pooler_bias[i]
                    );
            }
        });
        team.parallel_for(count, [&](int s) {
            float* logits = head.logits + static_cast<size_t>(sequences[s]) * head.classes;
            for (int c = 0; c < head.classes; ++c)
                logits[c] = dot(head.head_weight + static_cast<size_t>(c) * network.hidden, row_of(space.context, s),
                                network.hidden) + head.head_bias[c];
            const float largest = *std::max_element(logits, logits + head.classes);
            float total = 0;
            for (int c = 0; c < head.classes; ++c) total += std::exp(logits[c] - largest);
            head.exit_of[sequences[s]] = exit == head.exits || 1.0f / total >= head.threshold ? exit : -exit;
        });
        if (exit < head.exits) compact();
    }

    // Removes the sequences that have exited: the others are a shorter batch.
    void compact() {
        const std::vector<int> old_starts = starts;
        std::vector<int> remaining;
        for (size_t s = 0; s < sequences.size(); ++s)
            if (batch.early_exit->exit_of[sequences[s]] < 0) remaining.push_back(s);
        if (remaining.size() == sequences.size()) return;
        starts.assign(1, 0);
        for (size_t to = 0; to < remaining.size(); ++to) {
            sequences[to] = sequences[remaining[to]];
            starts.push_back(starts[to] + old_starts[remaining[to] + 1] - old_starts[remaining[to]]);
        }
        sequences.resize(remaining.size());
        tokens = starts.back();
        team.parallel_for(1, [&](int) {
            for (size_t s = 0; s < remaining.size(); ++s) {
                const size_t rows = starts[s + 1] - starts[s];
                std::memmove(
                    row_of(space.states, starts[s]), row_of(space.states, old_starts[remaining[s]]),
                    sizeof(float) * rows * hidden
                );
            }
        });
        team.parallel_for_rows(tokens, [&](int row) {
            space.quantized_states.quantize(row, 0, row_of(space.states, row), network.hidden);
        });
    }

    // The weighted mean of the states of each sequence, through the linear map.
    void write_pooled() {
        const Pooling& pooling = *batch.pooling;
        const int count = sequences.size(), panels = hidden / PANEL, block = 16;
        team.parallel_for(count * panels, [&](int task) {
            const int s = task / panels, column = task % panels * PANEL;
            float total = 0;
            Floats sums[PANEL_VECTORS] = {};
            for (int row = starts[s]; row < starts[s + 1]; ++row) {
                const int64_t id = batch.embeddings->token_ids[group_start + row];
                const float weight = pooling.token_weights ? pooling.token_weights[id] : 1.0f;
                total += weight;
                for (int v = 0; v < PANEL_VECTORS; ++v)
                    sums[v] += load(row_of(space.states, row) + column + v * LANES) * weight;
            }
            for (int v = 0; v < PANEL_VECTORS; ++v)
                store(row_of(space.sums, s) + column + v * LANES, sums[v] * (1.0f / std::max(total, 1e-9f)));
        });
        team.parallel_for((pooling.size + block - 1) / block, [&](int task) {
            for (int i = task * block; i < std::min(pooling.size, (task + 1) * block); ++i)
                for (int s = 0; s < count; ++s) {
                    const float* mean = row_of(space.sums, s);
                    const size_t row = static_cast<size_t>(i) * network.hidden;
                    pooling.output[static_cast<size_t>(sequences[s]) * pooling.size + i] =
                        pooling.weight ? dot(pooling.weight + row, mean, network.hidden) + pooling.bias[i] : mean[i];
                }
        });
    }

    void write_output(int rows, bool only_wanted) {
        const auto copy = [&](size_t to, size_t from) {
            std::memcpy(batch.output + to * network.hidden, row_of(space.states, from), 4 * network.hidden);
        };
        team.parallel_for(1, [&](int) {
            for (int row = 0; !only_wanted && row < rows; ++row) copy(group_start + row, row);
            for (int i = 0, from = 0; only_wanted && i < batch.wanted_count; ++i)
                if (batch.wanted_rows[i] >= group_start && batch.wanted_rows[i] < group_start + tokens) copy(i, from++);
        });
    }
};

}  // namespace
