/* Paged attention that reads keys and values where they lie.

   keys, values [page, kv_head, slot, DIM]   one layer's pool

   The softmax is taken block by block (FlashAttention, Dao et al. 2022), over pages (PagedAttention,
   Kwon et al. 2023). The query heads of one KV head are computed together, so that a key is read
   once for all of them. What lies beyond a row's end in its last page may be NaN: never read. */

#pragma once

#include "vectors.h"

#define PARTS (DIM / LANES)
#define QUERIES 32 /* of one KV head, computed together */
#define KEYS 64    /* of one block */
#define STREAMS 4  /* of a block, read side by side: the processor reads ahead in each of them */
#define FEW 8      /* with fewer queries, turning the keys round costs more than it saves */
#define HIDDEN -1e30f

typedef struct {
    const int32_t *ids, *pages; /* pages cover [0, start + count) */
    int64_t count, start;       /* start: tokens of the row that are in its pages already */
    int64_t wanted;             /* whether its last token's logits are */
    int64_t first;              /* of its tokens, among those of all rows */
} Row;

typedef struct {
    int64_t row, query; /* the first of up to QUERIES of the row's count * group */
} Unit;

typedef struct {
    element *keys, *values;
    int64_t kv_heads, group; /* group: query heads of one KV head */
    int64_t window;          /* positions back that a token sees, itself included; 0: all */
    float scale;
} Pool;

/* One KV head of up to QUERIES queries. Those of a row are counted token by token. */
typedef struct {
    vec query[QUERIES][PARTS], mixed[QUERIES][PARTS];
    float top[QUERIES], total[QUERIES];
    float score[QUERIES][KEYS];
    float turned[DIM][KEYS];
} Tile;

/* Where keys and values lie; after the last of `keys` up to a multiple of LANES: any that may be
   read. */
typedef struct {
    const element *key[KEYS], *value[KEYS];
    int keys;
} Block;

/* What the queries of a unit see: some of them [first, end), all of them [begin, seen). */
typedef struct {
    int64_t first, begin, seen, end;
} Sight;

/* LANES keys or values are asked for ahead of their use, past the caches: each is read once a step,
   and would push out of them what the rest of the engine needs between two steps. */
static inline __attribute__((always_inline)) void fetch(const element *const *at) {
    for (int n = 0; n < LANES; n++)
        for (int d = 0; d < DIM; d += 64 / (int)sizeof(element)) __builtin_prefetch(at[n] + d, 0, 0);
}

static void score_few(Tile *tile, const Block *block, int queries) {
    for (int k = 0; k < block->keys; k += LANES) {
        fetch(k + LANES < block->keys ? block->key + k + LANES : block->value);
        for (int q = 0; q < queries; q++) {
            vec s[LANES];
            for (int n = 0; n < LANES; n++) {
                s[n] = tile->query[q][0] * load(block->key[k + n]);
                for (int p = 1; p < PARTS; p++)
                    s[n] += tile->query[q][p] * load(block->key[k + n] + p * LANES);
            }
            *(vec *)&tile->score[q][k] = fold(s);
        }
    }
}

static void score_many(Tile *tile, const Block *block, int queries) {
    const int keys = block->keys;
    for (int k = 0; k < keys; k++)
        for (int p = 0; p < PARTS; p++) {
            const vec key = load(block->key[k] + p * LANES);
            for (int n = 0; n < LANES; n++) tile->turned[p * LANES + n][k] = key[n];
        }
    for (int q = 0; q < queries; q += 4)
        for (int k = 0; k < keys; k += LANES) {
            vec s[4] = {{0}};
            for (int d = 0; d < DIM; d++) {
                const vec key = at(&tile->turned[d][k]);
                for (int n = 0; n < 4; n++) s[n] += ((const float *)tile->query[q + n])[d] * key;
            }
            for (int n = 0; n < 4; n++) *(vec *)&tile->score[q + n][k] = s[n];
        }
}

/* The scores of keys [from, from + keys) become weights; what was mixed before is rescaled. */
static void soften(Tile *tile, int q, int keys, int64_t from, int64_t position, int64_t window) {
    float *score = tile->score[q];
    for (int k = keys; k % LANES; k++) score[k] = HIDDEN;
    const int64_t end = position + 1 - from;
    for (int64_t k = end < 0 ? 0 : end; k < keys; k++) score[k] = HIDDEN;
    const int64_t begin = window ? position + 1 - window - from : 0;
    for (int64_t k = 0; k < begin && k < keys; k++) score[k] = HIDDEN;
    vec most = at(score);
    for (int k = LANES; k < keys; k += LANES) {
        const vec s = at(score + k);
        const ivec more = s > most;
        most = (vec)(((ivec)s & more) | ((ivec)most & ~more));
    }
    float top = tile->top[q];
    for (int n = 0; n < LANES; n++) top = most[n] > top ? most[n] : top;
    vec all = {0};
    for (int k = 0; k < keys; k += LANES) {
        const vec weight = exponential(at(score + k) - set(top));
        *(vec *)&score[k] = weight;
        all += weight;
    }
    if (top != tile->top[q]) {
        const vec fade = exponential(set(tile->top[q] - top));
        tile->total[q] *= fade[0];
        for (int p = 0; p < PARTS; p++) tile->mixed[q][p] *= fade;
        tile->top[q] = top;
    }
    tile->total[q] += sum(all);
}

/* `next`: the block after it, if there is one, where it is to be fetched; else NULL. */
static void mix(Tile *tile, const Block *block, const Block *next, int queries) {
    const int keys = block->keys;
    for (int q = 0; q < queries; q += 2) {
        vec one[PARTS], two[PARTS];
        memcpy(one, tile->mixed[q], sizeof one);
        memcpy(two, tile->mixed[q + 1], sizeof two);
        for (int k = 0; k < keys; k++) {
            if (next && !q && k % LANES == 0)
                fetch(k + LANES < keys ? block->value + k + LANES : next->key);
            const float a = tile->score[q][k], b = tile->score[q + 1][k];
            for (int p = 0; p < PARTS; p++) {
                const vec value = load(block->value[k] + p * LANES);
                one[p] += a * value;
                two[p] += b * value;
            }
        }
        memcpy(tile->mixed[q], one, sizeof one);
        memcpy(tile->mixed[q + 1], two, sizeof two);
    }
}

/* Where a position's key and value lie, in elements. */
static inline int64_t place_of(const Pool *pool, const int32_t *pages, int64_t head, int64_t at) {
    return (((int64_t)pages[at / SLOTS] * pool->kv_heads + head) * SLOTS + at % SLOTS) * DIM;
}

/* The block of keys from `from` on. One that all queries see whole may be taken in any order: then
   one after another from each of its STREAMS parts. */
static void locate(Block *block, const Pool *pool, const int32_t *pages, int64_t head,
                   const Sight *sight, int64_t from) {
    const int64_t left = sight->end - from;
    const int keys = block->keys = left < 0 ? 0 : left < KEYS ? (int)left : KEYS;
    const int whole = from >= sight->begin && from + KEYS <= sight->seen;
    for (int k = 0; k < keys;) {
        const int64_t place = place_of(pool, pages, head, from + k);
        const int run = (int)(SLOTS - (from + k) % SLOTS);
        for (int i = 0; i < run && k < keys; i++, k++) {
            const int to = whole ? k % (KEYS / STREAMS) * STREAMS + k / (KEYS / STREAMS) : k;
            block->key[to] = pool->keys + place + i * DIM;
            block->value[to] = pool->values + place + i * DIM;
        }
    }
    for (int k = keys; k % LANES; k++) {
        block->key[k] = block->key[0];
        block->value[k] = block->value[0];
    }
}

/* One unit and KV head: query [T, ...], tokens `stride` floats apart, to out [T, heads, DIM]. */
static void attend(const Pool *pool, const Row *rows, const Unit *unit, const float *query,
                   int64_t stride, float *out, int64_t head) {
    Tile tile;
    const Row *row = &rows[unit->row];
    const int32_t *pages = row->pages;
    const int64_t group = pool->group, heads = pool->kv_heads * group;
    const int64_t first = unit->query, token = row->first, start = row->start;
    const int64_t left = row->count * group - first;
    const int queries = (int)(left < QUERIES ? left : QUERIES);
    const int padded = (queries + 3) / 4 * 4;
    memset(tile.query, 0, padded * sizeof tile.query[0]);
    memset(tile.mixed, 0, padded * sizeof tile.mixed[0]);
    memset(tile.score, 0, padded * sizeof tile.score[0]);
    for (int q = 0; q < queries; q++) {
        const int64_t of = first + q;
        const float *from = query + (token + of / group) * stride
                            + (head * group + of % group) * DIM;
        for (int p = 0; p < PARTS; p++) tile.query[q][p] = at(from + p * LANES) * pool->scale;
        tile.top[q] = HIDDEN;
        tile.total[q] = 0;
    }
    const int64_t seen = start + first / group + 1;
    const int64_t end = start + (first + queries - 1) / group + 1;
    const int64_t before = pool->window ? pool->window : end;
    const Sight sight = {seen > before ? seen - before : 0, end - before, seen, end};
    Block blocks[2];
    int64_t from = sight.first;
    locate(&blocks[0], pool, pages, head, &sight, from);
    for (int turn = 0; from < end; from += KEYS, turn ^= 1) {
        const Block *block = &blocks[turn], *next = &blocks[turn ^ 1];
        locate(&blocks[turn ^ 1], pool, pages, head, &sight, from + KEYS);
        if (queries < FEW) score_few(&tile, block, queries);
        else score_many(&tile, block, queries);
        for (int q = 0; q < queries; q++)
            soften(&tile, q, block->keys, from, start + (first + q) / group, pool->window);
        mix(&tile, block, queries < FEW && next->keys ? next : NULL, queries);
    }
    for (int q = 0; q < queries; q++) {
        const int64_t of = first + q;
        float *to = out + ((token + of / group) * heads + head * group + of % group) * DIM;
        for (int p = 0; p < PARTS; p++) *(vec *)(to + p * LANES) = tile.mixed[q][p] / tile.total[q];
    }
}
