/* Matrix products with packed weights.

   A weight [out, in] is stored in panels of PANEL_ROWS rows, as in BLIS (Van Zee and van de Geijn
   2015): first the first PANEL_DEPTH columns of all rows of the panel, then the next ones, so that
   a product reads memory in order. The micro-kernel keeps the sums of some tokens for some panels
   in registers, and adds the products along `in` from the first column to the last, whatever the
   number of tokens and panels: the result for a token does not depend on the others. */

#pragma once

#include "quantized.h"
#include "simd.h"
#include "thread_pool.h"

typedef struct {
    const element *weight; /* [out, in] in panels; both are multiples of 16 */
    const float *bias;     /* [out] or NULL */
    int64_t in, out;
    const QuantizedPanel *quantized; /* [out / PANEL_ROWS], in place of `weight`; or NULL */
} Linear;

#if BF16
#define PANEL_DEPTH 2 /* columns of a row that are next to each other */
#else
#define PANEL_DEPTH 1
#endif
#define PANEL_VECTORS (PANEL_ROWS / LANES)

/* Tokens and panels of a micro-kernel: their sums, the weights and an activation fit into the
   registers. */
#define TILE_TOKENS 6
#if LANES == 16
#define TILE_PANELS 4
#define TOKEN_PANELS 4 /* panels if there is only one token */
#elif LANES == 8
#define TILE_PANELS 1
#define TOKEN_PANELS 4
#else
#define TILE_PANELS 1
#define TOKEN_PANELS 2
#endif

#define PART_BYTES (1 << 19)  /* of panels that are multiplied by all tokens while they are in L2 */
#define PREFETCH_TOKENS_MAX 3 /* with more tokens, memory is not the limit */
#define PIECES_PER_THREAD 8   /* pieces of a product for each thread */

/* Rearrange a weight [out, in] into panels, in place. Returns 0 if memory is exhausted. */
int64_t pack_panels(element *weight, int64_t out, int64_t in) {
    element *rows = malloc(PANEL_ROWS * in * sizeof *rows);
    if (rows == NULL) return 0;
    for (int64_t n = 0; n < out; n += PANEL_ROWS) {
        element *panel = weight + n * in;
        memcpy(rows, panel, PANEL_ROWS * in * sizeof *rows);
        for (int64_t i = 0; i < in; i += PANEL_DEPTH)
            for (int64_t r = 0; r < PANEL_ROWS; r++)
                for (int64_t d = 0; d < PANEL_DEPTH; d++) *panel++ = rows[r * in + i + d];
    }
    free(rows);
    return 1;
}

/* Widen row `n` of a packed weight with `in` columns to fp32. */
static void read_packed_row(const element *weight, int64_t in, int64_t n, float *out) {
    const element *panel = weight + n / PANEL_ROWS * PANEL_ROWS * in;
    for (int64_t i = 0; i < in; i++)
        out[i] = widen(panel[i / PANEL_DEPTH * PANEL_DEPTH * PANEL_ROWS +
                             n % PANEL_ROWS * PANEL_DEPTH + i % PANEL_DEPTH]);
}

/* sums[t, n] += w[n] * x[t, 0], where n counts the vectors of all panels; x [tokens, in]. */
static inline __attribute__((always_inline)) void add_products(vec *sums, const vec *w,
                                                               const float *x, int64_t in,
                                                               int tokens, int vectors) {
    for (int t = 0; t < tokens; t++) {
        const vec value = broadcast(x[t * in]);
        for (int n = 0; n < vectors; n++) sums[t * vectors + n] += w[n] * value;
    }
}

/* Micro-kernel: out[t, r] = x[t] . row r + bias[r] for all tokens and the rows of some adjacent
   panels. x [tokens, in]; `stride`: floats between two tokens of `out`. */
static inline __attribute__((always_inline)) void multiply_tile(const element *weight,
                                                                const float *bias, int64_t in,
                                                                const float *x, float *out,
                                                                int64_t stride, int tokens,
                                                                int panels) {
    const int vectors = panels * PANEL_VECTORS;
    vec sums[TILE_TOKENS * TOKEN_PANELS * PANEL_VECTORS];
    for (int n = 0; n < tokens * vectors; n++) sums[n] = (vec){0};
    for (int64_t i = 0; i < in; i += PANEL_DEPTH)
        for (int d = 0; d < PANEL_DEPTH; d++) {
            vec w[TOKEN_PANELS * PANEL_VECTORS];
            for (int n = 0; n < vectors; n++) {
                const element *from = weight + n / PANEL_VECTORS * PANEL_ROWS * in +
                                      i * PANEL_ROWS + n % PANEL_VECTORS * LANES * PANEL_DEPTH;
                if (d == 0 && tokens <= PREFETCH_TOKENS_MAX)
                    __builtin_prefetch((const char *)from + PREFETCH_BYTES);
                w[n] = load_column(from, d);
            }
            add_products(sums, w, x + i + d, in, tokens, vectors);
        }
    for (int t = 0; t < tokens; t++)
        for (int n = 0; n < vectors; n++) {
            vec y = sums[t * vectors + n];
            if (bias) y += load_floats(bias + n * LANES);
            *(vec *)(out + t * stride + n * LANES) = y;
        }
}

/* Define multiply_T: panels [from, to) of a product with T tokens. */
#define DEFINE_MULTIPLY(TOKENS, PANELS)                                                            \
    static __attribute__((noinline)) void multiply_##TOKENS(                                       \
        const Linear *linear, const float *x, float *out, int64_t from, int64_t to) {              \
        for (int64_t n = from; n < to;) {                                                          \
            const element *weight = linear->weight + n * PANEL_ROWS * linear->in;                  \
            const float *bias = linear->bias ? linear->bias + n * PANEL_ROWS : NULL;               \
            float *y = out + n * PANEL_ROWS;                                                       \
            if (n + PANELS <= to) {                                                                \
                multiply_tile(weight, bias, linear->in, x, y, linear->out, TOKENS, PANELS);        \
                n += PANELS;                                                                       \
            } else {                                                                               \
                multiply_tile(weight, bias, linear->in, x, y, linear->out, TOKENS, 1);             \
                n++;                                                                               \
            }                                                                                      \
        }                                                                                          \
    }
DEFINE_MULTIPLY(1, TOKEN_PANELS)
DEFINE_MULTIPLY(2, TILE_PANELS)
DEFINE_MULTIPLY(3, TILE_PANELS)
DEFINE_MULTIPLY(4, TILE_PANELS)
DEFINE_MULTIPLY(5, TILE_PANELS)
DEFINE_MULTIPLY(6, TILE_PANELS)

static void (*const MULTIPLY[])(const Linear *, const float *, float *, int64_t, int64_t) = {
    NULL, multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6};

/* Panels [from, to) of a linear layer: x [tokens, in] -> out [tokens, out]. */
static void multiply_panels(const Linear *linear, const float *x, float *out, int64_t tokens,
                            int64_t from, int64_t to) {
    const int64_t in = linear->in, tiles = (tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    int64_t part = PART_BYTES / (PANEL_ROWS * in * (int64_t)sizeof(element));
    part = tiles == 1 ? to - from : part < TILE_PANELS ? TILE_PANELS : part & -TILE_PANELS;
    for (int64_t n = from; n < to; n += part)
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t t = tokens * i / tiles, count = tokens * (i + 1) / tiles - t;
            MULTIPLY[count](linear, x + t * in, out + t * linear->out, n,
                            n + part < to ? n + part : to);
        }
}

/* Phases of a linear layer. */
static int64_t linear_phases(const Linear *projection) { return projection->quantized ? 2 : 1; }

/* Linear layer: x [tokens, in] -> out [tokens, out]. One with quantized weights overwrites x: its
   first phase quantizes x in place. */
static void linear(PhaseCursor *cursor, const Linear *projection, float *x, float *out,
                   int64_t tokens, int64_t threads) {
    if (projection->quantized)
        for (int64_t t; (t = claim_piece(cursor, tokens)) >= 0;)
            quantize_in_place(x + t * projection->in, projection->in);
    const int64_t panels = projection->out / PANEL_ROWS, pieces_max = threads * PIECES_PER_THREAD;
    int64_t piece_panels = (panels + pieces_max - 1) / pieces_max;
    piece_panels = (piece_panels + TILE_PANELS - 1) / TILE_PANELS * TILE_PANELS;
    const int64_t pieces = (panels + piece_panels - 1) / piece_panels;
    for (int64_t piece; (piece = claim_piece(cursor, pieces)) >= 0;) {
        const int64_t from = piece * piece_panels, end = from + piece_panels;
        const int64_t to = end < panels ? end : panels;
        if (projection->quantized)
            multiply_quantized(projection->quantized, x, projection->in, tokens, projection->bias,
                               out, projection->out, from, to);
        else multiply_panels(projection, x, out, tokens, from, to);
    }
}
