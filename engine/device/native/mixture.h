/* A mixture of experts: the router chooses for each token the MLPs that compute it.

   The chosen (token, expert) pairs are sorted by expert, so that each expert's matrices are
   multiplied by all of its tokens at once. */

#pragma once

#include "operations.h"

typedef struct {
    Linear gate_up, down;
} Mlp;

typedef struct {
    Linear router;                 /* to the experts, padded to a multiple of 16 outputs */
    const element *gate_up, *down; /* [expert, 2 * inner, hidden], [expert, hidden, inner] in
                                      panels */
    int64_t experts, inner;
    int64_t chosen;                /* experts for each token */
    int64_t normalizes;            /* whether the weights of the chosen experts sum to 1 */
    const float *gate_up_bias, *down_bias; /* [expert, 2 * inner], [expert, hidden]; or NULL */
    float alpha, limit; /* of gpt-oss's activation; limit 0: the model's activation */
    int64_t has_shared; /* whether the output of a dense MLP is added for every token */
    Mlp shared;
    const float *shared_gate; /* [hidden]: it is multiplied by sigmoid(x . gate); or NULL */
} Mixture;

/* Memory for one mixture: P = tokens * chosen pairs. */
typedef struct {
    float *logits;                   /* [tokens, router.out] */
    float *input, *out;              /* [P, hidden], in sorted order */
    float *gate_up, *gated;          /* [P, 2 * inner], [P, inner] */
    float *shared_gate_up, *shared_gated, *shared_out; /* [tokens, …] */
    float *weights;                  /* [tokens, chosen] */
    int32_t *experts, *place;        /* [tokens, chosen]: expert, and index in sorted order */
    int32_t *token;                  /* [P]: token of a pair, in sorted order */
    int32_t *begin;                  /* [experts + 1]: first pair of each expert */
} MixtureScratch;

/* Divide `from`, which has room for tokens * mixture_floats + experts + 1 floats. */
static MixtureScratch divide_scratch(const Mixture *mixture, int64_t hidden, int64_t tokens,
                                     float *from) {
    const int64_t pairs = tokens * mixture->chosen;
    MixtureScratch s;
    s.logits = from;
    s.input = s.logits + tokens * mixture->router.out;
    s.out = s.input + pairs * hidden;
    s.gate_up = s.out + pairs * hidden;
    s.gated = s.gate_up + pairs * 2 * mixture->inner;
    const int64_t shared = mixture->has_shared ? mixture->shared.down.in : 0;
    s.shared_gate_up = s.gated + pairs * mixture->inner;
    s.shared_gated = s.shared_gate_up + tokens * 2 * shared;
    s.shared_out = s.shared_gated + tokens * shared;
    s.weights = s.shared_out + (mixture->has_shared ? tokens * hidden : 0);
    s.experts = (int32_t *)(s.weights + pairs);
    s.place = s.experts + pairs;
    s.token = s.place + pairs;
    s.begin = s.token + pairs;
    return s;
}

/* Choose the experts of one token: those with the largest logits, the first of equals, with the
   softmax of all logits as weights. Overwrites the logits. */
static void choose_experts(const Mixture *mixture, float *logits, float *weights,
                           int32_t *experts) {
    const int64_t count = mixture->experts;
    float max = logits[0], sum = 0, chosen_sum = 0;
    for (int64_t e = 1; e < count; e++) max = logits[e] > max ? logits[e] : max;
    for (int64_t e = 0; e < count; e++) sum += logits[e] = expf(logits[e] - max);
    for (int64_t k = 0; k < mixture->chosen; k++) {
        int64_t best = 0;
        for (int64_t e = 1; e < count; e++)
            if (logits[e] > logits[best]) best = e;
        experts[k] = (int32_t)best;
        chosen_sum += weights[k] = logits[best];
        logits[best] = -1;
    }
    const float scale = 1.0f / (mixture->normalizes ? chosen_sum : sum);
    for (int64_t k = 0; k < mixture->chosen; k++) weights[k] *= scale;
}

/* Sort the pairs by expert (counting sort). */
static void sort_pairs(PhaseCursor *cursor, const Mixture *mixture, MixtureScratch *s,
                       int64_t tokens) {
    const int64_t pairs = tokens * mixture->chosen, experts = mixture->experts;
    while (claim_piece(cursor, 1) >= 0) {
        memset(s->begin, 0, (experts + 1) * sizeof *s->begin);
        for (int64_t p = 0; p < pairs; p++) s->begin[s->experts[p] + 1]++;
        for (int64_t e = 0; e < experts; e++) s->begin[e + 1] += s->begin[e];
        for (int64_t p = 0; p < pairs; p++) {
            s->place[p] = s->begin[s->experts[p]]++;
            s->token[s->place[p]] = (int32_t)(p / mixture->chosen);
        }
        for (int64_t e = experts; e > 0; e--) s->begin[e] = s->begin[e - 1];
        s->begin[0] = 0;
    }
}

/* Multiply the matrix of each expert, [out, in] in panels in `weights`, by its pairs: x [P, in] -> y [P,
   out]. `bias`: [expert, out] or NULL. */
static void multiply_experts(PhaseCursor *cursor, const element *weights, const float *bias,
                             int64_t in, int64_t out, int64_t experts, const int32_t *begin,
                             const float *x, float *y, int64_t threads) {
    const int64_t panels = out / PANEL_ROWS;
    int64_t parts = (threads * PIECES_PER_THREAD + experts - 1) / experts;
    parts = parts < panels ? parts : panels;
    const int64_t part_panels = (panels + parts - 1) / parts;
    for (int64_t piece; (piece = claim_piece(cursor, experts * parts)) >= 0;) {
        const int64_t e = piece / parts, first = begin[e];
        const Linear expert = {weights + e * out * in, bias ? bias + e * out : NULL, in, out, NULL};
        const int64_t from = piece % parts * part_panels;
        const int64_t to = from + part_panels < panels ? from + part_panels : panels;
        multiply_panels(&expert, x + first * in, y + first * out, begin[e + 1] - first, from, to);
    }
}

/* Gated activation of all pairs: gate_up [P, 2 * inner] -> out [P, inner]. */
static void activate_pairs(PhaseCursor *cursor, const Mixture *mixture, const float *gate_up,
                           float *out, int64_t pairs, int64_t act) {
    const int64_t inner = mixture->inner;
    if (!mixture->limit) {
        activate_gate(cursor, gate_up, out, pairs, inner, act);
        return;
    }
    for (int64_t p, end; claim_tokens(cursor, pairs, &p, &end);)
        for (; p < end; p++)
            for (int64_t i = 0; i < inner; i += LANES)
                *(vec *)(out + p * inner + i) =
                    activate_clamped(load_floats(gate_up + p * 2 * inner + i),
                                     load_floats(gate_up + p * 2 * inner + inner + i),
                                     mixture->alpha, mixture->limit);
}

/* Dot product of two vectors. */
static float dot(const float *a, const float *b, int64_t size) {
    vec products = {0};
    for (int64_t i = 0; i < size; i += LANES) products += load_floats(a + i) * load_floats(b + i);
    return sum(products);
}

/* Number of phases of mix_experts. */
static int64_t mixture_phases(const Mixture *mixture) { return mixture->has_shared ? 11 : 8; }

/* Compute the mixture: x [tokens, hidden] -> y [tokens, hidden]. */
static void mix_experts(PhaseCursor *cursor, const Mixture *mixture, float *x, float *y,
                        float *scratch, int64_t tokens, int64_t act, int64_t threads) {
    const int64_t hidden = mixture->router.in, experts = mixture->experts;
    const int64_t inner = mixture->inner, chosen = mixture->chosen;
    MixtureScratch s = divide_scratch(mixture, hidden, tokens, scratch);
    linear(cursor, &mixture->router, x, s.logits, tokens, threads);
    for (int64_t t, end; claim_tokens(cursor, tokens, &t, &end);)
        for (; t < end; t++)
            choose_experts(mixture, s.logits + t * mixture->router.out, s.weights + t * chosen,
                           s.experts + t * chosen);
    sort_pairs(cursor, mixture, &s, tokens);
    for (int64_t p, end; claim_tokens(cursor, tokens * chosen, &p, &end);)
        for (; p < end; p++)
            memcpy(s.input + p * hidden, x + s.token[p] * hidden, hidden * sizeof *x);
    multiply_experts(cursor, mixture->gate_up, mixture->gate_up_bias, hidden, 2 * inner, experts,
                     s.begin, s.input, s.gate_up, threads);
    activate_pairs(cursor, mixture, s.gate_up, s.gated, tokens * chosen, act);
    multiply_experts(cursor, mixture->down, mixture->down_bias, inner, hidden, experts, s.begin,
                     s.gated, s.out, threads);
    if (mixture->has_shared) {
        const Mlp *shared = &mixture->shared;
        linear(cursor, &shared->gate_up, x, s.shared_gate_up, tokens, threads);
        activate_gate(cursor, s.shared_gate_up, s.shared_gated, tokens, shared->down.in, act);
        linear(cursor, &shared->down, s.shared_gated, s.shared_out, tokens, threads);
    }
    for (int64_t t, end; claim_tokens(cursor, tokens, &t, &end);)
        for (; t < end; t++) {
            const float *gate = mixture->shared_gate;
            const float scale =
                gate ? vec_sigmoid(broadcast(dot(x + t * hidden, gate, hidden)))[0] : 1.0f;
            for (int64_t i = 0; i < hidden; i += LANES) {
                vec sum = {0};
                if (mixture->has_shared) sum = scale * load_floats(s.shared_out + t * hidden + i);
                for (int64_t k = 0; k < chosen; k++)
                    sum += s.weights[t * chosen + k]
                           * load_floats(s.out + s.place[t * chosen + k] * hidden + i);
                *(vec *)(y + t * hidden + i) = sum;
            }
        }
}
