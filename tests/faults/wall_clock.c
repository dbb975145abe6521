// A clock on the wall that is wrong by as many seconds as the file WALL_CLOCK says (8 bytes, read
// anew each time). Preloaded: for programs that libfaketime cannot be loaded into, as Redis, whose
// jemalloc asks for the time before that is ready to say it.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *wrong_s;

__attribute__((constructor)) static void look(void) {
    int fd = open(getenv("WALL_CLOCK"), O_RDONLY);
    void *page = mmap(NULL, sizeof *wrong_s, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) abort();
    wrong_s = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && wrong_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *wrong_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *told) {
    struct timespec at;
    if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
    if (told) *told = at.tv_sec;
    return at.tv_sec;
}
