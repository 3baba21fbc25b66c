// exp, erf and the activation functions of the feed-forward block.
#pragma once

#include "simd.h"

namespace {

// 2 to the power of x, with a relative error of at most 3e-6. The lower bound avoids subnormal results, which would
// take a hundred times as long.
inline Floats vector_exp2(Floats x) {
    x = maximum(x, broadcast(-125.0f));
    const Floats power = round_to_nearest(x), fraction = x - power;
    Floats y = fraction * 9.5701003e-3f + 5.5917859e-2f;
    y = y * fraction + 2.4024744e-1f;
    y = y * fraction + 6.9312179e-1f;
    y = y * fraction + 9.9999928e-1f;
    return scale_by_power_of_2(y, power);
}
constexpr float LOG2_E = 1.44269504f;

// Abramowitz and Stegun 7.1.26, with an error of at most 1.5e-7.
inline Floats vector_erf(Floats x) {
    const Floats magnitude = maximum(x, -x);
    const Floats t = reciprocal(magnitude * 0.3275911f + 1.0f);
    Floats y = t * 1.061405429f - 1.453152027f;
    y = y * t + 1.421413741f;
    y = y * t - 0.284496736f;
    y = y * t + 0.254829592f;
    y = 1.0f - y * t * vector_exp2(magnitude * magnitude * -LOG2_E);
    return x < 0.0f ? -y : y;
}

enum Activation { GELU, GELU_TANH, RELU, SILU };  // in the order of ACTIVATIONS in weights.py

inline Floats activation_value(Floats x, int activation) {
    switch (activation) {
        case GELU:
            return x * 0.5f * (vector_erf(x * 0.70710678f) + 1.0f);
        case GELU_TANH: {
            const Floats exponent = (x * x * 0.044715f + 1.0f) * x * (-1.59576912f * LOG2_E);
            return x * reciprocal(vector_exp2(minimum(exponent, broadcast(100.0f))) + 1.0f);
        }
        case RELU:
            return maximum(x, broadcast(0.0f));
        default:
            return x * reciprocal(vector_exp2(minimum(x * -LOG2_E, broadcast(100.0f))) + 1.0f);
    }
}

// In place. `count` is a multiple of 2 * LANES.
template <int ACTIVATION>
void activate(float* values, int count) {
    for (int i = 0; i < count; i += 2 * LANES) {
        const Floats low = activation_value(load(values + i), ACTIVATION);
        const Floats high = activation_value(load(values + i + LANES), ACTIVATION);
        store(values + i, low), store(values + i + LANES, high);
    }
}
void activate(float* values, int count, int activation) {
    constexpr void (*FUNCTIONS[])(float*, int) = {activate<GELU>, activate<GELU_TANH>, activate<RELU>, activate<SILU>};
    FUNCTIONS[activation](values, count);
}

}  // namespace
