/* A thread pool whose threads, the caller's included, run one job (a step) together.

   All threads run the same program. Each phase of the program is split into pieces, which the
   threads claim one at a time (dynamic scheduling), and ends when all of its pieces are completed.
   A thread that starts late or is descheduled delays the others only by the piece it has claimed,
   and the pool's threads may start a job before the caller joins in. A job must not be modified
   until it is finished or discarded. */

#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__)
#define CPU_RELAX __builtin_ia32_pause()
#else
#define CPU_RELAX atomic_signal_fence(memory_order_seq_cst)
#endif
#define SPINS_MAX 1000 /* busy-wait iterations (some tens of microseconds) before a thread sleeps */
#define CACHE_LINE 64  /* bytes; counters on separate lines avoid false sharing */
#define NEVER_NS INT64_MAX

typedef struct {
    _Alignas(CACHE_LINE) atomic_llong claimed;   /* pieces claimed; may exceed their number */
    _Alignas(CACHE_LINE) atomic_llong completed; /* pieces completed */
} Phase;

typedef struct ThreadPool ThreadPool;

/* The position of one thread in the program. */
typedef struct {
    ThreadPool *pool;
    Phase *phase;
    const Phase *end; /* the thread leaves the program before this phase */
    int has_piece;    /* whether the thread has claimed a piece that is not completed yet */
    int64_t leave_ns; /* the thread also leaves when a piece is completed after this time */
    double part;      /* of the current phase that is completed, if the thread has left within it */
} PhaseCursor;

struct ThreadPool {
    void (*program)(PhaseCursor *, void *job);
    void *job;
    Phase *phases;
    int64_t phase_count;
    int64_t thread_count; /* without the caller's thread */
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;     /* a counter that a sleeping thread waits for has changed */
    atomic_llong job_number;    /* incremented for each job, and once more at shutdown */
    atomic_int accepts_workers; /* whether the pool's threads may join the current job */
    atomic_int active_workers;  /* threads of the pool that are in the program */
    atomic_int sleepers;
    atomic_int is_shutting_down;
    atomic_llong ended_ns; /* when the first thread reached the end of the program; 0: none yet */
};

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void wake_all(ThreadPool *pool) {
    if (!atomic_load(&pool->sleepers)) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

/* Block until `counter` is at least `least`: spin first, then sleep. */
static void wait_until_at_least(ThreadPool *pool, atomic_llong *counter, int64_t least) {
    for (int n = 0; n < SPINS_MAX; n++) {
        if (atomic_load(counter) >= least) return;
        CPU_RELAX;
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(counter) < least) pthread_cond_wait(&pool->changed, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

/* Complete the piece claimed before, if any, and claim the next one of the `pieces` of this phase.
   Returns its index, or -1 at the end of the phase: all of its pieces are completed, and the cursor
   is at the next phase. Returns -1 at once if the cursor is at its end, which is where it is when it
   is time to leave: the rest of the phase is left to other threads, or to the next cursor.

       for (int64_t n; (n = claim_piece(cursor, pieces)) >= 0;) ...
*/
static int64_t claim_piece(PhaseCursor *cursor, int64_t pieces) {
    Phase *phase = cursor->phase;
    if (phase == cursor->end) return -1;
    const int may_leave = cursor->leave_ns < NEVER_NS &&
                          (cursor->has_piece || atomic_load(&phase->completed) < pieces);
    if (cursor->has_piece) {
        cursor->has_piece = 0;
        const int64_t completed = atomic_fetch_add(&phase->completed, 1) + 1;
        if (completed == pieces) wake_all(cursor->pool);
        else if (may_leave && now_ns() >= cursor->leave_ns) {
            cursor->end = phase;
            cursor->part = (double)completed / (double)pieces;
            return -1;
        }
    }
    if (atomic_load(&phase->claimed) < pieces) {
        const int64_t piece = atomic_fetch_add(&phase->claimed, 1);
        if (piece < pieces) {
            cursor->has_piece = 1;
            return piece;
        }
    }
    wait_until_at_least(cursor->pool, &phase->completed, pieces);
    cursor->phase++;
    if (may_leave && now_ns() >= cursor->leave_ns) cursor->end = cursor->phase;
    return -1;
}

/* Block before the current phase until `counter` is at least `least`, unless the cursor is at its
   end. */
static void wait_before_phase(PhaseCursor *cursor, atomic_llong *counter, int64_t least) {
    if (cursor->phase != cursor->end) wait_until_at_least(cursor->pool, counter, least);
}

/* Run the first `count` phases of the program, or leave after the first piece that is completed after
   `leave_ns`; phases completed before are skipped. Returns how many are completed, with the part of
   one that is not. */
static double run_phases(ThreadPool *pool, int64_t count, int64_t leave_ns) {
    PhaseCursor cursor = {pool, pool->phases, pool->phases + count, 0, leave_ns, 0};
    pool->program(&cursor, pool->job);
    long long unset = 0;
    if (cursor.phase == pool->phases + pool->phase_count)
        atomic_compare_exchange_strong(&pool->ended_ns, &unset, now_ns());
    return (double)(cursor.phase - pool->phases) + cursor.part;
}

static void *worker_main(void *argument) {
    ThreadPool *pool = argument;
    for (int64_t last_job = 0;;) {
        wait_until_at_least(pool, &pool->job_number, last_job + 1);
        last_job = atomic_load(&pool->job_number);
        if (atomic_load(&pool->is_shutting_down)) return NULL;
        atomic_fetch_add(&pool->active_workers, 1);
        if (atomic_load(&pool->accepts_workers)) run_phases(pool, pool->phase_count, NEVER_NS);
        atomic_fetch_sub(&pool->active_workers, 1);
    }
}

/* Create a pool of up to `threads` threads, the caller's included, for programs of `phase_count`
   phases. Returns NULL if memory is exhausted. */
static ThreadPool *pool_create(int64_t threads, int64_t phase_count) {
    ThreadPool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return NULL;
    pool->phase_count = phase_count;
    pool->phases = aligned_alloc(CACHE_LINE, phase_count * sizeof(Phase));
    pool->threads = calloc(threads, sizeof *pool->threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    if (pool->phases == NULL || pool->threads == NULL) return NULL;
    while (pool->thread_count < threads - 1 &&
           !pthread_create(&pool->threads[pool->thread_count], NULL, worker_main, pool))
        pool->thread_count++;
    return pool;
}

/* Start a job. Returns at once; the pool's threads run the job if `accepts_workers`, otherwise only
   the caller does, in `run_phases` and `pool_finish`. */
static void pool_start(ThreadPool *pool, void *job, int accepts_workers) {
    pool->job = job;
    atomic_store(&pool->ended_ns, 0);
    for (int64_t n = 0; n < pool->phase_count; n++) {
        atomic_store_explicit(&pool->phases[n].claimed, 0, memory_order_relaxed);
        atomic_store_explicit(&pool->phases[n].completed, 0, memory_order_relaxed);
    }
    if (!accepts_workers) return;
    atomic_store(&pool->accepts_workers, 1);
    atomic_fetch_add(&pool->job_number, 1);
    wake_all(pool);
}

/* Run the rest of the job together with the pool's threads, and wait until they have left it.
   Returns the nanoseconds since the job's end. */
static int64_t pool_finish(ThreadPool *pool) {
    run_phases(pool, pool->phase_count, NEVER_NS);
    atomic_store(&pool->accepts_workers, 0);
    for (int n = 0; atomic_load(&pool->active_workers); n++)
        if (n < SPINS_MAX) CPU_RELAX;
        else sched_yield();
    return now_ns() - atomic_load(&pool->ended_ns);
}

/* Cancel the rest of the job: pieces not claimed yet are skipped. */
static void pool_discard(ThreadPool *pool) {
    for (int64_t n = 0; n < pool->phase_count; n++) {
        atomic_store(&pool->phases[n].claimed, INT64_MAX / 2);
        atomic_store(&pool->phases[n].completed, INT64_MAX / 2);
    }
    wake_all(pool);
    pool_finish(pool);
}

/* Discard the current job, if any, join the threads and free the pool. */
static void pool_destroy(ThreadPool *pool) {
    if (atomic_load(&pool->accepts_workers)) pool_discard(pool);
    atomic_store(&pool->is_shutting_down, 1);
    atomic_fetch_add(&pool->job_number, 1);
    wake_all(pool);
    for (int64_t n = 0; n < pool->thread_count; n++) pthread_join(pool->threads[n], NULL);
    free(pool->threads);
    free(pool->phases);
    free(pool);
}
