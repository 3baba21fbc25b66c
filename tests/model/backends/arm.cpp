// One question to native.cpp, from a file to a file: for CPUs that are not here but can be emulated.
#include "native.cpp"

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* file;

// The next array, with its bytes before it; none where it has none.
template <typename T>
const T* next() {
    int64_t bytes;
    if (std::fread(&bytes, 8, 1, file) != 1) std::exit(2);
    void* memory = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (std::fread(memory, 1, bytes, file) != static_cast<size_t>(bytes)) std::exit(3);
    return bytes ? static_cast<const T*>(memory) : nullptr;
}

Product next_product() {
    const int8_t* weight = next<int8_t>();
    const float *scale = next<float>(), *bias = next<float>(), *sums = next<float>();
    const int32_t* size = next<int32_t>();
    return {weight, scale, bias, sums, size[0], size[1], size[2]};
}

Norm next_norm() {
    const float* weight = next<float>();
    return {weight, next<float>()};
}

}  // namespace

int main(int, char** names) {
    file = std::fopen(names[1], "rb");
    const Product qkv = next_product(), out = next_product(), widen = next_product(), narrow = next_product();
    const Norm first = next_norm(), second = next_norm();
    const AttentionHalf attention{qkv, out, first};
    const FeedForwardHalf ffn{widen, narrow, second};
    const int32_t* size = next<int32_t>();  // hidden, heads, bundle, activation, sequences, steps, longest, wanted
    const Network net{&attention, &ffn, size[0], size[1], size[2], size[3], *next<float>()};
    Job job{};
    job.given = next<float>(), job.starts = next<int32_t>(), job.blocks = next<int32_t>();
    job.added = next<float>(), job.bias = next<float>(), job.rows = next<int64_t>();
    job.sequences = size[4], job.steps = size[5], job.longest = size[6], job.wanted = size[7];
    const size_t count = static_cast<size_t>(job.rows ? job.wanted : job.starts[job.sequences]) * net.hidden;
    job.found = static_cast<float*>(std::malloc(4 * count + 4));
    job.workspace = static_cast<uint8_t*>(std::aligned_alloc(64, litebert_workspace(&net, &job, 1)));
    litebert_run(&net, &job, 1, nullptr, nullptr);
    file = std::fopen(names[2], "wb");
    std::fwrite(job.found, 4, count, file);
    std::fclose(file);
}
