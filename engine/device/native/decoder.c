/* A Llama-family decoder on a CPU: one call is one step, for T tokens of any number of rows.

   Compiled for one head dimension (a multiple of 16), page size and element type:
   -DDIM=64 -DSLOTS=16 -DBF16=0. Activations are fp32 throughout. */

#include "attention.h"

typedef struct {
    const element *weight; /* [out, in]; both multiples of 16 */
    const float *bias;     /* [out] or NULL */
    int64_t in, out;
} Linear;

typedef struct {
    Linear qkv, mixed, gate_up, down;
    const float *before, *after; /* [hidden] */
    const float *qk_norm;        /* [heads + kv_heads, DIM] or NULL */
    Pool pool;
    int64_t rotated;
} Layer;

typedef struct {
    int64_t layers, hidden, inner, heads, kv_heads;
    const Layer *layer;
    const element *embedding;
    const float *norm;
    const element *rope; /* [position, 2, DIM]: cosines, then sines, the first half negated */
    Linear head;
    float eps;
} Model;

typedef struct {
    Row *rows; /* `first` is filled in */
    int64_t count, threads;
    float *logits;  /* [rows wanted, vocab] */
    int64_t *likely; /* [rows wanted] the likeliest id, the first of equals; -1: a logit is NaN or
                        +inf, or all are -inf */
    float *scratch; /* T * (3 hidden + DIM * (2 heads + 2 kv_heads) + 2 inner) floats */
    Unit *units;    /* as many as there are, sum over rows of count * group / QUERIES, rounded up */
} Work;

#define OUTS 16 /* sums that are kept in registers */

/* out[t, n + o] = x[t] . weight[n + o] for `tokens` t and `outs` o; tokens * outs == OUTS. */
static inline __attribute__((always_inline)) void block(const Linear *linear, const float *x,
                                                        float *out, int64_t n, int tokens,
                                                        int outs) {
    const int64_t in = linear->in;
    const element *weight = linear->weight + n * in;
    vec s[OUTS] = {{0}};
    for (int64_t i = 0; i < in; i += LANES)
        for (int o = 0; o < outs; o++) {
            const vec w = load(weight + o * in + i);
            for (int t = 0; t < tokens; t++) s[t * outs + o] += w * at(x + t * in + i);
        }
    float sums[OUTS];
    for (int b = 0; b < OUTS; b += LANES) *(vec *)&sums[b] = fold(s + b);
    for (int t = 0; t < tokens; t++)
        for (int o = 0; o < outs; o++)
            out[t * linear->out + n + o] =
                sums[t * outs + o] + (linear->bias ? linear->bias[n + o] : 0.0f);
}

/* x [tokens, in] -> out [tokens, out]. OUTS rows of the matrix at a time meet all tokens. */
static void apply(const Linear *linear, const float *x, float *out, int64_t tokens, int threads) {
    const int64_t in = linear->in, size = linear->out;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < size; n += OUTS) {
        int64_t t = 0;
        for (; t + 4 <= tokens; t += 4)
            for (int o = 0; o < OUTS; o += 4)
                block(linear, x + t * in, out + t * size, n + o, 4, 4);
        for (; t + 2 <= tokens; t += 2)
            for (int o = 0; o < OUTS; o += 8)
                block(linear, x + t * in, out + t * size, n + o, 2, 8);
        for (; t < tokens; t++) block(linear, x + t * in, out + t * size, n, 1, 16);
    }
}

/* RMS norm of one vector of `size`. */
static void norm(const float *x, const float *weight, float eps, float *out, int64_t size) {
    vec all = {0};
    for (int64_t i = 0; i < size; i += LANES) all += at(x + i) * at(x + i);
    const float scale = 1.0f / sqrtf(sum(all) / size + eps);
    for (int64_t i = 0; i < size; i += LANES)
        *(vec *)(out + i) = at(x + i) * scale * at(weight + i);
}

static void norms(const float *x, const float *weight, const Model *model, float *out, int64_t n) {
    for (int64_t t = 0; t < n; t++)
        norm(x + t * model->hidden, weight, model->eps, out + t * model->hidden, model->hidden);
}

static void rotate(float *x, const element *rope) {
    float old[DIM];
    memcpy(old, x, sizeof old);
    for (int d = 0; d < DIM; d += LANES) {
        vec rolled;
        for (int n = 0; n < LANES; n++) rolled[n] = old[(d + n + DIM / 2) % DIM];
        *(vec *)(x + d) = at(old + d) * load(rope + d) + rolled * load(rope + DIM + d);
    }
}

/* Queries and keys are normed and rotated where they are; keys and values go to their pages. */
static void place(const Model *model, const Layer *layer, const Row *row, float *qkv) {
    const int64_t turned = model->heads + model->kv_heads, all = turned + model->kv_heads;
    for (int64_t t = 0; t < row->count; t++) {
        float *of = qkv + (row->first + t) * all * DIM;
        const int64_t position = row->start + t;
        for (int64_t h = 0; h < turned; h++) {
            if (layer->qk_norm)
                norm(of + h * DIM, layer->qk_norm + h * DIM, model->eps, of + h * DIM, DIM);
            if (layer->rotated) rotate(of + h * DIM, model->rope + position * 2 * DIM);
        }
        for (int64_t h = 0; h < model->kv_heads; h++) {
            const int64_t to = place_of(&layer->pool, row->pages, h, position);
            for (int d = 0; d < DIM; d += LANES) {
                store(layer->pool.keys + to + d, at(of + (model->heads + h) * DIM + d));
                store(layer->pool.values + to + d, at(of + (turned + h) * DIM + d));
            }
        }
    }
}

static void attend_all(const Pool *pool, const Work *work, int64_t units, const float *query,
                       int64_t stride, float *out) {
    const int64_t all = units * pool->kv_heads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(work->threads) if (work->threads > 1)
    for (int64_t n = 0; n < all; n++)
        attend(pool, work->rows, &work->units[n / pool->kv_heads], query, stride, out,
               n % pool->kv_heads);
}

/* both [tokens, 2 * inner]: silu(first half) * second half, to the first half's place, packed. */
static void gate(float *both, int64_t tokens, int64_t inner) {
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < inner; i += LANES) {
            const vec g = at(both + t * 2 * inner + i), u = at(both + t * 2 * inner + inner + i);
            const ivec negative = g < set(0);
            const vec e = exponential((vec)((ivec)g | 0x80000000)); /* of -|g| */
            const vec up = (vec)(((ivec)e & negative) | ((ivec)set(1) & ~negative));
            *(vec *)(both + t * inner + i) = g * up / (1.0f + e) * u;
        }
}

static void add(float *x, const float *y, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) *(vec *)(x + i) = at(x + i) + at(y + i);
}

static int64_t likeliest(const float *logits, int64_t size) {
    int64_t best = 0;
    for (int64_t i = 0; i < size; i++) {
        if (isnan(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return isinf(logits[best]) ? -1 : best;
}

/* Units of all rows, and where each row's tokens begin; returns how many units there are. */
static int64_t lay(const Model *model, const Work *work, int64_t *tokens) {
    const int64_t group = model->heads / model->kv_heads;
    int64_t units = 0;
    *tokens = 0;
    for (int64_t r = 0; r < work->count; r++) {
        work->rows[r].first = *tokens;
        *tokens += work->rows[r].count;
        for (int64_t q = 0; q < work->rows[r].count * group; q += QUERIES)
            work->units[units++] = (Unit){r, q};
    }
    return units;
}

void decode(const Model *model, const Work *work) {
    int64_t tokens;
    const int64_t units = lay(model, work, &tokens), hidden = model->hidden, all = tokens * hidden;
    const int64_t stride = (model->heads + 2 * model->kv_heads) * DIM;
    const int threads = (int)work->threads;
    float *x = work->scratch, *normed = x + all, *y = normed + all;
    float *qkv = y + all, *mixed = qkv + tokens * stride;
    float *both = mixed + tokens * model->heads * DIM;
    for (const Row *row = work->rows; row < work->rows + work->count; row++)
        for (int64_t t = 0; t < row->count; t++)
            for (int64_t i = 0; i < hidden; i += LANES)
                *(vec *)(x + (row->first + t) * hidden + i) =
                    load(model->embedding + row->ids[t] * hidden + i);
    for (int64_t n = 0; n < model->layers; n++) {
        const Layer *layer = &model->layer[n];
        norms(x, layer->before, model, normed, tokens);
        apply(&layer->qkv, normed, qkv, tokens, threads);
        for (int64_t r = 0; r < work->count; r++) place(model, layer, &work->rows[r], qkv);
        attend_all(&layer->pool, work, units, qkv, stride, mixed);
        apply(&layer->mixed, mixed, y, tokens, threads);
        add(x, y, all);
        norms(x, layer->after, model, normed, tokens);
        apply(&layer->gate_up, normed, both, tokens, threads);
        gate(both, tokens, model->inner);
        apply(&layer->down, both, y, tokens, threads);
        add(x, y, all);
    }
    int64_t answers = 0;
    for (const Row *row = work->rows; row < work->rows + work->count; row++)
        if (row->wanted) {
            const float *last = x + (row->first + row->count - 1) * hidden;
            norm(last, model->norm, model->eps, normed + answers++ * hidden, hidden);
        }
    apply(&model->head, normed, work->logits, answers, threads);
    for (int64_t a = 0; a < answers; a++)
        work->likely[a] = likeliest(work->logits + a * model->head.out, model->head.out);
}
