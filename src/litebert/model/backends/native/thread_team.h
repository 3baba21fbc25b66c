// Threads that work through the same stages: they take tasks from a counter and wait for each other between stages.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "simd.h"

namespace {

constexpr int ROW_CHUNK = 4;  // rows per task where a row is little work
constexpr int SPINS_BEFORE_YIELD = 2000;

struct ThreadTeam {
    std::atomic<int> size, next_task{0}, waiting{0}, stage{0};

    // Waits for the last thread; the task counter starts from 0 again.
    void barrier() {
        const int current = stage.load(std::memory_order_acquire);
        if (waiting.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
            waiting.store(0, std::memory_order_relaxed);
            next_task.store(0, std::memory_order_relaxed);
            stage.store(current + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; stage.load(std::memory_order_acquire) == current; ++spins)
            if (spins < SPINS_BEFORE_YIELD)
                spin_pause();
            else
                sched_yield();
    }

    template <typename Function>
    void parallel_for(int count, Function function) {
        for (int task; (task = next_task.fetch_add(1, std::memory_order_relaxed)) < count;) function(task);
        barrier();
    }

    template <typename Function>
    void parallel_for_rows(int count, Function function) {
        parallel_for((count + ROW_CHUNK - 1) / ROW_CHUNK, [&](int chunk) {
            for (int row = chunk * ROW_CHUNK; row < std::min(count, (chunk + 1) * ROW_CHUNK); ++row) function(row);
        });
    }
};

}  // namespace
