// Dot product and LayerNorm in float32.
#pragma once

#include <cmath>

#include "simd.h"
#include "structs.h"

namespace {

float dot(const float* a, const float* b, int count) {
    Floats sums[4] = {};
    int i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int v = 0; v < 4; ++v) sums[v] += load(a + i + v * LANES) * load(b + i + v * LANES);
    float total = reduce_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (; i < count; ++i) total += a[i] * b[i];
    return total;
}

// In place; padding stays 0.
void layer_norm(float* row, int width, const LayerNorm& norm, float epsilon) {
    const int vector_width = width / LANES * LANES;
    Floats total = broadcast(0.0f);
    for (int i = 0; i < vector_width; i += LANES) total += load(row + i);
    float mean = reduce_sum(total);
    for (int i = vector_width; i < width; ++i) mean += row[i];
    mean /= width;
    Floats squares = broadcast(0.0f);
    for (int i = 0; i < vector_width; i += LANES) {
        const Floats deviation = load(row + i) - mean;
        squares += deviation * deviation;
    }
    float variance = reduce_sum(squares);
    for (int i = vector_width; i < width; ++i) variance += (row[i] - mean) * (row[i] - mean);
    const float factor = 1.0f / std::sqrt(variance / width + epsilon);
    for (int i = 0; i < vector_width; i += LANES)
        store(row + i, (load(row + i) - mean) * factor * load(norm.weight + i) + load(norm.bias + i));
    for (int i = vector_width; i < width; ++i) row[i] = (row[i] - mean) * factor * norm.weight[i] + norm.bias[i];
}

}  // namespace
