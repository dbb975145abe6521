/* A Llama-family decoder on a CPU: one job of the thread pool is one step, the forward pass of T
   tokens from any number of rows.

   Compiled for one head dimension (a multiple of 16), page size and element type:
   -DDIM=64 -DPAGE_SIZE=16 -DBF16=0. Activations are fp32 throughout. */

#include "paged_attention.h"
#include "thread_pool.h"

typedef struct {
    const element *weight; /* [out, in]; both multiples of 16 */
    const float *bias;     /* [out] or NULL */
    int64_t in, out;
} Linear;

typedef struct {
    Linear qkv, out, gate_up, down;
    const float *input_norm, *post_attention_norm; /* [hidden] */
    const float *qk_norm;                          /* [heads + kv_heads, DIM] or NULL */
    LayerKV kv;
    int64_t has_rope; /* whether queries and keys take a rotary embedding */
} Layer;

typedef struct {
    int64_t layers, hidden, inner, heads, kv_heads;
    const Layer *layer;
    const element *embedding; /* [vocab, hidden] */
    const float *norm;        /* [hidden]: the final norm */
    const element *rope;      /* [positions, 2, DIM]: cosines; sines with the first half negated */
    Linear head;              /* language-model head; head.out is the size of the vocabulary */
    int64_t positions, pages; /* rows of `rope`; pages in each layer's pool */
    float eps;                /* of all RMS norms */
} Model;

typedef struct {
    StepRow *rows; /* `first` is set by plan_tiles */
    int64_t row_count, threads;
    float *logits;       /* [rows with wants_logits, vocab] */
    int64_t *argmax_ids; /* [rows with wants_logits]; see argmax */
    float *scratch;      /* T * (3 hidden + DIM * (2 heads + 2 kv_heads) + 3 inner) floats */
    AttentionTile *tiles; /* room for the sum over rows of ceil(count * group / TILE_QUERIES) */
    int64_t tokens, tile_count; /* set by plan_tiles */
} Step;

typedef struct {
    const Model *model;
    const Step *step;
} StepJob;

#define LAYER_PHASES 9 /* phases of the program for each layer */
#define OTHER_PHASES 4 /* phases before and after the layers */
#define TAIL_PHASES 7  /* phases from the last layer's post-attention norm to the end */

#define PIECE_TOKENS 4      /* tokens per piece, in phases with little work for each token */
#define PIECES_PER_THREAD 8 /* pieces of a matrix product for each thread */

#define ACCUMULATORS 16 /* vectors of partial sums that are kept in registers */

/* out[t, n + o] = x[t] . weight[n + o] + bias[n + o] for `tokens` t and `outs` o, where
   tokens * outs is ACCUMULATORS. */
static inline __attribute__((always_inline)) void matmul_block(const Linear *linear, const float *x,
                                                               float *out, int64_t n, int tokens,
                                                               int outs) {
    const int64_t in = linear->in;
    const element *weight = linear->weight + n * in;
    vec s[ACCUMULATORS] = {{0}};
    for (int64_t i = 0; i < in; i += LANES)
        for (int o = 0; o < outs; o++) {
            const vec w = load(weight + o * in + i);
            for (int t = 0; t < tokens; t++) s[t * outs + o] += w * load_floats(x + t * in + i);
        }
    float sums[ACCUMULATORS];
    for (int a = 0; a < ACCUMULATORS; a += LANES) *(vec *)&sums[a] = sum_lanes(s + a);
    for (int t = 0; t < tokens; t++)
        for (int o = 0; o < outs; o++)
            out[t * linear->out + n + o] =
                sums[t * outs + o] + (linear->bias ? linear->bias[n + o] : 0.0f);
}

/* Linear layer: x [tokens, in] -> out [tokens, out]. Blocks of ACCUMULATORS rows of the weight are
   multiplied by all tokens while they are in the cache. */
static void linear(PhaseCursor *cursor, const Linear *projection, const float *x, float *out,
                   int64_t tokens, int64_t threads) {
    const int64_t in = projection->in, size = projection->out, blocks = size / ACCUMULATORS;
    const int64_t pieces_max = threads * PIECES_PER_THREAD;
    const int64_t piece_blocks = (blocks + pieces_max - 1) / pieces_max;
    const int64_t pieces = (blocks + piece_blocks - 1) / piece_blocks;
    for (int64_t piece; (piece = claim_piece(cursor, pieces)) >= 0;) {
        const int64_t from = piece * piece_blocks * ACCUMULATORS;
        const int64_t to = from + piece_blocks * ACCUMULATORS;
        for (int64_t n = from; n < to && n < size; n += ACCUMULATORS) {
            int64_t t = 0;
            for (; t + 4 <= tokens; t += 4)
                for (int o = 0; o < ACCUMULATORS; o += 4)
                    matmul_block(projection, x + t * in, out + t * size, n + o, 4, 4);
            for (; t + 2 <= tokens; t += 2)
                for (int o = 0; o < ACCUMULATORS; o += 8)
                    matmul_block(projection, x + t * in, out + t * size, n + o, 2, 8);
            for (; t < tokens; t++) matmul_block(projection, x + t * in, out + t * size, n, 1, 16);
        }
    }
}

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

/* x += y, both of `size` floats. */
static void add(float *x, const float *y, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES)
        *(vec *)(x + i) = load_floats(x + i) + load_floats(y + i);
}

/* Add y, unless it is NULL, to the residual stream x, and write the RMS norm of x to `normed`; all
   [tokens, hidden]. */
static void add_and_norm(PhaseCursor *cursor, const Model *model, float *x, const float *y,
                         const float *weight, float *normed, int64_t tokens) {
    const int64_t hidden = model->hidden;
    for (int64_t t, end; claim_tokens(cursor, tokens, &t, &end);)
        for (; t < end; t++) {
            if (y) add(x + t * hidden, y + t * hidden, hidden);
            rms_norm(x + t * hidden, weight, model->eps, normed + t * hidden, hidden);
        }
}

/* Apply the rotary embedding (RoPE, Su et al. 2021) of one position, rope [2, DIM], to one head in
   place. Dimensions d and d + DIM / 2 are rotated together. */
static void apply_rope(float *x, const element *rope) {
    float old[DIM];
    memcpy(old, x, sizeof old);
    for (int d = 0; d < DIM; d += LANES) {
        vec rolled;
        for (int n = 0; n < LANES; n++) rolled[n] = old[(d + n + DIM / 2) % DIM];
        *(vec *)(x + d) = load_floats(old + d) * load(rope + d) + rolled * load(rope + DIM + d);
    }
}

/* Normalize and rotate the queries and keys of a row in place, in qkv [T, heads + 2 kv_heads, DIM],
   and write its keys and values to the pages. */
static void write_kv(const Model *model, const Layer *layer, const StepRow *row, float *qkv) {
    const int64_t qk_heads = model->heads + model->kv_heads;
    const int64_t qkv_heads = qk_heads + model->kv_heads;
    for (int64_t t = 0; t < row->count; t++) {
        float *x = qkv + (row->first + t) * qkv_heads * DIM;
        const int64_t position = row->start + t;
        for (int64_t h = 0; h < qk_heads; h++) {
            if (layer->qk_norm)
                rms_norm(x + h * DIM, layer->qk_norm + h * DIM, model->eps, x + h * DIM, DIM);
            if (layer->has_rope) apply_rope(x + h * DIM, model->rope + position * 2 * DIM);
        }
        for (int64_t h = 0; h < model->kv_heads; h++) {
            const int64_t to = kv_offset(&layer->kv, row->pages, h, position);
            for (int d = 0; d < DIM; d += LANES) {
                store(layer->kv.keys + to + d, load_floats(x + (model->heads + h) * DIM + d));
                store(layer->kv.values + to + d, load_floats(x + (qk_heads + h) * DIM + d));
            }
        }
    }
}

/* Attention of all rows: a piece is one tile for one KV head. */
static void attend_all(PhaseCursor *cursor, const LayerKV *kv, const Step *step, const float *query,
                       int64_t stride, float *out) {
    for (int64_t n; (n = claim_piece(cursor, step->tile_count * kv->kv_heads)) >= 0;)
        attend(kv, step->rows, &step->tiles[n / kv->kv_heads], query, stride, out,
               n % kv->kv_heads);
}

/* SwiGLU: gate_up [tokens, 2 * inner] -> out [tokens, inner], silu(gate) * up.
   silu(g) = g * sigmoid(g), and sigmoid(g) is 1 / (1 + e) for g >= 0, e / (1 + e) for g < 0, where
   e = exp(-|g|) cannot overflow. */
static void silu_gate(PhaseCursor *cursor, const float *gate_up, float *out, int64_t tokens,
                      int64_t inner) {
    for (int64_t t, end; claim_tokens(cursor, tokens, &t, &end);)
        for (; t < end; t++)
            for (int64_t i = 0; i < inner; i += LANES) {
                const vec g = load_floats(gate_up + t * 2 * inner + i);
                const vec u = load_floats(gate_up + t * 2 * inner + inner + i);
                const ivec negative = g < broadcast(0);
                const vec e = vec_exp((vec)((ivec)g | 0x80000000)); /* the sign bit: -|g| */
                const vec numerator =
                    (vec)(((ivec)e & negative) | ((ivec)broadcast(1) & ~negative));
                *(vec *)(out + t * inner + i) = g * numerator / (1.0f + e) * u;
            }
}

/* Index of the largest logit, the first of equals. Returns -1 if a logit is NaN or +inf, or if all
   of them are -inf. */
static int64_t argmax(const float *logits, int64_t size) {
    int64_t best = 0;
    for (int64_t i = 0; i < size; i++) {
        if (isnan(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return isinf(logits[best]) ? -1 : best;
}

/* Whether each of `count` indices lies in [0, bound). */
static int all_below(const int32_t *index, int64_t count, int64_t bound) {
    const uint32_t end = (uint32_t)bound; /* a negative index is a large unsigned one */
    int outside = 0;
    for (int64_t n = 0; n < count; n++) outside |= (uint32_t)index[n] >= end;
    return !outside;
}

/* Whether all ids, positions and pages of a row lie in the vocabulary, the rotary table and the
   pool. */
static int is_in_bounds(const Model *model, const StepRow *row) {
    const int64_t end = row->start + row->count;
    return row->count > 0 && row->start >= 0 && end <= model->positions &&
           all_below(row->pages, (end + PAGE_SIZE - 1) / PAGE_SIZE, model->pages) &&
           all_below(row->ids, row->count, model->head.out);
}

/* Index of the first row that is out of bounds. Returns -1 if all rows are in bounds. */
static int64_t first_out_of_bounds(const Model *model, const Step *step) {
    for (int64_t r = 0; r < step->row_count; r++)
        if (!is_in_bounds(model, &step->rows[r])) return r;
    return -1;
}

/* Split all rows into tiles, and set the index of each row's first token. */
static void plan_tiles(const Model *model, Step *step) {
    const int64_t group = model->heads / model->kv_heads;
    step->tokens = step->tile_count = 0;
    for (int64_t r = 0; r < step->row_count; r++) {
        step->rows[r].first = step->tokens;
        step->tokens += step->rows[r].count;
        for (int64_t q = 0; q < step->rows[r].count * group; q += TILE_QUERIES)
            step->tiles[step->tile_count++] = (AttentionTile){r, q};
    }
}

/* Look up the embeddings of all tokens: x [T, hidden]. */
static void embed(PhaseCursor *cursor, const Model *model, const Step *step, float *x) {
    const int64_t hidden = model->hidden;
    for (int64_t r; (r = claim_piece(cursor, step->row_count)) >= 0;)
        for (int64_t t = 0; t < step->rows[r].count; t++)
            for (int64_t i = 0; i < hidden; i += LANES)
                *(vec *)(x + (step->rows[r].first + t) * hidden + i) =
                    load(model->embedding + step->rows[r].ids[t] * hidden + i);
}

/* Final norm of x + y, for the last token of each row with wants_logits: out [rows with
   wants_logits, hidden]. */
static void norm_last_tokens(PhaseCursor *cursor, const Model *model, const Step *step, float *x,
                             const float *y, float *out) {
    const int64_t hidden = model->hidden;
    while (claim_piece(cursor, 1) >= 0)
        for (const StepRow *row = step->rows; row < step->rows + step->row_count; row++)
            if (row->wants_logits) {
                const int64_t last = (row->first + row->count - 1) * hidden;
                add(x + last, y + last, hidden);
                rms_norm(x + last, model->norm, model->eps, out, hidden);
                out += hidden;
            }
}

/* The program of a step: the forward pass, one phase per operation. */
static void decode(PhaseCursor *cursor, const void *argument) {
    const StepJob *job = argument;
    const Model *model = job->model;
    const Step *step = job->step;
    const int64_t tokens = step->tokens, threads = step->threads;
    const int64_t size = tokens * model->hidden, inner = model->inner;
    const int64_t stride = (model->heads + 2 * model->kv_heads) * DIM;
    float *x = step->scratch, *normed = x + size, *y = normed + size;
    float *qkv = y + size, *attended = qkv + tokens * stride;
    float *gate_up = attended + tokens * model->heads * DIM, *gated = gate_up + 2 * tokens * inner;
    embed(cursor, model, step, x);
    for (int64_t n = 0; n < model->layers; n++) {
        const Layer *layer = &model->layer[n];
        add_and_norm(cursor, model, x, n ? y : NULL, layer->input_norm, normed, tokens);
        linear(cursor, &layer->qkv, normed, qkv, tokens, threads);
        for (int64_t r; (r = claim_piece(cursor, step->row_count)) >= 0;)
            write_kv(model, layer, &step->rows[r], qkv);
        attend_all(cursor, &layer->kv, step, qkv, stride, attended);
        linear(cursor, &layer->out, attended, y, tokens, threads);
        add_and_norm(cursor, model, x, y, layer->post_attention_norm, normed, tokens);
        linear(cursor, &layer->gate_up, normed, gate_up, tokens, threads);
        silu_gate(cursor, gate_up, gated, tokens, inner);
        linear(cursor, &layer->down, gated, y, tokens, threads);
    }
    int64_t logit_rows = 0;
    for (int64_t r = 0; r < step->row_count; r++) logit_rows += step->rows[r].wants_logits;
    norm_last_tokens(cursor, model, step, x, y, normed);
    linear(cursor, &model->head, normed, step->logits, logit_rows, threads);
    for (int64_t n; (n = claim_piece(cursor, logit_rows)) >= 0;)
        step->argmax_ids[n] = argmax(step->logits + n * model->head.out, model->head.out);
}

/* Runs the steps of one model, one at a time. */
typedef struct {
    ThreadPool *pool;
    StepJob job;
} StepRunner;

/* Create a runner with up to `threads` threads, the caller's included. Returns NULL if memory is
   exhausted. */
void *steps_open(const Model *model, int64_t threads) {
    StepRunner *runner = calloc(1, sizeof *runner);
    if (runner == NULL) return NULL;
    runner->job.model = model;
    runner->pool = pool_create(threads, model->layers * LAYER_PHASES + OTHER_PHASES);
    if (runner->pool == NULL) return NULL;
    runner->pool->program = decode;
    return runner;
}

/* Start a step. Returns at once; `step` and all memory it points to must not be modified until
   `steps_finish` or `steps_discard`. The pool's threads start now, unless step->threads is 1: then
   the caller computes the whole step, in `steps_finish`.

   Returns -1, or the index of the first row that is out of bounds, without starting the step. */
int64_t steps_begin(void *handle, Step *step) {
    StepRunner *runner = handle;
    const int64_t outside = first_out_of_bounds(runner->job.model, step);
    if (outside >= 0) return outside;
    plan_tiles(runner->job.model, step);
    runner->job.step = step;
    pool_start(runner->pool, &runner->job, step->threads > 1);
    return -1;
}

/* Run the step until the KV pool has been read for the last time. */
void steps_run_until_near_end(void *handle) {
    ThreadPool *pool = ((StepRunner *)handle)->pool;
    run_phases(pool, pool->phase_count - TAIL_PHASES);
}

/* Run the rest of the step. Returns the nanoseconds since its end. */
int64_t steps_finish(void *handle) { return pool_finish(((StepRunner *)handle)->pool); }

/* Cancel the rest of the step. Its logits and ids, and the KV of its tokens, are undefined. */
void steps_discard(void *handle) { pool_discard(((StepRunner *)handle)->pool); }

/* Discard the current step, if any, and free the runner. */
void steps_close(void *handle) {
    pool_destroy(((StepRunner *)handle)->pool);
    free(handle);
}
