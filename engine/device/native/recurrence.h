/* Recurrent layers. A row reads the state in one slot and writes the next state to another; a row
   that starts at position 0 begins with zeros. */

#pragma once

#include "operations.h"
#include "paged_attention.h"

/* A causal convolution by channel; its state is the last kernel - 1 inputs. */
typedef struct {
    const float *weight, *bias; /* [kernel, channels]; [channels] or NULL */
    element *past;              /* [slot, kernel - 1, channels] */
    int64_t kernel, channels;
} Convolution;

/* The gated short convolution of LFM2. */
typedef struct {
    Linear inputs, out; /* inputs: b, c and x, of `channels` each */
    Convolution convolution;
} ShortConvolution;

/* The gated delta net of Qwen3.5. */
typedef struct {
    Linear inputs, out; /* inputs: queries, keys, values; gates; rates; decays */
    Convolution convolution;
    const float *decay_rate, *decay_bias; /* [value_heads] */
    const float *norm;                    /* [value_dim] */
    float *state;                         /* [slot, value_heads, key_dim, value_dim] */
    int64_t key_heads, value_heads, key_dim, value_dim;
} DeltaNet;

#define HEAD_DIM_MAX 256     /* key_dim and value_dim of a delta net */
#define CHANNELS_PER_PIECE 64 /* of a short convolution */
#define NORM_EPS 1e-6f       /* added to the squared norm of a query or key */

/* Input number n of a convolution, for LANES channels from c on; those before 0 are the state. */
static inline vec convolution_input(const Convolution *convolution, const StepRow *row,
                                    const float *x, int64_t stride, int64_t n, int64_t c) {
    if (n >= 0) return load_floats(x + n * stride + c);
    if (row->state_read < 0) return (vec){0};
    const int64_t at = row->state_read * (convolution->kernel - 1) + convolution->kernel - 1 + n;
    return load(convolution->past + at * convolution->channels + c);
}

/* Convolve channels [from, to) of a row in place: x [count, channels], with `stride` floats from
   token to token. The last token is computed first, because the others do not depend on it. */
static void convolve(const Convolution *convolution, const StepRow *row, float *x, int64_t stride,
                     int64_t from, int64_t to) {
    const int64_t kernel = convolution->kernel, channels = convolution->channels;
    for (int64_t n = 0; n < kernel - 1; n++) {
        element *past = convolution->past + (row->state_write * (kernel - 1) + n) * channels;
        for (int64_t c = from; c < to; c += LANES)
            store(past + c, convolution_input(convolution, row, x, stride,
                                              row->count - kernel + 1 + n, c));
    }
    for (int64_t t = row->count - 1; t >= 0; t--)
        for (int64_t c = from; c < to; c += LANES) {
            vec y = convolution->bias ? load_floats(convolution->bias + c) : (vec){0};
            for (int64_t tap = 0; tap < kernel; tap++)
                y += convolution_input(convolution, row, x, stride, t - kernel + 1 + tap, c)
                     * load_floats(convolution->weight + tap * channels + c);
            *(vec *)(x + t * stride + c) = y;
        }
}

/* Short convolution of all rows: inputs [tokens, 3 * channels] -> out [tokens, channels]. */
static void convolve_rows(PhaseCursor *cursor, const ShortConvolution *layer, const StepRow *rows,
                          int64_t row_count, float *inputs, float *out) {
    const int64_t channels = layer->convolution.channels, stride = 3 * channels;
    const int64_t blocks = (channels + CHANNELS_PER_PIECE - 1) / CHANNELS_PER_PIECE;
    for (int64_t n; (n = claim_piece(cursor, row_count * blocks)) >= 0;) {
        const StepRow *row = &rows[n / blocks];
        const int64_t from = n % blocks * CHANNELS_PER_PIECE;
        const int64_t to = from + CHANNELS_PER_PIECE < channels ? from + CHANNELS_PER_PIECE
                                                                : channels;
        float *x = inputs + row->first * stride;
        for (int64_t t = 0; t < row->count; t++)
            for (int64_t c = from; c < to; c += LANES) {
                float *b = x + t * stride + c;
                *(vec *)b = load_floats(b) * load_floats(b + 2 * channels);
            }
        convolve(&layer->convolution, row, x, stride, from, to);
        for (int64_t t = 0; t < row->count; t++)
            for (int64_t c = from; c < to; c += LANES) {
                const float *mixed = x + t * stride + c;
                *(vec *)(out + (row->first + t) * channels + c) =
                    load_floats(mixed) * load_floats(mixed + channels);
            }
    }
}

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* 1 / length of a vector. */
static float inverse_norm(const float *x, int64_t size) {
    vec squares = {0};
    for (int64_t i = 0; i < size; i += LANES) squares += load_floats(x + i) * load_floats(x + i);
    return 1.0f / sqrtf(sum(squares) + NORM_EPS);
}

/* One token of one value head: update the state S [key_dim, value_dim] by the gated delta rule, and
   read it with the query: out = q^T S. */
static void apply_delta_rule(const DeltaNet *net, float *state, const float *q, const float *k,
                             const float *v, float decay, float rate, float *out) {
    const int64_t keys = net->key_dim, values = net->value_dim;
    float error[HEAD_DIM_MAX];
    memset(error, 0, values * sizeof *error);
    memset(out, 0, values * sizeof *out);
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < values; j += LANES) {
            const vec s = load_floats(state + i * values + j) * decay;
            *(vec *)(state + i * values + j) = s;
            *(vec *)(error + j) = load_floats(error + j) + k[i] * s;
        }
    for (int64_t j = 0; j < values; j += LANES)
        *(vec *)(error + j) = (load_floats(v + j) - load_floats(error + j)) * rate;
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < values; j += LANES) {
            const vec s = load_floats(state + i * values + j) + k[i] * load_floats(error + j);
            *(vec *)(state + i * values + j) = s;
            *(vec *)(out + j) = load_floats(out + j) + q[i] * s;
        }
}

/* One row and key head, with its value heads: x, the row's inputs, -> out [count, value_heads *
   value_dim]. */
static void run_delta_head(const DeltaNet *net, const StepRow *row, int64_t head, float *x,
                           float *out, float eps) {
    const int64_t dim = net->key_dim, size = net->value_dim, stride = net->inputs.out;
    const int64_t key_size = net->key_heads * dim, value_size = net->value_heads * size;
    const int64_t group = net->value_heads / net->key_heads, channels = 2 * key_size + value_size;
    const int64_t begins[] = {head * dim, key_size + head * dim,
                              2 * key_size + head * group * size};
    const int64_t sizes[] = {dim, dim, group * size};
    for (int part = 0; part < 3; part++) {
        const int64_t from = begins[part], to = from + sizes[part];
        convolve(&net->convolution, row, x, stride, from, to);
        for (int64_t t = 0; t < row->count; t++)
            for (int64_t c = from; c < to; c += LANES)
                *(vec *)(x + t * stride + c) = activate(load_floats(x + t * stride + c), SILU);
    }
    const int64_t matrix = dim * size, slot = net->value_heads * matrix;
    float *states = net->state + row->state_write * slot + head * group * matrix;
    if (row->state_read < 0) memset(states, 0, group * matrix * sizeof *states);
    else
        memcpy(states, net->state + row->state_read * slot + head * group * matrix,
               group * matrix * sizeof *states);
    for (int64_t t = 0; t < row->count; t++) {
        float *token = x + t * stride, *q = token + begins[0], *k = token + begins[1];
        const float q_scale = inverse_norm(q, dim) / sqrtf((float)dim);
        const float k_scale = inverse_norm(k, dim);
        for (int64_t i = 0; i < dim; i++) q[i] *= q_scale, k[i] *= k_scale;
        for (int64_t g = 0; g < group; g++) {
            const int64_t h = head * group + g;
            const float *gate = token + channels + h * size, *rates = token + channels + value_size;
            const float decay = expf(net->decay_rate[h] * softplus(rates[net->value_heads + h]
                                                                   + net->decay_bias[h]));
            float *to = out + t * value_size + h * size;
            apply_delta_rule(net, states + g * matrix, q, k, token + begins[2] + g * size, decay,
                             sigmoid(rates[h]), to);
            rms_norm(to, net->norm, eps, to, size);
            for (int64_t j = 0; j < size; j += LANES)
                *(vec *)(to + j) = load_floats(to + j) * activate(load_floats(gate + j), SILU);
        }
    }
}

/* Delta net of all rows: inputs [tokens, inputs.out] -> out [tokens, value_heads * value_dim]. */
static void run_delta_net(PhaseCursor *cursor, const DeltaNet *net, const StepRow *rows,
                          int64_t row_count, float *inputs, float *out, float eps) {
    for (int64_t n; (n = claim_piece(cursor, row_count * net->key_heads)) >= 0;) {
        const StepRow *row = &rows[n / net->key_heads];
        run_delta_head(net, row, n % net->key_heads, inputs + row->first * net->inputs.out,
                       out + row->first * net->value_heads * net->value_dim, eps);
    }
}
