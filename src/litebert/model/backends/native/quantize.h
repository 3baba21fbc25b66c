// Activations in int8.
#pragma once

#include <algorithm>
#include <cmath>

#include "layout.h"

namespace {

// Rows of unsigned 8-bit values. Each row, and each quantization group of its columns, has a scale and a zero point of
// its own, so that no text changes the answer to another and no calibration is needed.
struct QuantizedRows {
    uint8_t* values;
    float *scale, *zero_point;  // (T, groups)
    int width, groups;

    // The address of LANES values.
    uint8_t* address(int row, int column) const {
        return values + 4 * row_offset(row, column / 4, width / 4) + column % 4;
    }

    // Quantizes one group of a row. Values from `count` on are padding.
    void quantize(int row, int group, const float* from, int count) const {
        const int padded_count = width / groups;
        Floats low = broadcast(0.0f), high = broadcast(0.0f);
        int i = 0;
        for (; i + LANES <= count; i += LANES) {
            low = minimum(low, load(from + i));
            high = maximum(high, load(from + i));
        }
        float smallest = reduce_min(low), largest = reduce_max(high);
        for (; i < count; ++i) smallest = std::min(smallest, from[i]), largest = std::max(largest, from[i]);
        const float step = std::max((largest - smallest) / 255.0f, 1e-12f), origin = std::nearbyint(-smallest / step);
        scale[row * groups + group] = step;
        zero_point[row * groups + group] = origin;
        const float factor = 1.0f / step;
        for (i = 0; i < padded_count; i += LANES) {
            const Floats shifted = load(from + i) * factor + (origin + 0.5f);
            const Floats clamped = minimum(maximum(shifted, broadcast(0.0f)), broadcast(255.0f));
            *reinterpret_cast<Bytes*>(address(row, group * padded_count + i)) =
                __builtin_convertvector(__builtin_convertvector(clamped, Ints), Bytes);
        }
    }
};

}  // namespace
