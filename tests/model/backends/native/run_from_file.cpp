// Runs one batch of the native engine from a file to a file, for CPUs that are emulated.
#include "interface.cpp"

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* file;

// The next array: its size in bytes, then its bytes. Null if it is empty.
template <typename T>
const T* next() {
    int64_t bytes;
    if (std::fread(&bytes, 8, 1, file) != 1) std::exit(2);
    void* memory = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (std::fread(memory, 1, bytes, file) != static_cast<size_t>(bytes)) std::exit(3);
    return bytes ? static_cast<const T*>(memory) : nullptr;
}

QuantizedLinear next_linear() {
    const int8_t* weight = next<int8_t>();
    const float *scale = next<float>(), *bias = next<float>(), *column_sums = next<float>();
    const int32_t* size = next<int32_t>();
    return {weight, scale, bias, column_sums, size[0], size[1], size[2]};
}

LayerNorm next_norm() {
    const float* weight = next<float>();
    return {weight, next<float>()};
}

}  // namespace

int main(int, char** names) {
    file = std::fopen(names[1], "rb");
    const QuantizedLinear qkv = next_linear(), out = next_linear(), up = next_linear(), down = next_linear();
    const LayerNorm first = next_norm(), second = next_norm();
    const AttentionBlock attention{qkv, out, first};
    const FeedForwardBlock feed_forward{up, down, second};
    const int32_t* size = next<int32_t>();  // of the network, then of the batch
    const Network network{&attention, &feed_forward, size[0], size[1], size[2], size[3], *next<float>()};
    Batch batch{};
    batch.input = next<float>(), batch.sequence_starts = next<int32_t>(), batch.step_blocks = next<int32_t>();
    batch.step_embeddings = next<float>(), batch.attention_bias = next<float>(), batch.wanted_rows = next<int64_t>();
    batch.sequences = size[4], batch.steps = size[5], batch.max_length = size[6], batch.wanted_count = size[7];
    const int rows = batch.wanted_rows ? batch.wanted_count : batch.sequence_starts[batch.sequences];
    const size_t count = static_cast<size_t>(rows) * network.hidden;
    batch.output = static_cast<float*>(std::malloc(4 * count + 4));
    batch.workspace = static_cast<uint8_t*>(std::aligned_alloc(64, litebert_workspace_size(&network, &batch, 1)));
    litebert_run(&network, &batch, 1, nullptr, nullptr);
    file = std::fopen(names[2], "wb");
    std::fwrite(batch.output, 4, count, file);
    std::fclose(file);
}
