/* A decoder on a CPU: one job of the thread pool is one step, the forward pass of T tokens from any
   number of rows.

   Compiled for one head dimension (a multiple of 16), page size, element type and number of page
   groups: -DDIM=64 -DPAGE_SIZE=16 -DBF16=0 -DGROUPS=1. Activations are fp32 throughout. */

#include "draw.h"
#include "mixture.h"
#include "paged_attention.h"
#include "recurrence.h"

typedef struct {
    Linear qkv, out;      /* rows of qkv: gates of all heads, if any; queries, keys, values */
    const float *qk_norm; /* [heads + kv_heads, DIM] or NULL */
    const element *rope;  /* [positions, 2, rotated]: cosines; sines with the first half negated */
    int64_t rotated;      /* dimensions of each head that take a rotary embedding; 0: none */
    int64_t has_gate;     /* whether the output is multiplied by the sigmoid of the gates */
    LayerKV kv;
} Attention;

enum { ATTENTION, SHORT_CONVOLUTION, DELTA_NET };

typedef struct {
    int64_t mixer, has_mixture; /* mixer: ATTENTION or another of the enum */
    const float *input_norm, *mlp_norm;               /* [hidden] */
    const float *mixer_output_norm, *mlp_output_norm; /* [hidden] or NULL */
    Attention attention;
    ShortConvolution convolution;
    DeltaNet delta_net;
    Mlp mlp;
    Mixture mixture;
} Layer;

/* Layers whose pages are numbered together. */
typedef struct {
    int64_t pages;  /* in the pool of each of these layers */
    int64_t window; /* tokens that they attend to; 0: all */
} PageGroup;

typedef struct {
    int64_t layers, hidden, heads, kv_heads;
    int64_t act;                    /* activation function of the MLPs */
    int64_t mixer_in, mixer_out;    /* most floats for each token that a mixer takes and yields */
    int64_t mlp_floats;             /* most floats for each token that an MLP needs besides */
    const Layer *layer;
    const element *embedding; /* [vocab, hidden] */
    int64_t has_tied_head;    /* whether the embedding is the head's weight, in panels */
    Linear head;              /* language-model head; head.out is the size of the vocabulary */
    const float *norm;        /* [hidden]: the final norm */
    int64_t positions;        /* rows of the rotary tables */
    int64_t state_slots;      /* 0: no layer is recurrent */
    float eps;                /* of all RMS norms */
    float embedding_scale, residual_scale;
    float logit_softcap; /* bound of the logits; 0: none */
    PageGroup groups[GROUPS];
} Model;

typedef struct {
    StepRow *rows; /* `first` is set by plan_tiles */
    int64_t row_count, threads;
    float *logits;      /* [draws of all rows, vocab] */
    int64_t *drawn_ids; /* [draws of all rows]; see draw */
    int64_t is_greedy;  /* whether all ids are drawn greedily, without `sampling` */
    const Sampling *const *sampling; /* [draws of all rows], set by steps_allow_draws */
    float *scratch; /* T * (3 hidden + mixer_in + mixer_out + mlp_floats) floats, and experts + 1 */
    AttentionTile *tiles; /* room for the sum over rows of ceil(count * group / TILE_QUERIES) */
    int64_t tokens, tile_count; /* set by plan_tiles */
} Step;

typedef struct {
    const Model *model;
    Step *step;
    atomic_llong may_draw; /* 1 when the step's `sampling` is set, or not needed */
} StepJob;

#define FIRST_PHASES 1 /* phases before the layers */

/* Phases of a layer's mixer, and of its MLP, each with the norm before it. */
static int64_t mixer_phases(const Layer *layer) {
    if (layer->mixer == SHORT_CONVOLUTION)
        return 2 + linear_phases(&layer->convolution.inputs)
               + linear_phases(&layer->convolution.out);
    if (layer->mixer == DELTA_NET)
        return 2 + linear_phases(&layer->delta_net.inputs) + linear_phases(&layer->delta_net.out);
    return 3 + layer->attention.has_gate + linear_phases(&layer->attention.qkv)
           + linear_phases(&layer->attention.out);
}

static int64_t mlp_phases(const Layer *layer) {
    if (layer->has_mixture) return 1 + mixture_phases(&layer->mixture);
    return 2 + linear_phases(&layer->mlp.gate_up) + linear_phases(&layer->mlp.down);
}

/* Phases after the layers. */
static int64_t end_phases(const Model *model) { return 2 + linear_phases(&model->head); }

/* x += scale * y, both of `size` floats; y is normalized first, unless `norm` is NULL. */
static void add(const Model *model, float *x, float *y, const float *norm) {
    if (norm) rms_norm(y, norm, model->eps, y, model->hidden);
    for (int64_t i = 0; i < model->hidden; i += LANES)
        *(vec *)(x + i) = load_floats(x + i) + model->residual_scale * load_floats(y + i);
}

/* Add y, unless it is NULL, to the residual stream x, and write the RMS norm of x to `normed`; all
   [tokens, hidden]. `output_norm`: norm of y, or NULL. */
static void add_and_norm(PhaseCursor *cursor, const Model *model, float *x, float *y,
                         const float *output_norm, const float *weight, float *normed,
                         int64_t tokens) {
    const int64_t hidden = model->hidden;
    for (int64_t t, end; claim_tokens(cursor, tokens, &t, &end);)
        for (; t < end; t++) {
            if (y) add(model, x + t * hidden, y + t * hidden, output_norm);
            rms_norm(x + t * hidden, weight, model->eps, normed + t * hidden, hidden);
        }
}

/* Apply the rotary embedding (RoPE, Su et al. 2021) of one position, rope [2, rotated], to the
   first dimensions of one head in place. Dimensions d and d + rotated / 2 are rotated together. */
static void apply_rope(float *x, const element *rope, int64_t rotated) {
    float old[DIM];
    memcpy(old, x, rotated * sizeof *x);
    for (int64_t d = 0; d < rotated; d += LANES) {
        vec rolled;
        for (int n = 0; n < LANES; n++) {
            const int64_t from = d + n + rotated / 2;
            rolled[n] = old[from < rotated ? from : from - rotated];
        }
        *(vec *)(x + d) = load_floats(old + d) * load(rope + d) + rolled * load(rope + rotated + d);
    }
}

/* Normalize and rotate the queries and keys of a row in place, in qkv [T, heads + 2 kv_heads, DIM]
   with `stride` floats for each token, and write its keys and values to the pages. */
static void write_kv(const Model *model, const Attention *layer, const StepRow *row, float *qkv,
                     int64_t stride) {
    const int64_t qk_heads = model->heads + model->kv_heads, rotated = layer->rotated;
    for (int64_t t = 0; t < row->count; t++) {
        float *x = qkv + (row->first + t) * stride;
        const int64_t position = row->start + t;
        for (int64_t h = 0; h < qk_heads; h++) {
            if (layer->qk_norm)
                rms_norm(x + h * DIM, layer->qk_norm + h * DIM, model->eps, x + h * DIM, DIM);
            if (rotated) apply_rope(x + h * DIM, layer->rope + position * 2 * rotated, rotated);
        }
        for (int64_t h = 0; h < model->kv_heads; h++) {
            const PageTable *table = &row->tables[layer->kv.page_group];
            const int64_t to = kv_offset(&layer->kv, table, h, position);
            for (int d = 0; d < DIM; d += LANES) {
                store(layer->kv.keys + to + d, load_floats(x + (model->heads + h) * DIM + d));
                store(layer->kv.values + to + d, load_floats(x + (qk_heads + h) * DIM + d));
            }
        }
    }
}

/* out *= sigmoid(gates), both [T, heads, DIM]; `stride` floats between the gates of two tokens. */
static void apply_gates(PhaseCursor *cursor, const float *gates, int64_t stride, float *out,
                        int64_t tokens, int64_t size) {
    for (int64_t t, end; claim_tokens(cursor, tokens, &t, &end);)
        for (; t < end; t++)
            for (int64_t i = 0; i < size; i += LANES)
                *(vec *)(out + t * size + i) = load_floats(out + t * size + i)
                                               * vec_sigmoid(load_floats(gates + t * stride + i));
}

/* Attention of all rows: a piece is one tile for one KV head. */
static void attend_all(PhaseCursor *cursor, const LayerKV *kv, const Step *step, const float *query,
                       int64_t stride, float *out) {
    for (int64_t n; (n = claim_piece(cursor, step->tile_count * kv->kv_heads)) >= 0;)
        attend(kv, step->rows, &step->tiles[n / kv->kv_heads], query, stride, out,
               n % kv->kv_heads);
}

/* Whether each of `count` indices lies in [0, bound). */
static int all_below(const int32_t *index, int64_t count, int64_t bound) {
    const uint32_t end = (uint32_t)bound; /* a negative index is a large unsigned one */
    int outside = 0;
    for (int64_t n = 0; n < count; n++) outside |= (uint32_t)index[n] >= end;
    return !outside;
}

/* Whether the table begins early enough for the first token of a row, and all its pages lie in the
   pool. */
static int is_table_in_bounds(const PageGroup *group, const PageTable *table, const StepRow *row) {
    const int64_t last = row->start + row->count - 1;
    const int64_t seen = group->window ? row->start + 1 - group->window : 0;
    return table->first_page >= 0 && table->first_page <= (seen > 0 ? seen / PAGE_SIZE : 0) &&
           all_below(table->pages, last / PAGE_SIZE + 1 - table->first_page, group->pages);
}

/* Whether all ids, positions, pages and state slots of a row lie in the vocabulary, the rotary
   tables and the pools. */
static int is_in_bounds(const Model *model, const StepRow *row) {
    const int64_t end = row->start + row->count;
    if (row->count <= 0 || row->start < 0 || end > model->positions) return 0;
    for (int g = 0; g < GROUPS; g++)
        if (!is_table_in_bounds(&model->groups[g], &row->tables[g], row)) return 0;
    if (model->state_slots &&
        (row->state_read < (row->start ? 0 : -1) || row->state_read >= model->state_slots ||
         row->state_write < 0 || row->state_write >= model->state_slots ||
         row->state_write == row->state_read))
        return 0;
    return all_below(row->ids, row->count, model->head.out);
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

/* Look up the embedding of one id: x [hidden]. */
static void embed_id(const Model *model, int64_t id, float *x) {
    const int64_t hidden = model->hidden;
    if (model->has_tied_head)
        read_packed_row(model->embedding, hidden, id, x);
    else
        for (int64_t i = 0; i < hidden; i += LANES)
            *(vec *)(x + i) = load(model->embedding + id * hidden + i);
    for (int64_t i = 0; i < hidden; i += LANES)
        *(vec *)(x + i) = model->embedding_scale * load_floats(x + i);
}

/* Look up the embeddings of all tokens: x [T, hidden]. */
static void embed(PhaseCursor *cursor, const Model *model, const Step *step, float *x) {
    const int64_t hidden = model->hidden;
    for (int64_t r; (r = claim_piece(cursor, step->row_count)) >= 0;)
        for (int64_t t = 0; t < step->rows[r].count; t++)
            embed_id(model, step->rows[r].ids[t], x + (step->rows[r].first + t) * hidden);
}

/* Final norm of x + y, for the tokens from whose logits ids are drawn: out [draws of all rows,
   hidden]. */
static void norm_drawn_tokens(PhaseCursor *cursor, const Model *model, const Step *step, float *x,
                              float *y, const float *output_norm, float *out) {
    const int64_t hidden = model->hidden;
    while (claim_piece(cursor, 1) >= 0)
        for (const StepRow *row = step->rows; row < step->rows + step->row_count; row++)
            for (int64_t n = row->count - row->draws; n < row->count; n++, out += hidden) {
                const int64_t token = (row->first + n) * hidden;
                add(model, x + token, y + token, output_norm);
                rms_norm(x + token, model->norm, model->eps, out, hidden);
            }
}

/* The attention of a layer: x [tokens, hidden] -> y [tokens, hidden]. */
static void attention(PhaseCursor *cursor, const StepJob *job, const Attention *layer, float *x,
                      float *y, float *qkv, float *attended) {
    const Model *model = job->model;
    const Step *step = job->step;
    const int64_t size = model->heads * DIM, stride = layer->qkv.out;
    float *queries = qkv + (layer->has_gate ? size : 0);
    linear(cursor, &layer->qkv, x, qkv, step->tokens, step->threads);
    for (int64_t r; (r = claim_piece(cursor, step->row_count)) >= 0;)
        write_kv(model, layer, &step->rows[r], queries, stride);
    attend_all(cursor, &layer->kv, step, queries, stride, attended);
    if (layer->has_gate) apply_gates(cursor, qkv, stride, attended, step->tokens, size);
    linear(cursor, &layer->out, attended, y, step->tokens, step->threads);
}

/* The mixer of a layer: x [tokens, hidden] -> y [tokens, hidden]. */
static void mix_tokens(PhaseCursor *cursor, const StepJob *job, const Layer *layer, float *x,
                       float *y, float *inputs, float *mixed) {
    const Step *step = job->step;
    const int64_t tokens = step->tokens, threads = step->threads;
    if (layer->mixer == SHORT_CONVOLUTION) {
        linear(cursor, &layer->convolution.inputs, x, inputs, tokens, threads);
        convolve_rows(cursor, &layer->convolution, step->rows, step->row_count, inputs, mixed);
        linear(cursor, &layer->convolution.out, mixed, y, tokens, threads);
    } else if (layer->mixer == DELTA_NET) {
        linear(cursor, &layer->delta_net.inputs, x, inputs, tokens, threads);
        run_delta_net(cursor, &layer->delta_net, step->rows, step->row_count, inputs, mixed,
                      job->model->eps);
        linear(cursor, &layer->delta_net.out, mixed, y, tokens, threads);
    } else
        attention(cursor, job, &layer->attention, x, y, inputs, mixed);
}

/* The program of a step: the forward pass, one phase per operation. */
static void decode(PhaseCursor *cursor, void *argument) {
    StepJob *job = argument;
    const Model *model = job->model;
    const Step *step = job->step;
    const int64_t tokens = step->tokens, threads = step->threads;
    const int64_t size = tokens * model->hidden;
    float *x = step->scratch, *normed = x + size, *y = normed + size;
    float *inputs = y + size, *mixed = inputs + tokens * model->mixer_in;
    float *mlp = mixed + tokens * model->mixer_out;
    const float *output_norm = NULL; /* of y */
    embed(cursor, model, step, x);
    for (int64_t n = 0; n < model->layers; n++) {
        const Layer *layer = &model->layer[n];
        const int64_t inner = layer->mlp.down.in;
        add_and_norm(cursor, model, x, n ? y : NULL, output_norm, layer->input_norm, normed,
                     tokens);
        mix_tokens(cursor, job, layer, normed, y, inputs, mixed);
        add_and_norm(cursor, model, x, y, layer->mixer_output_norm, layer->mlp_norm, normed,
                     tokens);
        if (layer->has_mixture)
            mix_experts(cursor, &layer->mixture, normed, y, mlp, tokens, model->act, threads);
        else {
            linear(cursor, &layer->mlp.gate_up, normed, mlp, tokens, threads);
            activate_gate(cursor, mlp, mlp + 2 * tokens * inner, tokens, inner, model->act);
            linear(cursor, &layer->mlp.down, mlp + 2 * tokens * inner, y, tokens, threads);
        }
        output_norm = layer->mlp_output_norm;
    }
    int64_t draws = 0;
    for (int64_t r = 0; r < step->row_count; r++) draws += step->rows[r].draws;
    norm_drawn_tokens(cursor, model, step, x, y, output_norm, normed);
    linear(cursor, &model->head, normed, step->logits, draws, threads);
    wait_before_phase(cursor, &job->may_draw, 1);
    for (int64_t n; (n = claim_piece(cursor, draws)) >= 0;) {
        float *logits = step->logits + n * model->head.out;
        for (int64_t i = 0; i < model->head.out && model->logit_softcap; i++)
            logits[i] = model->logit_softcap * tanhf(logits[i] / model->logit_softcap);
        step->drawn_ids[n] =
            draw(step->sampling ? step->sampling[n] : NULL, logits, model->head.out);
    }
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
    int64_t phases = FIRST_PHASES + end_phases(model);
    for (int64_t n = 0; n < model->layers; n++)
        phases += mixer_phases(&model->layer[n]) + mlp_phases(&model->layer[n]);
    runner->pool = pool_create(threads, phases);
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
    atomic_store(&runner->job.may_draw, step->is_greedy);
    pool_start(runner->pool, &runner->job, step->threads > 1);
    return -1;
}

static void allow_draws(StepRunner *runner) {
    atomic_store(&runner->job.may_draw, 1);
    wake_all(runner->pool);
}

/* Set how the ids of a step are drawn: `sampling` of each draw, NULL for a greedy one. Required once for a step that is not greedy, before `steps_finish`. */
void steps_allow_draws(void *handle, const Sampling *const *sampling) {
    StepRunner *runner = handle;
    runner->job.step->sampling = sampling;
    allow_draws(runner);
}

/* Run the step until the KV pool and the states have been read for the last time: the rest is the
   last layer's MLP, and the end. Leaves earlier, at the end of a piece, once `ns` nanoseconds have
   passed (-1: no limit), and can be called again. Returns the share of the step's phases that are
   computed, above 0; 1: the step is near its end. */
double steps_run_until_near_end(void *handle, int64_t ns) {
    const StepRunner *runner = handle;
    const Model *model = runner->job.model;
    const int64_t rest = mlp_phases(&model->layer[model->layers - 1]) + end_phases(model);
    const int64_t leave_ns = ns < 0 ? NEVER_NS : now_ns() + ns;
    const double phases = (double)runner->pool->phase_count, count = phases - (double)rest;
    const double computed = run_phases(runner->pool, (int64_t)count, leave_ns);
    return computed == count ? 1 : computed / phases;
}

/* Run the rest of the step. Returns the nanoseconds since its end. */
int64_t steps_finish(void *handle) { return pool_finish(((StepRunner *)handle)->pool); }

/* Cancel the rest of the step. Its logits and ids, and the KV of its tokens, are undefined. */
void steps_discard(void *handle) {
    allow_draws(handle);
    pool_discard(((StepRunner *)handle)->pool);
}

/* Discard the current step, if any, and free the runner. */
void steps_close(void *handle) {
    allow_draws(handle);
    pool_destroy(((StepRunner *)handle)->pool);
    free(handle);
}
