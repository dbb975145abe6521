/* Read a buffer once on several threads: the fastest that a step can read the weights. */

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t vector __attribute__((vector_size(64)));

typedef struct {
    const vector *data;
    size_t count;
    uint64_t digest;
} part;

enum { THREADS_MAX = 256, STREAMS = 4 };

static void *read_part(void *argument) {
    part *mine = argument;
    size_t length = mine->count / STREAMS;
    const vector *data = mine->data;
    vector sums[STREAMS] = {0};
    for (size_t n = 0; n < length; n++)
        for (int stream = 0; stream < STREAMS; stream++) {
            const vector *at = data + stream * length + n;
            __builtin_prefetch(at + 32);
            sums[stream] ^= *at;
        }
    for (int stream = 0; stream < STREAMS; stream++)
        for (int n = 0; n < 8; n++)
            mine->digest ^= sums[stream][n];
    return NULL;
}

/* `data`: aligned to 64 bytes. Returns a digest, so that no read can be left out. */
uint64_t read_buffer(const void *data, size_t bytes, int threads) {
    pthread_t others[THREADS_MAX];
    part parts[THREADS_MAX] = {0};
    size_t count = bytes / sizeof(vector) / threads;
    uint64_t digest = 0;
    for (int n = 0; n < threads; n++) {
        parts[n].data = (const vector *)data + n * count;
        parts[n].count = count;
        if (n > 0 && pthread_create(&others[n], NULL, read_part, &parts[n]))
            return 0;
    }
    read_part(&parts[0]);
    for (int n = 0; n < threads; n++) {
        if (n > 0)
            pthread_join(others[n], NULL);
        digest ^= parts[n].digest;
    }
    return digest;
}
