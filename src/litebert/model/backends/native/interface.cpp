// The int8 inference engine for CPUs: an ALBERT's passes in one call. build.py compiles this file for the CPU at hand.
//
// Weights are int8 with a scale per row. Activations are unsigned 8-bit with a scale and a zero point per token, and
// per group of columns in the feed-forward block. Between matrix products everything is float32. Widths are padded to
// panels of columns with zero weights.
//
// The threads are those of torch's OpenMP library.
//
// Shapes: T tokens in rows, H hidden, E embedding, V vocabulary, N heads.

#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runner.h"

namespace {

struct ThreadArguments {
    const Network& network;
    const Batch& batch;
    ThreadTeam& team;
    int (*team_size)();
    int group_rows;  // of the largest group
    std::atomic<int> started{0};
};

void run_thread(void* pointer) {
    ThreadArguments& arguments = *static_cast<ThreadArguments*>(pointer);
    const Batch& batch = arguments.batch;
    const int thread = arguments.started.fetch_add(1);
    if (arguments.team.size > 1) arguments.team.size = arguments.team_size();  // may be fewer than requested
    Runner run_group(arguments.network, batch, arguments.team, arguments.group_rows, thread);
#if defined(USE_AMX)
    const TileConfig config;
    // The compiler assumes that _tile_loadconfig reads 8 of its bytes and may not write the others.
    __asm__ volatile("" : : "m"(config));
    _tile_loadconfig(&config);
#endif
    for (int first = 0, last; first < batch.sequences; first = last) run_group(first, last = group_end(batch, first));
#if defined(USE_AMX)
    _tile_release();
#endif
}

}  // namespace

extern "C" {

// layout: columns per panel; columns and words per tile.
void litebert_layout(int32_t* layout) { layout[0] = PANEL, layout[1] = TILE_COLUMNS, layout[2] = TILE_WORDS; }

// The size of a structure of structs.h by its name; 0 if there is none.
size_t litebert_struct_size(const char* name) {
    constexpr struct {
        const char* name;
        size_t size;
    } STRUCTS[] = {
        {"QuantizedLinear", sizeof(QuantizedLinear)}, {"LayerNorm", sizeof(LayerNorm)},
        {"AttentionBlock", sizeof(AttentionBlock)},   {"FeedForwardBlock", sizeof(FeedForwardBlock)},
        {"Network", sizeof(Network)},                 {"Embeddings", sizeof(Embeddings)},
        {"EarlyExit", sizeof(EarlyExit)},             {"Pooling", sizeof(Pooling)},
        {"Batch", sizeof(Batch)},
    };
    for (const auto& entry : STRUCTS)
        if (!std::strcmp(entry.name, name)) return entry.size;
    return 0;
}

// Whether this process may use the instructions that this was compiled for. Linux grants AMX tiles on request.
bool litebert_supported() {
#if defined(USE_AMX)
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return true;
#endif
}

size_t litebert_workspace_size(const Network* network, const Batch* batch, int threads) {
    return Workspace(nullptr, max_group_rows(*batch), threads, *network, *batch).bytes;
}

// Whether every id of a batch with embeddings is in its table.
bool litebert_validate_ids(const Batch* batch) {
    const Embeddings& tables = *batch->embeddings;
    const int tokens = batch->sequence_starts[batch->sequences];
    const auto all_below = [=](const int64_t* ids, int size) {
        return std::all_of(ids, ids + tokens, [=](int64_t id) { return 0 <= id && id < size; });
    };
    return all_below(tables.token_ids, tables.vocab_size) && all_below(tables.token_type_ids, tables.type_vocab_size);
}

// `parallel` and `team_size`: GOMP_parallel and omp_get_num_threads of the OpenMP library that torch uses.
void litebert_run(
    const Network* network, const Batch* batch, int threads,
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned), int (*team_size)()
) {
    ThreadTeam team{threads};
    ThreadArguments arguments{*network, *batch, team, team_size, max_group_rows(*batch)};
    if (threads == 1)
        run_thread(&arguments);
    else
        parallel(run_thread, &arguments, threads, 0);
}

}  // extern "C"
