/* A crew: the threads that do a step together, the caller's and its own.

   All walk through the same program. Each part of it is in pieces, which are taken by whoever comes
   next, and is over when all of them are done. So nobody waits for a thread that comes late, or that
   something else has kept from its core, but for the piece it holds; and the step may begin before
   its caller comes. A job must not be changed until it is finished or abandoned. */

#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#define PAUSE __builtin_ia32_pause()
#else
#define PAUSE atomic_signal_fence(memory_order_seq_cst)
#endif
#define SPINS 1000 /* some tens of microseconds: a thread waits so long before it sleeps */
#define LINE 64    /* bytes that two cores cannot write at once */

typedef struct {
    _Alignas(LINE) atomic_llong taken;
    _Alignas(LINE) atomic_llong done;
} Part;

typedef struct Crew Crew;
typedef struct {
    Crew *crew;
    Part *part;
    const Part *end; /* where it leaves the program */
    int held;        /* a piece */
} Walk;

struct Crew {
    void (*program)(Walk *, const void *job);
    const void *job;
    Part *parts;
    int64_t count; /* of parts */
    int64_t workers;
    pthread_t *worker;
    pthread_mutex_t lock;
    pthread_cond_t news; /* a counter that somebody sleeps for has changed */
    atomic_llong opened; /* how many jobs were; one more when all shall go */
    atomic_int open;     /* workers may come in */
    atomic_int inside;   /* workers that have */
    atomic_int asleep;
    atomic_int over;
    atomic_llong ended_ns; /* when the first came to the end of the program; 0: nobody has */
};

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void tell(Crew *crew) {
    if (!atomic_load(&crew->asleep)) return;
    pthread_mutex_lock(&crew->lock);
    pthread_cond_broadcast(&crew->news);
    pthread_mutex_unlock(&crew->lock);
}

/* Until `counter` is at least `least`. */
static void await(Crew *crew, atomic_llong *counter, int64_t least) {
    for (int n = 0; n < SPINS; n++) {
        if (atomic_load(counter) >= least) return;
        PAUSE;
    }
    pthread_mutex_lock(&crew->lock);
    atomic_fetch_add(&crew->asleep, 1);
    while (atomic_load(counter) < least) pthread_cond_wait(&crew->news, &crew->lock);
    atomic_fetch_sub(&crew->asleep, 1);
    pthread_mutex_unlock(&crew->lock);
}

/* The next piece of this part; -1: all `pieces` of it are done, and the walk is at the next one; or it
   has left.

       for (int64_t n; (n = next(walk, pieces)) >= 0;) ...
*/
static int64_t next(Walk *walk, int64_t pieces) {
    Part *part = walk->part;
    if (part == walk->end) return -1;
    if (walk->held && atomic_fetch_add(&part->done, 1) + 1 == pieces) tell(walk->crew);
    walk->held = 0;
    if (atomic_load(&part->taken) < pieces) {
        const int64_t piece = atomic_fetch_add(&part->taken, 1);
        if (piece < pieces) {
            walk->held = 1;
            return piece;
        }
    }
    await(walk->crew, &part->done, pieces);
    walk->part++;
    return -1;
}

/* The first `parts` of the program; what is done of them already is only passed. */
static void walk(Crew *crew, int64_t parts) {
    Walk own = {crew, crew->parts, crew->parts + parts, 0};
    crew->program(&own, crew->job);
    long long nobody = 0;
    if (parts == crew->count) atomic_compare_exchange_strong(&crew->ended_ns, &nobody, now_ns());
}

static void *work(void *of) {
    Crew *crew = of;
    for (int64_t seen = 0;;) {
        await(crew, &crew->opened, seen + 1);
        seen = atomic_load(&crew->opened);
        if (atomic_load(&crew->over)) return NULL;
        atomic_fetch_add(&crew->inside, 1);
        if (atomic_load(&crew->open)) walk(crew, crew->count);
        atomic_fetch_sub(&crew->inside, 1);
    }
}

/* `count`: parts of a program at most. NULL: no memory. */
static Crew *assemble(int64_t threads, int64_t count) {
    Crew *crew = calloc(1, sizeof *crew);
    if (crew == NULL) return NULL;
    crew->count = count;
    crew->parts = aligned_alloc(LINE, count * sizeof(Part));
    crew->worker = calloc(threads, sizeof *crew->worker);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->news, NULL);
    if (crew->parts == NULL || crew->worker == NULL) return NULL;
    while (crew->workers < threads - 1 &&
           !pthread_create(&crew->worker[crew->workers], NULL, work, crew))
        crew->workers++;
    return crew;
}

/* The job may be worked at from now on, by workers too if they are `invited`. */
static void open_job(Crew *crew, const void *job, int invited) {
    crew->job = job;
    atomic_store(&crew->ended_ns, 0);
    for (int64_t n = 0; n < crew->count; n++) {
        atomic_store_explicit(&crew->parts[n].taken, 0, memory_order_relaxed);
        atomic_store_explicit(&crew->parts[n].done, 0, memory_order_relaxed);
    }
    if (!invited) return;
    atomic_store(&crew->open, 1);
    atomic_fetch_add(&crew->opened, 1);
    tell(crew);
}

/* Works at it, too, until it is done and no worker looks at it any more. Returns for how long it has
   been done. */
static int64_t finish_job(Crew *crew) {
    walk(crew, crew->count);
    atomic_store(&crew->open, 0);
    for (int n = 0; atomic_load(&crew->inside); n++)
        if (n < SPINS) PAUSE;
        else sched_yield();
    return now_ns() - atomic_load(&crew->ended_ns);
}

/* Ends it, done or not. */
static void abandon_job(Crew *crew) {
    for (int64_t n = 0; n < crew->count; n++) {
        atomic_store(&crew->parts[n].taken, INT64_MAX / 2);
        atomic_store(&crew->parts[n].done, INT64_MAX / 2);
    }
    tell(crew);
    finish_job(crew);
}

static void dismiss(Crew *crew) {
    if (atomic_load(&crew->open)) abandon_job(crew);
    atomic_store(&crew->over, 1);
    atomic_fetch_add(&crew->opened, 1);
    tell(crew);
    for (int64_t n = 0; n < crew->workers; n++) pthread_join(crew->worker[n], NULL);
    free(crew->worker);
    free(crew->parts);
    free(crew);
}
