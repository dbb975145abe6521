/* A Llama-family decoder on a CPU: one job is one step, for T tokens of any number of rows.

   Compiled for one head dimension (a multiple of 16), page size and element type:
   -DDIM=64 -DSLOTS=16 -DBF16=0. Activations are fp32 throughout. */

#include "attention.h"
#include "crew.h"

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
    const element *rope; /* [positions, 2, DIM]: cosines, then sines, the first half negated */
    Linear head;         /* head.out is the vocabulary: rows of `embedding`, too */
    int64_t positions, pages; /* rows of `rope`; pages of each layer's pool */
    float eps;
} Model;

typedef struct {
    Row *rows; /* `first` is filled in */
    int64_t count, threads;
    float *logits;  /* [rows wanted, vocab] */
    int64_t *likely; /* [rows wanted] the likeliest id, the first of equals; -1: a logit is NaN or
                        +inf, or all are -inf */
    float *scratch; /* T * (3 hidden + DIM * (2 heads + 2 kv_heads) + 3 inner) floats */
    Unit *units;    /* as many as there are, sum over rows of count * group / QUERIES, rounded up */
    int64_t tokens, unit_count; /* filled in */
} Work;

typedef struct {
    const Model *model;
    const Work *work;
} Job;

#define LAYER_PARTS 9 /* of the program, each layer's */
#define OTHER_PARTS 4
#define LAST_PARTS 7 /* from the last layer's second half on */
#define TOKENS 4      /* of a piece, where it is little work for each */
#define SHARES 8      /* pieces of a matrix for each thread */

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
static void apply(Walk *walk, const Linear *linear, const float *x, float *out, int64_t tokens,
                  int64_t threads) {
    const int64_t in = linear->in, size = linear->out, blocks = size / OUTS;
    const int64_t share = (blocks + threads * SHARES - 1) / (threads * SHARES);
    for (int64_t piece; (piece = next(walk, (blocks + share - 1) / share)) >= 0;) {
        const int64_t from = piece * share * OUTS, to = from + share * OUTS;
        for (int64_t n = from; n < to && n < size; n += OUTS) {
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
}

/* Those [*t, *end) of `count` tokens that are the next piece; 0: there is none. */
static int next_tokens(Walk *walk, int64_t count, int64_t *t, int64_t *end) {
    const int64_t piece = next(walk, (count + TOKENS - 1) / TOKENS);
    *t = piece * TOKENS;
    *end = *t + TOKENS < count ? *t + TOKENS : count;
    return piece >= 0;
}

/* RMS norm of one vector of `size`. */
static void norm(const float *x, const float *weight, float eps, float *out, int64_t size) {
    vec all = {0};
    for (int64_t i = 0; i < size; i += LANES) all += at(x + i) * at(x + i);
    const float scale = 1.0f / sqrtf(sum(all) / size + eps);
    for (int64_t i = 0; i < size; i += LANES)
        *(vec *)(out + i) = at(x + i) * scale * at(weight + i);
}

static void add(float *x, const float *y, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) *(vec *)(x + i) = at(x + i) + at(y + i);
}

/* What the part before has made, `y`, if any, is added to x; then that is normed. */
static void add_and_norm(Walk *walk, const Model *model, float *x, const float *y,
                         const float *weight, float *normed, int64_t tokens) {
    const int64_t hidden = model->hidden;
    for (int64_t t, end; next_tokens(walk, tokens, &t, &end);)
        for (; t < end; t++) {
            if (y) add(x + t * hidden, y + t * hidden, hidden);
            norm(x + t * hidden, weight, model->eps, normed + t * hidden, hidden);
        }
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

static void attend_all(Walk *walk, const Pool *pool, const Work *work, const float *query,
                       int64_t stride, float *out) {
    for (int64_t n; (n = next(walk, work->unit_count * pool->kv_heads)) >= 0;)
        attend(pool, work->rows, &work->units[n / pool->kv_heads], query, stride, out,
               n % pool->kv_heads);
}

/* both [tokens, 2 * inner] -> out [tokens, inner]: silu(first half) * second half. */
static void gate(Walk *walk, const float *both, float *out, int64_t tokens, int64_t inner) {
    for (int64_t t, end; next_tokens(walk, tokens, &t, &end);)
        for (; t < end; t++)
            for (int64_t i = 0; i < inner; i += LANES) {
                const vec g = at(both + t * 2 * inner + i), u = at(both + t * 2 * inner + inner + i);
                const ivec negative = g < set(0);
                const vec e = exponential((vec)((ivec)g | 0x80000000)); /* of -|g| */
                const vec up = (vec)(((ivec)e & negative) | ((ivec)set(1) & ~negative));
                *(vec *)(out + t * inner + i) = g * up / (1.0f + e) * u;
            }
}

static int64_t likeliest(const float *logits, int64_t size) {
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

/* Whether every look-up of this row stays inside the embedding, the rotary table and the pool. */
static int is_inside(const Model *model, const Row *row) {
    const int64_t end = row->start + row->count;
    return row->count > 0 && row->start >= 0 && end <= model->positions &&
           all_below(row->pages, (end + SLOTS - 1) / SLOTS, model->pages) &&
           all_below(row->ids, row->count, model->head.out);
}

/* The first row that would read or write outside the model or the pool; -1: there is none. */
static int64_t first_outside(const Model *model, const Work *work) {
    for (int64_t r = 0; r < work->count; r++)
        if (!is_inside(model, &work->rows[r])) return r;
    return -1;
}

/* Units of all rows, and where each row's tokens begin. */
static void lay(const Model *model, Work *work) {
    const int64_t group = model->heads / model->kv_heads;
    work->tokens = work->unit_count = 0;
    for (int64_t r = 0; r < work->count; r++) {
        work->rows[r].first = work->tokens;
        work->tokens += work->rows[r].count;
        for (int64_t q = 0; q < work->rows[r].count * group; q += QUERIES)
            work->units[work->unit_count++] = (Unit){r, q};
    }
}

static void embed(Walk *walk, const Model *model, const Work *work, float *x) {
    const int64_t hidden = model->hidden;
    for (int64_t r; (r = next(walk, work->count)) >= 0;)
        for (int64_t t = 0; t < work->rows[r].count; t++)
            for (int64_t i = 0; i < hidden; i += LANES)
                *(vec *)(x + (work->rows[r].first + t) * hidden + i) =
                    load(model->embedding + work->rows[r].ids[t] * hidden + i);
}

/* Of the rows that want it, the last token of each, normed: to `out`, packed. */
static void norm_last(Walk *walk, const Model *model, const Work *work, float *x, const float *y,
                      float *out) {
    const int64_t hidden = model->hidden;
    while (next(walk, 1) >= 0)
        for (const Row *row = work->rows; row < work->rows + work->count; row++)
            if (row->wanted) {
                const int64_t last = (row->first + row->count - 1) * hidden;
                add(x + last, y + last, hidden);
                norm(x + last, model->norm, model->eps, out, hidden);
                out += hidden;
            }
}

static void decode(Walk *walk, const void *of) {
    const Job *job = of;
    const Model *model = job->model;
    const Work *work = job->work;
    const int64_t tokens = work->tokens, threads = work->threads;
    const int64_t all = tokens * model->hidden, inner = model->inner;
    const int64_t stride = (model->heads + 2 * model->kv_heads) * DIM;
    float *x = work->scratch, *normed = x + all, *y = normed + all;
    float *qkv = y + all, *mixed = qkv + tokens * stride;
    float *both = mixed + tokens * model->heads * DIM, *gated = both + 2 * tokens * inner;
    embed(walk, model, work, x);
    for (int64_t n = 0; n < model->layers; n++) {
        const Layer *layer = &model->layer[n];
        add_and_norm(walk, model, x, n ? y : NULL, layer->before, normed, tokens);
        apply(walk, &layer->qkv, normed, qkv, tokens, threads);
        for (int64_t r; (r = next(walk, work->count)) >= 0;)
            place(model, layer, &work->rows[r], qkv);
        attend_all(walk, &layer->pool, work, qkv, stride, mixed);
        apply(walk, &layer->mixed, mixed, y, tokens, threads);
        add_and_norm(walk, model, x, y, layer->after, normed, tokens);
        apply(walk, &layer->gate_up, normed, both, tokens, threads);
        gate(walk, both, gated, tokens, inner);
        apply(walk, &layer->down, gated, y, tokens, threads);
    }
    int64_t answers = 0;
    for (int64_t r = 0; r < work->count; r++) answers += work->rows[r].wanted;
    norm_last(walk, model, work, x, y, normed);
    apply(walk, &model->head, normed, work->logits, answers, threads);
    for (int64_t a; (a = next(walk, answers)) >= 0;)
        work->likely[a] = likeliest(work->logits + a * model->head.out, model->head.out);
}

/* The steps of one model, one after another. NULL: no memory. */
typedef struct {
    Crew *crew;
    Job job;
} Desk;

void *desk_open(const Model *model, int64_t threads) {
    Desk *desk = calloc(1, sizeof *desk);
    if (desk == NULL) return NULL;
    desk->job.model = model;
    desk->crew = assemble(threads, model->layers * LAYER_PARTS + OTHER_PARTS);
    if (desk->crew == NULL) return NULL;
    desk->crew->program = decode;
    return desk;
}

/* Returns at once; `work` and all it points to must stay as they are until `desk_finish` or
   `desk_abandon`. With more than one thread the others begin; with one, nothing is done before.

   Returns -1, or the number of the first row that is out of bounds: then nothing has begun. */
int64_t desk_begin(void *of, Work *work) {
    Desk *desk = of;
    const int64_t outside = first_outside(desk->job.model, work);
    if (outside >= 0) return outside;
    lay(desk->job.model, work);
    desk->job.work = work;
    open_job(desk->crew, &desk->job, work->threads > 1);
    return -1;
}

/* Works at it until no KV is read any more. */
void desk_approach(void *of) {
    Crew *crew = ((Desk *)of)->crew;
    walk(crew, crew->count - LAST_PARTS);
}

/* Nanoseconds for which it has been done. */
int64_t desk_finish(void *of) { return finish_job(((Desk *)of)->crew); }

void desk_abandon(void *of) { abandon_job(((Desk *)of)->crew); }

void desk_close(void *of) {
    dismiss(((Desk *)of)->crew);
    free(of);
}
