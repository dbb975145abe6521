// Shift the wall clock of a process by the seconds in the file WALL_CLOCK (8 bytes, mapped, so that
// changes take effect at once).

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *shift_s;

__attribute__((constructor)) static void map_shift(void) {
    int fd = open(getenv("WALL_CLOCK"), O_RDONLY);
    void *page = mmap(NULL, sizeof *shift_s, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) abort();
    shift_s = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && shift_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *shift_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec at;
    if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
    if (result) *result = at.tv_sec;
    return at.tv_sec;
}
