/* Operations on the tokens of a step, split into the pieces of one phase each. */

#pragma once

#include "matmul.h"

#define PIECE_TOKENS 4      /* tokens per piece, in phases with little work for each token */
/* Claim the next tokens [*t, *end) of `count`. Returns 0 at the end of the phase. */
static int claim_tokens(PhaseCursor *cursor, int64_t count, int64_t *t, int64_t *end) {
    const int64_t piece = claim_piece(cursor, (count + PIECE_TOKENS - 1) / PIECE_TOKENS);
    *t = piece * PIECE_TOKENS;
    *end = *t + PIECE_TOKENS < count ? *t + PIECE_TOKENS : count;
    return piece >= 0;
}

/* RMS norm of one vector of `size` floats; `out` may be `x`. */
static void rms_norm(const float *x, const float *weight, float eps, float *out, int64_t size) {
    vec squares = {0};
    for (int64_t i = 0; i < size; i += LANES) squares += load_floats(x + i) * load_floats(x + i);
    const float scale = 1.0f / sqrtf(sum(squares) / size + eps);
    for (int64_t i = 0; i < size; i += LANES)
        *(vec *)(out + i) = load_floats(x + i) * scale * load_floats(weight + i);
}

/* 1 / (1 + e^-x), as 1 / (1 + e) for x >= 0 and e / (1 + e) for x < 0, where e = exp(-|x|) cannot
   overflow. */
static inline vec vec_sigmoid(vec x) {
    const ivec negative = x < broadcast(0);
    const vec e = vec_exp((vec)((ivec)x | 0x80000000)); /* the sign bit: -|x| */
    const vec numerator = (vec)(((ivec)e & negative) | ((ivec)broadcast(1) & ~negative));
    return numerator / (1.0f + e);
}

/* Activation functions. GELU_TANH: x * sigmoid(2 u), where u = sqrt(2 / pi) (x + 0.044715 x^3). */
enum { SILU, GELU_TANH };

static inline vec activate(vec x, int64_t act) {
    if (act == SILU) return x * vec_sigmoid(x);
    return x * vec_sigmoid((x + 0.044715f * x * x * x) * 1.5957691216057308f);
}

/* x, bounded to [low, high]. */
static inline vec clamp(vec x, float low, float high) {
    const ivec below = x < broadcast(low), above = x > broadcast(high);
    x = (vec)(((ivec)broadcast(low) & below) | ((ivec)x & ~below));
    return (vec)(((ivec)broadcast(high) & above) | ((ivec)x & ~above));
}

/* The gated activation of gpt-oss: gate * sigmoid(alpha * gate) * (up + 1), with both bounded. */
static inline vec activate_clamped(vec gate, vec up, float alpha, float limit) {
    gate = clamp(gate, -INFINITY, limit);
    return gate * vec_sigmoid(alpha * gate) * (clamp(up, -limit, limit) + 1.0f);
}

/* Gated activation: gate_up [tokens, 2 * inner] -> out [tokens, inner], act(gate) * up. */
static void activate_gate(PhaseCursor *cursor, const float *gate_up, float *out, int64_t tokens,
                          int64_t inner, int64_t act) {
    for (int64_t t, end; claim_tokens(cursor, tokens, &t, &end);)
        for (; t < end; t++)
            for (int64_t i = 0; i < inner; i += LANES) {
                const vec gate = load_floats(gate_up + t * 2 * inner + i);
                const vec up = load_floats(gate_up + t * 2 * inner + inner + i);
                *(vec *)(out + t * inner + i) = activate(gate, act) * up;
            }
}
