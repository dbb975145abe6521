/* Products of quantized weights with activations, which are quantized to int8, one scale for each
   block of 32.

   A panel holds PANEL_ROWS rows of a matrix, block by block: its unsigned values lie in groups of
   4 inputs, [block, group, row, 4], as the dot products of bytes (VNNI) take them; its scales are
   fp16. Sums of a block are exact integers, and blocks are added in their order, so that the
   product of a token does not depend on the tokens beside it. */

#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "simd.h"

#define BLOCK 32        /* inputs that share a scale; those of a Q6_K are 16, half a block */
#define SUPERBLOCK 8    /* blocks that share the fp16 scales of a Q4_K, Q5_K or Q6_K */
#define GROUPS_OF_4 (BLOCK / 4)
#define PANEL_ROWS 16
#define PARTS (PANEL_ROWS / LANES) /* vectors that hold one number for each row */
#define PREFETCH_BYTES 2048 /* distance of software prefetches: a hardware prefetcher stops at the
                               end of a page of memory */

/* Formats of a panel, named as in GGUF. A weight of one row, with u its value:
       Q8_0   (u - 128) * scale              scales of a block: fp16
       Q4_0   (u - 8) * scale                as Q8_0
       Q4_K   u * d * scale - dmin * min     of a superblock: d, dmin fp16; of a block: uint8 each
       Q5_K   u * d * scale - dmin * min     as Q4_K
       Q6_K   (u - 32) * d * scale           of a superblock: d fp16; of half a block: int8 */
enum { Q8_0 = 1, Q4_0, Q4_K, Q5_K, Q6_K };
#define HAS_LEAST(format) ((format) == Q4_K || (format) == Q5_K)

typedef struct {
    int64_t format;
    const uint8_t *values, *scales;
} QuantizedPanel;

/* A block of the activations of one token, which takes the place of half of their fp32 values. */
typedef struct {
    int8_t values[BLOCK];
    float scale;
    float scaled_sum;                   /* scale * sum of the values */
    int32_t minus_sum, minus_halves[2]; /* sums of all values, and of each half, negated */
    int32_t unused[3];                  /* fills the cache line */
} __attribute__((may_alias, aligned(4))) ActivationBlock;
#define TOKEN_BLOCKS 2 /* distance of two tokens, as a multiple of the blocks of one */

typedef uint8_t bvec __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
typedef uint8_t ubytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int8_t sbytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int16_t shalves __attribute__((vector_size(2 * LANES)));

/* Widen LANES fp16 numbers. */
static inline vec load_halves(const uint8_t *from) {
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__F16C__)
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    const ivec bits = __builtin_convertvector(*(const hvec *)from, ivec);
    const ivec sign = (bits & 0x8000) << 16;
    const vec magnitude = (vec)((bits & 0x7fff) << 13) * 0x1p112f; /* subnormal ones as well */
    return (vec)((ivec)magnitude | sign);
#endif
}

/* Widen LANES bytes, signed or not. In two steps, because GCC makes one step of it lane by lane. */
static inline vec load_bytes(const uint8_t *from, int is_signed) {
    const shalves halves = is_signed ? __builtin_convertvector(*(const sbytes *)from, shalves)
                                     : __builtin_convertvector(*(const ubytes *)from, shalves);
    return __builtin_convertvector(__builtin_convertvector(halves, ivec), vec);
}

/* sums[row] += w[row, 0..3] . x[0..3]: unsigned bytes of LANES rows, four signed bytes in x. */
static inline ivec add_dot(ivec sums, bvec w, int32_t x) {
#if defined(__AVX512VNNI__)
    return (ivec)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(x));
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (ivec)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)w, _mm256_set1_epi32(x));
#elif defined(__AVX512BW__)
    const __m512i xs = _mm512_set1_epi32(x), bytes = (__m512i)w;
    const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(xs, 8), 8);
    const __m512i odd = _mm512_srai_epi16(xs, 8);
    const __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi16(0xff));
    const __m512i high = _mm512_srli_epi16(bytes, 8);
    return sums + (ivec)_mm512_add_epi32(_mm512_madd_epi16(low, even),
                                         _mm512_madd_epi16(high, odd));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i xs = _mm256_set1_epi32(x), bytes = (__m256i)w;
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(xs, 8), 8);
    const __m256i odd = _mm256_srai_epi16(xs, 8);
    const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
    const __m256i high = _mm256_srli_epi16(bytes, 8);
    return sums + (ivec)_mm256_add_epi32(_mm256_madd_epi16(low, even),
                                         _mm256_madd_epi16(high, odd));
#else
    for (int n = 0; n < 4; n++)
        sums += (((ivec)w >> (8 * n)) & 0xff) * (int32_t)(int8_t)(x >> (8 * n));
    return sums;
#endif
}

static inline bvec load_group(const uint8_t *values, int part) {
    return *(const bvec *)(values + part * 4 * LANES);
}

/* The values of a block: w [group, part]. Byte n of 4 bits holds groups n and n + 4; of the upper
   bits, byte n of a Q6_K holds groups 4n to 4n + 3, and the byte of a Q5_K all groups. */
static inline __attribute__((always_inline)) void unpack(const int format, const uint8_t *values,
                                                         bvec w[GROUPS_OF_4][PARTS]) {
    const int group_bytes = 4 * PANEL_ROWS;
    for (int p = 0; p < PARTS; p++) {
        if (format == Q8_0) {
            for (int g = 0; g < GROUPS_OF_4; g++) w[g][p] = load_group(values + g * group_bytes, p);
            continue;
        }
        for (int g = 0; g < GROUPS_OF_4 / 2; g++) {
            const bvec both = load_group(values + g * group_bytes, p);
            w[g][p] = both & 0x0f;
            w[g + GROUPS_OF_4 / 2][p] = (bvec)((ivec)both >> 4) & 0x0f;
        }
        if (format == Q5_K) {
            const ivec upper = (ivec)load_group(values + 4 * group_bytes, p);
            for (int g = 0; g < GROUPS_OF_4; g++)
                w[g][p] |= (bvec)(g < 4 ? upper << (4 - g) : upper >> (g - 4)) & 0x10;
        }
        if (format == Q6_K)
            for (int g = 0; g < GROUPS_OF_4; g++) {
                const ivec upper = (ivec)load_group(values + (4 + g / 4) * group_bytes, p);
                w[g][p] |= (bvec)(g % 4 == 3 ? upper >> 2
                                  : g % 4 == 2 ? upper
                                  : g % 4 == 1 ? upper << 2
                                               : upper << 4) & 0x30;
            }
    }
}

static int64_t value_bytes(int64_t format) {
    const int64_t bits = format == Q8_0 ? 8 : format == Q6_K ? 6 : format == Q5_K ? 5 : 4;
    return PANEL_ROWS * BLOCK * bits / 8;
}

/* Place in the scales of a panel, which are read in order; d and dmin of the superblock. */
typedef struct {
    const uint8_t *at;
    vec d[PARTS], dmin[PARTS];
} ScaleReader;

/* Read the scales of block b: those of each half (equal ones, unless it is a Q6_K), and the
   amounts that a Q4_K or Q5_K subtracts. */
static inline __attribute__((always_inline)) void read_scales(const int format, ScaleReader *reader,
                                                              int64_t b, vec scale[2][PARTS],
                                                              vec least[PARTS]) {
    const int halves = 2 * PANEL_ROWS; /* bytes of an fp16 number for each row */
    const uint8_t *own = reader->at;
    if (format == Q8_0 || format == Q4_0) {
        for (int p = 0; p < PARTS; p++)
            scale[0][p] = scale[1][p] = load_halves(own + p * 2 * LANES);
        reader->at += halves;
        return;
    }
    if (b % SUPERBLOCK == 0) {
        for (int p = 0; p < PARTS; p++) {
            reader->d[p] = load_halves(own + p * 2 * LANES);
            if (HAS_LEAST(format)) reader->dmin[p] = load_halves(own + halves + p * 2 * LANES);
        }
        own += HAS_LEAST(format) ? 2 * halves : halves;
    }
    for (int p = 0; p < PARTS; p++) {
        const uint8_t *first = own + p * LANES, *second = first + PANEL_ROWS;
        scale[0][p] = reader->d[p] * load_bytes(first, format == Q6_K);
        if (format == Q6_K) scale[1][p] = reader->d[p] * load_bytes(second, 1);
        else least[p] = reader->dmin[p] * load_bytes(second, 0);
    }
    reader->at = own + 2 * PANEL_ROWS;
}

/* out[t, row] = x[t] . weight[row] + bias[row], for the rows of a panel and `tokens` t. */
static inline __attribute__((always_inline)) void
multiply_panel(const int format, const QuantizedPanel *panel, const ActivationBlock *x,
               int64_t blocks, const int tokens, const float *bias, float *out, int64_t stride) {
    const int zero_bits = format == Q8_0 ? 7 : format == Q4_0 ? 3 : 5; /* log2 of the value of 0 */
    const int64_t size = value_bytes(format);
    ScaleReader scales = {panel->scales};
    vec totals[tokens][PARTS];
    for (int t = 0; t < tokens; t++)
        for (int p = 0; p < PARTS; p++)
            totals[t][p] = bias ? load_floats(bias + p * LANES) : broadcast(0);
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t *values = panel->values + b * size;
        for (int64_t n = 0; n < size; n += 64) __builtin_prefetch(values + PREFETCH_BYTES + n);
        bvec w[GROUPS_OF_4][PARTS];
        vec scale[2][PARTS], least[PARTS];
        unpack(format, values, w);
        read_scales(format, &scales, b, scale, least);
        for (int t = 0; t < tokens; t++) {
            const ActivationBlock *block = x + t * TOKEN_BLOCKS * blocks + b;
            const int32_t *groups = (const int32_t *)block->values;
            for (int p = 0; p < PARTS; p++) {
                if (format == Q6_K) {
                    for (int h = 0; h < 2; h++) {
                        ivec sums = ((ivec){0} + block->minus_halves[h]) << zero_bits;
                        for (int g = 4 * h; g < 4 * h + 4; g++)
                            sums = add_dot(sums, w[g][p], groups[g]);
                        totals[t][p] += __builtin_convertvector(sums, vec)
                                        * (scale[h][p] * block->scale);
                    }
                    continue;
                }
                ivec sums = {0};
                if (!HAS_LEAST(format)) sums = (sums + block->minus_sum) << zero_bits;
                for (int g = 0; g < GROUPS_OF_4; g++) sums = add_dot(sums, w[g][p], groups[g]);
                totals[t][p] += __builtin_convertvector(sums, vec) * (scale[0][p] * block->scale);
                if (HAS_LEAST(format)) totals[t][p] -= least[p] * block->scaled_sum;
            }
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int p = 0; p < PARTS; p++)
            *(vec *)(out + t * stride + p * LANES) = totals[t][p];
}

#if LANES == 16
#define TOKENS_MAX 16 /* tokens whose sums are kept in registers */
#else
#define TOKENS_MAX 4
#endif

/* The product of one panel and all tokens: x -> out, `stride` floats for each token. */
static inline __attribute__((always_inline)) void
multiply_format(const int format, const QuantizedPanel *panel, const ActivationBlock *x,
                int64_t blocks, int64_t tokens, const float *bias, float *out, int64_t stride) {
    const int64_t size = TOKEN_BLOCKS * blocks;
    int64_t t = 0;
    for (; t + TOKENS_MAX <= tokens; t += TOKENS_MAX)
        multiply_panel(format, panel, x + t * size, blocks, TOKENS_MAX, bias, out + t * stride,
                       stride);
    for (; t + 4 <= tokens; t += 4)
        multiply_panel(format, panel, x + t * size, blocks, 4, bias, out + t * stride, stride);
    for (; t < tokens; t++)
        multiply_panel(format, panel, x + t * size, blocks, 1, bias, out + t * stride, stride);
}

/* Panels [from, to) of a matrix with `in` inputs: x [tokens, in], quantized in place -> out
   [tokens, stride]. */
static void multiply_quantized(const QuantizedPanel *panels, const float *quantized, int64_t in,
                               int64_t tokens, const float *bias, float *out, int64_t stride,
                               int64_t from, int64_t to) {
    const ActivationBlock *x = (const ActivationBlock *)quantized;
    const int64_t blocks = in / BLOCK;
    for (int64_t n = from; n < to; n++) {
        const QuantizedPanel *panel = &panels[n];
        const float *own_bias = bias ? bias + n * PANEL_ROWS : NULL;
        float *own_out = out + n * PANEL_ROWS;
        switch (panel->format) {
        case Q8_0:
            multiply_format(Q8_0, panel, x, blocks, tokens, own_bias, own_out, stride);
            break;
        case Q4_0:
            multiply_format(Q4_0, panel, x, blocks, tokens, own_bias, own_out, stride);
            break;
        case Q4_K:
            multiply_format(Q4_K, panel, x, blocks, tokens, own_bias, own_out, stride);
            break;
        case Q5_K:
            multiply_format(Q5_K, panel, x, blocks, tokens, own_bias, own_out, stride);
            break;
        case Q6_K:
            multiply_format(Q6_K, panel, x, blocks, tokens, own_bias, own_out, stride);
        }
    }
}

/* Quantize a vector of `size` floats in place: its blocks are then in the first half of its memory.
   The scale of a block with an infinity or a NaN is not finite either, so that such an error
   reaches the logits. */
static void quantize_in_place(float *x, int64_t size) {
    ActivationBlock *blocks = (ActivationBlock *)x;
    const vec magic = broadcast(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    for (int64_t b = 0; b < size / BLOCK; b++) {
        vec old[BLOCK / LANES];
        memcpy(old, x + b * BLOCK, sizeof old);
        ivec largest = {0}; /* bits of the largest magnitude: those of a NaN are larger than all */
        for (int i = 0; i < BLOCK / LANES; i++) {
            const ivec bits = (ivec)old[i] & 0x7fffffff, more = bits > largest;
            largest = (bits & more) | (largest & ~more);
        }
        int32_t bits = 0;
        for (int n = 0; n < LANES; n++) bits = largest[n] > bits ? largest[n] : bits;
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        const float inverse = magnitude > 0 ? 127.0f / magnitude : 0;
        int32_t half_sums[2] = {0};
        for (int i = 0; i < BLOCK; i += LANES) {
            const ivec rounded = (ivec)(old[i / LANES] * inverse + magic) - (ivec)magic;
            const shalves narrower = __builtin_convertvector(rounded, shalves);
            *(sbytes *)(blocks[b].values + i) = __builtin_convertvector(narrower, sbytes);
            half_sums[i / (BLOCK / 2)] += (int32_t)sum(__builtin_convertvector(rounded, vec));
        }
        blocks[b].scale = magnitude / 127.0f;
        blocks[b].scaled_sum = blocks[b].scale * (half_sums[0] + half_sums[1]);
        blocks[b].minus_sum = -(half_sums[0] + half_sums[1]);
        for (int h = 0; h < 2; h++) blocks[b].minus_halves[h] = -half_sums[h];
    }
}
