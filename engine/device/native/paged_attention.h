/* Paged attention: keys and values are read in place from the pages of the KV pool.

   keys, values [page, kv_head, slot, DIM]   of one layer

   Online softmax over blocks of keys (FlashAttention, Dao et al. 2022) on a paged KV cache
   (PagedAttention, Kwon et al. 2023). The query heads that share a KV head (grouped-query
   attention) are computed together, so that each key is read once for all of them. Slots after the
   end of a row in its last page may hold NaN and are never read.

   All sums have one order, whatever queries are computed together: a block begins at a multiple of
   BLOCK_KEYS, its keys have the order of gather_block, which leaves out those that no query sees,
   and a dot product is the sum of LANES partial sums, added as sum_lanes does. */

#pragma once

#include "operations.h"

#define VECTORS (DIM / LANES) /* of one head */
#define TILE_QUERIES 32       /* queries of one KV head that are computed together */
#define BLOCK_KEYS 64
#define STREAMS 4     /* sections of a block, read interleaved: a hardware prefetch stream each */
#define SECTION (BLOCK_KEYS / STREAMS)
#define FEW_QUERIES 8 /* below this, transposing the keys costs more than it saves */
#define MASKED_SCORE -1e30f

/* The pages of one row in one page group: those from index first_page to the end of the row. */
typedef struct {
    const int32_t *pages;
    int64_t first_page;
} PageTable;

/* New tokens of one sequence in a step. */
typedef struct {
    const int32_t *ids;
    int64_t count, start;     /* new tokens; tokens before them, whose KV is in the pages already */
    int64_t draws;            /* number of last tokens from whose logits an id is drawn */
    int64_t first;            /* index of the first new token among those of all rows */
    int64_t state_read, state_write; /* slots of the recurrent state; read is -1 at position 0 */
    PageTable tables[GROUPS]; /* by page group */
} StepRow;

/* Up to TILE_QUERIES consecutive queries of a row. A row has count * group queries for each KV
   head, numbered token by token. */
typedef struct {
    int64_t row, query; /* query: number of the first query */
} AttentionTile;

/* The KV cache of one layer. */
typedef struct {
    element *keys, *values;
    int64_t kv_heads, group; /* group: query heads per KV head */
    int64_t window;          /* sliding window in tokens, the current one included; 0: none */
    int64_t page_group;      /* index of the layer's page table in those of a row */
    float scale;             /* of the scores, usually 1 / sqrt(DIM) */
    float softcap;           /* bound c of the scores s, which become c tanh(s / c); 0: none */
    const float *sinks;      /* [heads]: a score of each head that belongs to no key; or NULL */
} LayerKV;

/* Queries, and accumulators of the online softmax, of one tile and KV head. */
typedef struct {
    vec query[TILE_QUERIES][VECTORS], out[TILE_QUERIES][VECTORS];
    float max[TILE_QUERIES], sum[TILE_QUERIES]; /* max of the scores; sum of exp(score - max) */
    float score[TILE_QUERIES][BLOCK_KEYS];      /* scores, later replaced by exp(score - max) */
    float transposed[DIM][BLOCK_KEYS];          /* keys of the block, in fp32 */
} TileState;

/* Addresses of a block's keys and values, padded with readable ones to a multiple of LANES. `place`:
   of each, the distance of its position from the first position of the block; not set in a block
   that has all keys. */
typedef struct {
    const element *key[BLOCK_KEYS], *value[BLOCK_KEYS];
    int32_t place[BLOCK_KEYS];
    int keys;
} KeyBlock;

/* Place of number `k` of a block that has all keys: the first of each section, the second of each
   section, and so on. */
static inline int full_place(int k) { return k % STREAMS * SECTION + k / STREAMS; }

/* Positions [begin, end) that at least one query of a tile attends to. */
typedef struct {
    int64_t begin, end;
} VisibleRange;

/* Prefetch LANES keys or values with the non-temporal hint: each is read once per step, and caching
   it would evict data that the rest of the engine needs between steps. */
static inline __attribute__((always_inline)) void prefetch(const element *const *from) {
    for (int n = 0; n < LANES; n++)
        for (int d = 0; d < DIM; d += 64 / (int)sizeof(element))
            __builtin_prefetch(from[n] + d, 0, 0);
}

/* Scores of a few queries: one dot product for each query and key. */
static void score_few(TileState *state, const KeyBlock *block, int queries) {
    for (int k = 0; k < block->keys; k += LANES) {
        prefetch(k + LANES < block->keys ? block->key + k + LANES : block->value);
        for (int q = 0; q < queries; q++) {
            vec s[LANES];
            for (int n = 0; n < LANES; n++) {
                s[n] = state->query[q][0] * load(block->key[k + n]);
                for (int v = 1; v < VECTORS; v++)
                    s[n] += state->query[q][v] * load(block->key[k + n] + v * LANES);
            }
            *(vec *)&state->score[q][k] = sum_lanes(s);
        }
    }
}

/* Scores of many queries: the keys are transposed, so that each lane holds a key. The partial sums
   of a dot product are added in pairs, as in score_few: `partial` holds those of 1, 2, 4, … The two
   functions begin with the same expression, in which the compiler fuses the same products. */
static void score_many(TileState *state, const KeyBlock *block, int queries) {
    const int keys = block->keys;
    for (int k = 0; k < keys; k++)
        for (int v = 0; v < VECTORS; v++) {
            const vec key = load(block->key[k] + v * LANES);
            for (int n = 0; n < LANES; n++) state->transposed[v * LANES + n][k] = key[n];
        }
    for (int q = 0; q < queries; q += 4)
        for (int k = 0; k < keys; k += LANES) {
            vec partial[LANES_LOG2 + 1][4];
#pragma GCC unroll 16
            for (int m = 0; m < LANES; m++) {
                vec s[4];
                const vec first = load_floats(&state->transposed[m][k]);
                for (int n = 0; n < 4; n++) s[n] = ((const float *)state->query[q + n])[m] * first;
                for (int d = m + LANES; d < DIM; d += LANES) {
                    const vec key = load_floats(&state->transposed[d][k]);
                    for (int n = 0; n < 4; n++)
                        s[n] += ((const float *)state->query[q + n])[d] * key;
                }
                for (int n = 0; n < 4; n++) s[n] = rounded(s[n]);
                int size = 0;
                for (; m >> size & 1; size++)
                    for (int n = 0; n < 4; n++) s[n] = partial[size][n] + s[n];
                memcpy(partial[size], s, sizeof s);
            }
            for (int n = 0; n < 4; n++) *(vec *)&state->score[q + n][k] = partial[LANES_LOG2][n];
        }
}

/* c tanh(s / c) for the scores of query q, where tanh(x) = 2 sigmoid(2 x) - 1. */
static void cap_scores(TileState *state, int q, int keys, float softcap) {
    for (int k = 0; k < keys; k += LANES) {
        const vec x = load_floats(&state->score[q][k]) * (2.0f / softcap);
        *(vec *)&state->score[q][k] = softcap * (2.0f * vec_sigmoid(x) - 1.0f);
    }
}

/* Online softmax (Milakov and Gimelshein 2018) of query q, which is at `position`: mask the scores
   of a block that begins at position `from`, replace them by exp(score - max), and rescale the
   accumulators if the running maximum grows. */
static void online_softmax(TileState *state, int q, const KeyBlock *block, int64_t from,
                           int64_t position, int64_t window) {
    const int keys = block->keys;
    float *score = state->score[q];
    for (int k = keys; k % LANES; k++) score[k] = MASKED_SCORE;
    const int64_t end = position + 1 - from, begin = window ? end - window : 0;
    if (end < BLOCK_KEYS || begin > 0)
        for (int k = 0; k < keys; k++) {
            const int place = keys == BLOCK_KEYS ? full_place(k) : block->place[k];
            if (place >= end || place < begin) score[k] = MASKED_SCORE;
        }
    vec lane_max = load_floats(score);
    for (int k = LANES; k < keys; k += LANES) {
        const vec s = load_floats(score + k);
        const ivec greater = s > lane_max;
        lane_max = (vec)(((ivec)s & greater) | ((ivec)lane_max & ~greater));
    }
    float max = state->max[q];
    for (int n = 0; n < LANES; n++) max = lane_max[n] > max ? lane_max[n] : max;
    for (int k = 0; k < keys; k += LANES)
        *(vec *)&score[k] = vec_exp(load_floats(score + k) - broadcast(max));
    if (max != state->max[q]) {
        const vec rescale = vec_exp(broadcast(state->max[q] - max));
        state->sum[q] *= rescale[0];
        for (int v = 0; v < VECTORS; v++) state->out[q][v] *= rescale;
        state->max[q] = max;
    }
}

/* Add the block's values, weighted, to each query's output, and the weights to their sum, two
   queries at a time. Prefetches the rest of the values and the keys of `next`, the block after this one, unless `next` is NULL. */
static void accumulate_values(TileState *state, const KeyBlock *block, const KeyBlock *next,
                              int queries) {
    const int keys = block->keys;
    for (int q = 0; q < queries; q += 2) {
        vec out_a[VECTORS], out_b[VECTORS];
        memcpy(out_a, state->out[q], sizeof out_a);
        memcpy(out_b, state->out[q + 1], sizeof out_b);
        float sum_a = state->sum[q], sum_b = state->sum[q + 1];
        for (int k = 0; k < keys; k++) {
            if (next && !q && k % LANES == 0)
                prefetch(k + LANES < keys ? block->value + k + LANES : next->key);
            const float a = state->score[q][k], b = state->score[q + 1][k];
            sum_a += a, sum_b += b;
            for (int v = 0; v < VECTORS; v++) {
                const vec value = load(block->value[k] + v * LANES);
                out_a[v] += a * value;
                out_b[v] += b * value;
            }
        }
        memcpy(state->out[q], out_a, sizeof out_a);
        memcpy(state->out[q + 1], out_b, sizeof out_b);
        state->sum[q] = sum_a, state->sum[q + 1] = sum_b;
    }
}

/* Offset, in elements, of a position's key and value in the layer's pool. */
static inline int64_t kv_offset(const LayerKV *kv, const PageTable *table, int64_t head,
                                int64_t position) {
    const int64_t page = table->pages[position / PAGE_SIZE - table->first_page];
    return ((page * kv->kv_heads + head) * PAGE_SIZE + position % PAGE_SIZE) * DIM;
}

/* Gather the addresses of the visible keys and values of the block from position `from` on, in the
   order of full_place. */
static void gather_block(KeyBlock *block, const LayerKV *kv, const PageTable *table, int64_t head,
                         const VisibleRange *visible, int64_t from) {
    const int64_t left = visible->end - from;
    const int end = left < 0 ? 0 : left < BLOCK_KEYS ? (int)left : BLOCK_KEYS;
    const int begin = visible->begin > from ? (int)(visible->begin - from) : 0;
    const int keys = block->keys = end > begin ? end - begin : 0;
    int number[BLOCK_KEYS]; /* of each place, in a block that lacks keys */
    for (int k = 0, n = 0; n < keys && keys < BLOCK_KEYS; k++) {
        const int place = full_place(k);
        if (place < begin || place >= end) continue;
        block->place[n] = place;
        number[place] = n++;
    }
    for (int place = begin; place < end;) {
        const int64_t offset = kv_offset(kv, table, head, from + place);
        const int run = (int)(PAGE_SIZE - (from + place) % PAGE_SIZE); /* slots left in the page */
        for (int i = 0; i < run && place < end; i++, place++) {
            const int k = keys == BLOCK_KEYS ? place % SECTION * STREAMS + place / SECTION
                                             : number[place];
            block->key[k] = kv->keys + offset + i * DIM;
            block->value[k] = kv->values + offset + i * DIM;
        }
    }
    for (int k = keys; k % LANES; k++) {
        block->key[k] = block->key[0];
        block->value[k] = block->value[0];
    }
}

/* Compute one tile for one KV head: query [T, heads, DIM], with `stride` floats from one token to
   the next, to out [T, heads, DIM]. */
static void attend(const LayerKV *kv, const StepRow *rows, const AttentionTile *tile,
                   const float *query, int64_t stride, float *out, int64_t head) {
    TileState state;
    const StepRow *row = &rows[tile->row];
    const PageTable *table = &row->tables[kv->page_group];
    const int64_t group = kv->group, heads = kv->kv_heads * group;
    const int64_t first = tile->query, token = row->first, start = row->start;
    const int64_t left = row->count * group - first;
    const int queries = (int)(left < TILE_QUERIES ? left : TILE_QUERIES);
    const int padded = (queries + 3) / 4 * 4;
    memset(state.query, 0, padded * sizeof state.query[0]);
    memset(state.out, 0, padded * sizeof state.out[0]);
    memset(state.score, 0, padded * sizeof state.score[0]);
    memset(state.sum, 0, sizeof state.sum);
    for (int q = 0; q < queries; q++) {
        const int64_t index = first + q;
        const float *from = query + (token + index / group) * stride
                            + (head * group + index % group) * DIM;
        for (int v = 0; v < VECTORS; v++)
            state.query[q][v] = load_floats(from + v * LANES) * kv->scale;
        state.max[q] = kv->sinks ? kv->sinks[head * group + index % group] : MASKED_SCORE;
        state.sum[q] = kv->sinks ? 1 : 0;
    }
    const int64_t begin_max = kv->window ? start + first / group + 1 - kv->window : 0;
    const VisibleRange visible = {begin_max > 0 ? begin_max : 0,
                                  start + (first + queries - 1) / group + 1};
    const int64_t end = visible.end;
    KeyBlock blocks[2]; /* the current one and the next one */
    int64_t from = visible.begin / BLOCK_KEYS * BLOCK_KEYS;
    gather_block(&blocks[0], kv, table, head, &visible, from);
    for (int current = 0; from < end; from += BLOCK_KEYS, current ^= 1) {
        const KeyBlock *block = &blocks[current], *next = &blocks[current ^ 1];
        gather_block(&blocks[current ^ 1], kv, table, head, &visible, from + BLOCK_KEYS);
        if (queries < FEW_QUERIES) score_few(&state, block, queries);
        else score_many(&state, block, queries);
        for (int q = 0; q < queries && kv->softcap; q++)
            cap_scores(&state, q, block->keys, kv->softcap);
        for (int q = 0; q < queries; q++)
            online_softmax(&state, q, block, from, start + (first + q) / group, kv->window);
        accumulate_values(&state, block, queries < FEW_QUERIES && next->keys ? next : NULL,
                          queries);
    }
    for (int q = 0; q < queries; q++) {
        const int64_t index = first + q;
        float *to = out + ((token + index / group) * heads + head * group + index % group) * DIM;
        for (int v = 0; v < VECTORS; v++)
            *(vec *)(to + v * LANES) = state.out[q][v] / state.sum[q];
    }
}
