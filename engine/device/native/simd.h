/* SIMD vectors of LANES floats (the register width of the target), with GCC's vector extensions. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if BF16
typedef uint16_t element; /* storage type of weights and KV: bf16; arithmetic is fp32 */
#else
typedef float element;
#endif

#if defined(__AVX512F__)
#define LANES 16
#define LANES_LOG2 4
#define EVEN {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}
#define ODD {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31}
#elif defined(__AVX__)
#define LANES 8
#define LANES_LOG2 3
#define EVEN {0, 2, 4, 6, 8, 10, 12, 14}
#define ODD {1, 3, 5, 7, 9, 11, 13, 15}
#else
#define LANES 4
#define LANES_LOG2 2
#define EVEN {0, 2, 4, 6}
#define ODD {1, 3, 5, 7}
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t hvec __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

static inline vec broadcast(float x) { return x - (vec){0}; }

/* Load LANES elements and widen them to fp32. */
static inline vec load(const element *from) {
#if BF16
    return (vec)(__builtin_convertvector(*(const hvec *)from, ivec) << 16);
#else
    return *(const vec *)from;
#endif
}

/* Load column `n` of those of LANES rows that are stored together, and widen it: in bf16 two, whose
   elements alternate, in fp32 one. */
static inline __attribute__((always_inline)) vec load_column(const element *from, int n) {
#if BF16
    const ivec pairs = *(const ivec *)from;
    return n ? (vec)(pairs & (int32_t)0xffff0000) : (vec)(pairs << 16);
#else
    return *(const vec *)from;
#endif
}

static inline float widen(element x) {
#if BF16
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
#else
    return x;
#endif
}

/* Store LANES floats as elements; bf16 rounds to nearest, ties to even. */
static inline void store(element *to, vec x) {
#if BF16
    ivec bits = (ivec)x;
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(hvec *)to = __builtin_convertvector(bits, hvec);
#else
    *(vec *)to = x;
#endif
}

static inline vec load_floats(const float *from) { return *(const vec *)from; }

/* x, rounded: the compiler may not fuse a product in it with a later addition. */
static inline vec rounded(vec x) {
#if defined(__x86_64__)
    __asm__("" : "+v"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
}

/* Horizontal sums of LANES vectors: lane i of the result is the sum of s[i]. Overwrites s. */
static inline vec sum_lanes(vec s[LANES]) {
    const ivec even = EVEN, odd = ODD;
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            s[i] = __builtin_shuffle(s[2 * i], s[2 * i + 1], even)
                   + __builtin_shuffle(s[2 * i], s[2 * i + 1], odd);
    return s[0];
}

/* Horizontal sum of one vector. */
static inline float sum(vec x) {
    const ivec even = EVEN, odd = ODD;
    for (int n = LANES; n > 1; n /= 2)
        x = __builtin_shuffle(x, x, even) + __builtin_shuffle(x, x, odd);
    return x[0];
}

/* e^x to 2 ulp, for x up to 88; 0 below -87. Range reduction and polynomial of Cephes' expf. */
static inline vec vec_exp(vec x) {
    const vec magic = broadcast(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    const ivec in_range = x > broadcast(-87.0f);
    x = (vec)((ivec)x & in_range);
    const vec n = x * 1.44269504088896341f + magic - magic;
    const vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const ivec power = (__builtin_convertvector(n, ivec) + 127) << 23; /* bits of 2^n */
    return (vec)((ivec)(p * (vec)power) & in_range);
}
