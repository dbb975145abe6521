/* Sampling: draw one id from the logits of each row.

   Penalties, logit bias and mask change the logits. Then the candidates are ordered by logit, ties by
   id, and have the weight exp((logit - largest logit) / temperature). top-k, top-p and min-p each
   keep a prefix of that order. The drawn id is the first whose cumulative weight exceeds
   uniform * (weight kept). `sampling.py` defines the same in torch; the two differ only where that
   product lies within rounding of the border of two candidates.

   The order is never computed. A histogram of the weights by logit tells which bin holds the
   candidate that a limit falls on, and only the candidates of that bin are sorted. A bin with too
   many of them has a histogram of its own. */

#pragma once

#include <float.h>

#include "simd.h"

/* How often distinct ids occur in a text. */
typedef struct {
    int64_t count;
    const int32_t *ids, *occurrences; /* [count]; an id that occurs 0 times has no penalty */
} TokenCounts;

/* How to draw the id of a row. All ids are below the size of the vocabulary. */
typedef struct {
    double temperature; /* 0: greedy */
    double top_p, min_p, uniform;
    double repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k;            /* 0: all ids */
    TokenCounts seen, output; /* of prompt and output; of the output */
    int64_t bias_count;
    const int32_t *bias_ids; /* [bias_count] */
    const float *biases;     /* [bias_count] */
    const uint8_t *mask;     /* one bit per id, least significant first; NULL: all are allowed */
    int64_t top_count;       /* how many of the likeliest ids are reported; -1: no log-probability */
    float *logprobs;         /* [1 + top_count]: of the drawn id; of the likeliest ids */
    int64_t *top_ids;        /* [top_count]: the likeliest ids */
} Sampling;

#define BINS 2048
#define GROUP_BINS 32          /* bins whose weights are also added up; a multiple of LANES */
#define SORTED_MAX 64          /* candidates of a bin that are sorted */
#define BLOCK_IDS (16 * LANES) /* ids whose weights are added in fp32, and skipped together */
#define HALVINGS 10            /* of the range in which bound_kth_logit searches */
#define CHAINS 4               /* vectors that are compared side by side, against latency */
#define TAIL_SHARE (1.0 / 16)  /* see draw_at_random */
#define EXP_MIN (-87.0f)       /* vec_exp is 0 below */
#define INVERSE_TEMPERATURE_MAX 1e30

typedef struct {
    float low, high;
} Range;

/* The candidates of a row: the ids whose logits are at least `low`. */
typedef struct {
    const float *logits;
    int64_t size;
    float max, low;
    float inverse_temperature;
    int has_unit_weights; /* whether candidates are counted, not weighed */
    const vec *maxima;    /* of each block; see find_range */
} Candidates;

typedef double dvec __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

/* A candidate, and the weight of all candidates up to it, in their order. */
typedef struct {
    float logit;
    int64_t id;
    double reached;
} Cut;

/* Weights of the candidates with logits in [low, high], by logit, the largest first. */
typedef struct {
    float low, high, scale;
    double total, below; /* weights in the bins; of the candidates below `low` */
    double weights[BINS];
    double groups[BINS / GROUP_BINS]; /* sums of weights */
} Histogram;

static inline vec select_lanes(ivec condition, vec yes, vec no) {
    return (vec)(((ivec)yes & condition) | ((ivec)no & ~condition));
}

/* One bit for each lane whose condition is true, that is, -1. */
static inline uint32_t lane_bits(ivec condition) {
#if defined(__AVX512F__)
    return (uint16_t)__builtin_ia32_ptestmd512(condition, condition, -1);
#elif defined(__AVX__)
    return __builtin_ia32_movmskps256((vec)condition);
#else
    uint32_t bits = 0;
    for (int n = 0; n < LANES; n++) bits |= (condition[n] & 1u) << n;
    return bits;
#endif
}

static inline ivec lane_numbers(void) {
    ivec numbers;
    for (int n = 0; n < LANES; n++) numbers[n] = n;
    return numbers;
}

/* The smallest logit that is not -inf, and the largest; both NaN if a logit is NaN. `maxima`:
   receives, for each block, a vector of which each lane is the largest logit of ids of its own. */
static Range find_range(const float *logits, int64_t size, vec *maxima) {
    vec low = broadcast(INFINITY), high = broadcast(-INFINITY);
    ivec is_nan = {0};
    for (int64_t begin = 0; begin < size; begin += BLOCK_IDS) {
        vec lowest[CHAINS], highest[CHAINS];
        for (int c = 0; c < CHAINS; c++) lowest[c] = low, highest[c] = load_floats(logits + begin);
        for (int64_t i = begin; i < begin + BLOCK_IDS && i < size; i += CHAINS * LANES)
            for (int c = 0; c < CHAINS; c++) {
                const int64_t at = i + c * LANES;
                const vec x = load_floats(logits + (at < size ? at : i));
                is_nan |= x != x;
                lowest[c] = select_lanes((x < lowest[c]) & (x > -INFINITY), x, lowest[c]);
                highest[c] = select_lanes(x > highest[c], x, highest[c]);
            }
        for (int c = 1; c < CHAINS; c++)
            highest[0] = select_lanes(highest[c] > highest[0], highest[c], highest[0]);
        for (int c = 0; c < CHAINS; c++) low = select_lanes(lowest[c] < low, lowest[c], low);
        high = select_lanes(highest[0] > high, highest[0], high);
        maxima[begin / BLOCK_IDS] = highest[0];
    }
    if (lane_bits(is_nan)) return (Range){NAN, NAN};
    Range range = {INFINITY, -INFINITY};
    for (int n = 0; n < LANES; n++) {
        range.low = low[n] < range.low ? low[n] : range.low;
        range.high = high[n] > range.high ? high[n] : range.high;
    }
    return range;
}

/* Index of the first logit that equals `max`, which occurs. */
static int64_t find_logit(const float *logits, float max) {
    for (int64_t i = 0;; i += LANES) {
        const uint32_t equal = lane_bits(load_floats(logits + i) == max);
        if (equal) return i + __builtin_ctz(equal);
    }
}

static inline vec weigh(const Candidates *row, vec logits) {
    if (row->has_unit_weights) return broadcast(1.0f);
    return vec_exp((logits - row->max) * row->inverse_temperature);
}

/* Weight of the candidates up to `cut`, whose `reached` is not used. */
static double weigh_up_to(const Candidates *row, const Cut *cut) {
    const ivec numbers = lane_numbers();
    double total = 0;
    for (int64_t begin = 0; begin < row->size; begin += BLOCK_IDS) {
        const int64_t end = begin + BLOCK_IDS;
        if (!lane_bits(row->maxima[begin / BLOCK_IDS] >= cut->logit)) continue;
        vec weights = {0};
        for (int64_t i = begin; i < end && i < row->size; i += LANES) {
            const vec x = load_floats(row->logits + i);
            const ivec is_before = numbers <= (int32_t)(cut->id - i);
            const ivec is_kept = (x > cut->logit) | ((x == cut->logit) & is_before);
            if (lane_bits(is_kept)) weights += (vec)((ivec)weigh(row, x) & is_kept);
        }
        total += sum(weights);
    }
    return total;
}

static inline ivec lies_within(vec logits, const Histogram *span) {
    return (logits >= span->low) & (logits <= span->high);
}

/* Bins of logits that lie within the histogram. Decreases with the logit, so that the order of bins
   is that of the candidates. */
static inline ivec find_bins(const Histogram *histogram, vec logits) {
    const vec place = (histogram->high - logits) * histogram->scale;
    const vec last = broadcast(BINS - 1);
    return __builtin_convertvector(select_lanes(place < last, place, last), ivec);
}

/* Add the weights of the candidates with logits in [low, high] to their bins, and those of the
   candidates below `low` to `below`. */
static void fill_histogram(Histogram *histogram, const Candidates *row, float low, float high) {
    const float scale = BINS / (high - low);
    *histogram = (Histogram){.low = low, .high = high};
    histogram->scale = scale < FLT_MAX ? scale : FLT_MAX;
    for (int64_t begin = 0; begin < row->size; begin += BLOCK_IDS) {
        const int64_t end = begin + BLOCK_IDS;
        if (!lane_bits(row->maxima[begin / BLOCK_IDS] >= row->low)) continue;
        vec below = {0};
        for (int64_t i = begin; i < end && i < row->size; i += LANES) {
            const vec x = load_floats(row->logits + i);
            uint32_t inside = lane_bits(lies_within(x, histogram));
            const ivec is_below = (x >= row->low) & (x < low);
            if (!inside && !lane_bits(is_below)) continue;
            const vec w = weigh(row, x);
            below += (vec)((ivec)w & is_below);
            if (!inside) continue;
            _Alignas(64) int32_t bins[LANES];
            _Alignas(64) double weights[LANES];
            *(ivec *)bins = find_bins(histogram, x);
            *(dvec *)weights = __builtin_convertvector(w, dvec);
            if (inside == (1u << LANES) - 1)
                for (int n = 0; n < LANES; n++) histogram->weights[bins[n]] += weights[n];
            else
                for (; inside; inside &= inside - 1) {
                    const int n = __builtin_ctz(inside);
                    histogram->weights[bins[n]] += weights[n];
                }
        }
        histogram->below += sum(below);
    }
    for (int group = 0; group < BINS / GROUP_BINS; group++) {
        const double *weights = histogram->weights + group * GROUP_BINS;
        dvec sums = {0};
        for (int bin = 0; bin < GROUP_BINS; bin += LANES) sums += *(const dvec *)(weights + bin);
        for (int n = 0; n < LANES; n++) histogram->groups[group] += sums[n];
        histogram->total += histogram->groups[group];
    }
}

/* Find the entry of `weights` at which the cumulative weight first exceeds `target`, or the last
   one that is not 0. `reached`: weight before all of them; becomes that before the entry. */
static int find_entry(const double *weights, int count, double target, double *reached) {
    int entry = 0;
    double before = *reached;
    for (int n = 0; n < count && before <= target; n++) {
        if (weights[n] > 0) entry = n, *reached = before;
        before += weights[n];
    }
    return entry;
}

static int find_bin(const Histogram *histogram, double target, double *reached) {
    const int group = find_entry(histogram->groups, BINS / GROUP_BINS, target, reached);
    const int first = group * GROUP_BINS;
    return first + find_entry(histogram->weights + first, GROUP_BINS, target, reached);
}

/* Candidates of one bin. */
typedef struct {
    int64_t count;                  /* all of them; at most SORTED_MAX are stored */
    float low, high;                /* smallest and largest logit */
    float logits[SORTED_MAX], weights[SORTED_MAX];
    int64_t ids[SORTED_MAX];        /* by descending logit, ties by id */
} Bin;

static void insert_candidate(Bin *bin, float logit, float weight, int64_t id) {
    int64_t n = bin->count;
    for (; n > 0 && bin->logits[n - 1] < logit; n--) {
        bin->logits[n] = bin->logits[n - 1];
        bin->weights[n] = bin->weights[n - 1];
        bin->ids[n] = bin->ids[n - 1];
    }
    bin->logits[n] = logit, bin->weights[n] = weight, bin->ids[n] = id;
}

static void collect_bin(Bin *bin, const Candidates *row, const Histogram *histogram, int number) {
    const float width = 1 / histogram->scale, middle = histogram->high - (number + 0.5f) * width;
    const float low = middle - 2 * width, high = middle + 2 * width; /* wider, against rounding */
    bin->count = 0, bin->low = INFINITY, bin->high = -INFINITY;
    for (int64_t begin = 0; begin < row->size; begin += BLOCK_IDS) {
        const int64_t end = begin + BLOCK_IDS;
        if (!lane_bits(row->maxima[begin / BLOCK_IDS] >= low)) continue;
        for (int64_t i = begin; i < end && i < row->size; i += LANES) {
            const vec x = load_floats(row->logits + i);
            if (!lane_bits((x >= low) & (x <= high))) continue;
            const ivec is_member =
                lies_within(x, histogram) & (find_bins(histogram, x) == number);
            const vec weights = weigh(row, x);
            for (uint32_t lanes = lane_bits(is_member); lanes; lanes &= lanes - 1, bin->count++) {
                const int n = __builtin_ctz(lanes);
                const float logit = row->logits[i + n];
                bin->low = logit < bin->low ? logit : bin->low;
                bin->high = logit > bin->high ? logit : bin->high;
                if (bin->count < SORTED_MAX) insert_candidate(bin, logit, weights[n], i + n);
            }
        }
    }
}

/* Find the first of tied candidates at which the cumulative weight, `reached` before them, exceeds
   `target`, or the last one. */
static Cut select_tied(const Candidates *row, const Bin *bin, double target, double reached) {
    const double weight = bin->weights[0];
    int64_t skipped = (int64_t)((target - reached) / weight);
    if (skipped >= bin->count) skipped = bin->count - 1;
    if (skipped < 0) skipped = 0;
    int64_t id = -1;
    for (int64_t n = 0; n <= skipped; n++)
        do id++;
        while (!(row->logits[id] >= bin->low && row->logits[id] <= bin->high));
    return (Cut){bin->high, id, reached + (skipped + 1) * weight};
}

/* Find the first candidate at which the cumulative weight exceeds `target`, or the last one that has
   a weight. `top`: histogram of the first candidates, at least. */
static Cut select_candidate(const Candidates *row, const Histogram *top, double target) {
    Candidates part = *row;
    Histogram lower;
    Bin bin;
    const Histogram *histogram = top;
    double reached = 0;
    if (target >= top->total && row->low < top->low) {
        fill_histogram(&lower, row, row->low, nextafterf(top->low, -INFINITY));
        if (lower.total > 0) histogram = &lower, reached = top->total;
    }
    for (;;) {
        const int number = find_bin(histogram, target, &reached);
        collect_bin(&bin, row, histogram, number);
        if (bin.count <= SORTED_MAX) break;
        if (bin.high - bin.low < FLT_MIN) return select_tied(row, &bin, target, reached);
        part.low = bin.low;
        fill_histogram(&lower, &part, bin.low, bin.high);
        histogram = &lower;
    }
    Cut cut = {row->max, 0, reached};
    for (int64_t n = 0; n < bin.count && cut.reached <= target; n++)
        if (bin.weights[n] > 0)
            cut = (Cut){bin.logits[n], bin.ids[n], cut.reached + bin.weights[n]};
    return cut;
}

/* Whether candidate `a` comes before `b`. */
static int precedes(const Cut *a, const Cut *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* A lower bound of the k-th largest logit, by bisection between `low` and `max`: at least k lanes of
   the maxima, each of which is another logit, are as large. */
static float bound_kth_logit(const Candidates *row, int64_t k) {
    float low = row->low, high = row->max;
    for (int n = 0; n < HALVINGS; n++) {
        const float middle = low + (high - low) / 2;
        int64_t count = 0;
        for (int64_t block = 0; block * BLOCK_IDS < row->size; block++)
            count += __builtin_popcount(lane_bits(row->maxima[block] >= middle));
        if (count >= k)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Draw at random from finite logits of which `max` is the largest. */
static int64_t draw_at_random(const Sampling *sampling, const float *logits, int64_t size,
                              Range range, const vec *maxima) {
    const float max = range.high;
    const double temperature = sampling->temperature;
    const double inverse = 1 / temperature;
    Candidates row = {.logits = logits, .size = size, .max = max, .maxima = maxima};
    row.inverse_temperature = inverse < INVERSE_TEMPERATURE_MAX ? inverse : INVERSE_TEMPERATURE_MAX;
    row.low = max + EXP_MIN / row.inverse_temperature;
    row.low = row.low > range.low ? row.low : range.low;
    /* The candidates below `low` hardly ever weigh as much as the part that is not sought: at least
       a TAIL_SHARE of all ids would have to be just below. */
    const double fraction = sampling->top_p < 1 ? sampling->top_p : sampling->uniform;
    const double weight = (1 - fraction) / (TAIL_SHARE * size);
    float low = weight < 1 ? max + temperature * log(weight) : max;
    low = low > row.low ? low : row.low;
    Histogram histogram;
    Cut kept = {row.low, size, INFINITY};
    if (0 < sampling->top_k && sampling->top_k < size) {
        row.has_unit_weights = 1;
        row.low = bound_kth_logit(&row, sampling->top_k);
        fill_histogram(&histogram, &row, low > row.low ? low : row.low, max);
        const double target = sampling->top_k - 0.5;
        const Cut by_k = select_candidate(&row, &histogram, target);
        row.has_unit_weights = 0;
        if (by_k.reached > target) {
            kept = by_k, kept.reached = weigh_up_to(&row, &by_k);
            row.low = by_k.logit;
        }
    }
    const float by_min = max + temperature * log(sampling->min_p); /* -inf if min_p is 0 */
    if (by_min > row.low) low = by_min;
    fill_histogram(&histogram, &row, low > row.low ? low : row.low, max);
    if (kept.id == size) kept.reached = histogram.total + histogram.below;
    const double left = kept.reached;
    if (by_min > row.low) {
        kept = (Cut){by_min, size, histogram.total};
        row.low = by_min;
    }
    if (sampling->top_p < 1) {
        const double target = nextafter(sampling->top_p * left, 0); /* reached, not exceeded */
        const Cut by_p = select_candidate(&row, &histogram, target);
        if (precedes(&by_p, &kept)) kept = by_p;
    }
    const Cut drawn = select_candidate(&row, &histogram, sampling->uniform * kept.reached);
    return precedes(&kept, &drawn) ? kept.id : drawn.id;
}

static void apply_penalties(const Sampling *sampling, float *logits) {
    const TokenCounts *seen = &sampling->seen, *output = &sampling->output;
    const float repetition = sampling->repetition_penalty;
    for (int64_t n = 0; n < seen->count; n++) {
        float *logit = logits + seen->ids[n];
        if (seen->occurrences[n])
            *logit = *logit > 0 ? *logit / repetition : *logit * repetition;
    }
    for (int64_t n = 0; n < output->count; n++)
        if (output->occurrences[n])
            logits[output->ids[n]] -= (float)(sampling->presence_penalty
                                              + sampling->frequency_penalty
                                                    * output->occurrences[n]);
    for (int64_t n = 0; n < sampling->bias_count; n++)
        logits[sampling->bias_ids[n]] += sampling->biases[n];
}

/* Set the logits of all ids that the mask does not allow to -inf. */
static void apply_mask(const uint8_t *mask, float *logits, int64_t size) {
    const ivec numbers = lane_numbers();
    for (int64_t i = 0; i < size; i += LANES) {
        uint32_t bits = 0;
        memcpy(&bits, mask + i / 8, LANES > 8 ? LANES / 8 : 1);
        const ivec is_allowed = -((((int32_t)(bits >> i % 8) - (ivec){0}) >> numbers) & 1);
        *(vec *)(logits + i) =
            select_lanes(is_allowed, load_floats(logits + i), broadcast(-INFINITY));
    }
}

/* Report the logits of the likeliest ids, as log-probabilities. Returns the logarithm of the sum of
   all exp(logit). */
static double report_likeliest(const Sampling *sampling, const float *logits, int64_t size) {
    float *top = sampling->logprobs + 1;
    int64_t *ids = sampling->top_ids, count = 0;
    for (int64_t i = 0; i < size; i++) {
        if (count == sampling->top_count && !(count && logits[i] > top[count - 1])) continue;
        int64_t n = count < sampling->top_count ? count++ : count - 1;
        for (; n > 0 && top[n - 1] < logits[i]; n--) top[n] = top[n - 1], ids[n] = ids[n - 1];
        top[n] = logits[i], ids[n] = i;
    }
    vec maxima[(size + BLOCK_IDS - 1) / BLOCK_IDS];
    const float max = find_range(logits, size, maxima).high;
    const Candidates row = {logits, size, max, -INFINITY, 1.0f, 0, maxima};
    const double log_sum = row.max + log(weigh_up_to(&row, &(Cut){-INFINITY, size, 0}));
    for (int64_t n = 0; n < count; n++) top[n] -= log_sum;
    return log_sum;
}

/* Draw the id of a row, and report its log-probabilities if requested. `sampling` NULL: greedy, from
   the logits as they are; otherwise the logits are modified. Returns -1 if a logit is NaN or +inf, or
   if all of them are -inf. */
static int64_t draw(const Sampling *sampling, float *logits, int64_t size) {
    double log_sum = 0;
    if (sampling) {
        apply_penalties(sampling, logits);
        if (sampling->top_count >= 0) log_sum = report_likeliest(sampling, logits, size);
        if (sampling->mask) apply_mask(sampling->mask, logits, size);
    }
    vec maxima[(size + BLOCK_IDS - 1) / BLOCK_IDS];
    const Range range = find_range(logits, size, maxima);
    if (!isfinite(range.high)) return -1;
    const int64_t id = sampling && sampling->temperature > 0
                           ? draw_at_random(sampling, logits, size, range, maxima)
                           : find_logit(logits, range.high);
    if (sampling && sampling->top_count >= 0) sampling->logprobs[0] = logits[id] - log_sum;
    return id;
}
