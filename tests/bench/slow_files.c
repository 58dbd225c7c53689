/* A library for LD_PRELOAD that makes the files below one directory as slow as those of a file server: a read takes
 * SLOW_LATENCY_US, and its bytes arrive at SLOW_BYTES_PER_S. It only waits, so two cores are enough to see how a program
 * distributes work over many threads.
 *
 *   SLOW_PATH         the directory, with symbolic links resolved
 *   SLOW_LATENCY_US   latency of each read
 *   SLOW_BYTES_PER_S  rate of each read by itself, as of a file striped over many servers; with
 *   SLOW_QUEUE=1      rate of each file: the bytes of its reads pass one after another, as from a single server
 *   SLOW_CORES        number of cores that the program is shown
 *
 * When the program ends, the library writes the number of reads and of their bytes to the file SLOW_REPORT. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define SERVERS  1024u
#define A_SECOND UINT64_C(1000000000)

static struct {
    const char *path;
    size_t path_size;
    uint64_t latency, bytes_per_second; /* the latency is in nanoseconds; 0: no limit */
    unsigned cores;
    int queue;
    ssize_t (*pread)(int fd, void *buffer, size_t size, off_t offset);
    ssize_t (*read)(int fd, void *buffer, size_t size);
} slow;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t busy_until[SERVERS]; /* for each server, when its last transfer ends; guarded by `lock` */
static atomic_ullong reads, bytes_read;

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

__attribute__((constructor)) static void begin(void)
{
    *(void **)&slow.pread = dlsym(RTLD_NEXT, "pread");
    *(void **)&slow.read = dlsym(RTLD_NEXT, "read");
    slow.path = getenv("SLOW_PATH");
    slow.path_size = slow.path ? strlen(slow.path) : 0;
    slow.latency = number_of("SLOW_LATENCY_US") * 1000;
    slow.bytes_per_second = number_of("SLOW_BYTES_PER_S");
    slow.cores = (unsigned)number_of("SLOW_CORES");
    slow.queue = number_of("SLOW_QUEUE") != 0;
}

__attribute__((destructor)) static void report(void)
{
    const char *name = getenv("SLOW_REPORT");
    FILE *f = name && slow.path ? fopen(name, "a") : NULL;
    if (!f) return;
    fprintf(f, "%llu %llu\n", (unsigned long long)reads, (unsigned long long)bytes_read);
    fclose(f);
}

/* Whether the file is one of the slow ones. Sets *server to a number that most likely no other file has. */
static int is_slow(int fd, size_t *server)
{
    char link[64], name[4096];
    struct stat info;
    if (!slow.path) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t size = readlink(link, name, sizeof name);
    if (size < 0 || (size_t)size <= slow.path_size || memcmp(name, slow.path, slow.path_size) != 0 ||
        name[slow.path_size] != '/')
        return 0;
    if (fstat(fd, &info) != 0) return 0;
    *server = (size_t)(info.st_ino % SERVERS);
    return 1;
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * A_SECOND + (uint64_t)t.tv_nsec;
}

/* Returns when the bytes arrive. */
static uint64_t arrival(uint64_t began, size_t server, size_t size)
{
    const uint64_t passing = slow.bytes_per_second ? size * A_SECOND / slow.bytes_per_second : 0;
    if (!slow.queue) return began + slow.latency + passing;
    pthread_mutex_lock(&lock);
    if (busy_until[server] < began) busy_until[server] = began;
    busy_until[server] += passing;
    const uint64_t end = busy_until[server] + slow.latency;
    pthread_mutex_unlock(&lock);
    return end;
}

static void wait_for(uint64_t began, size_t server, ssize_t size)
{
    const uint64_t end = arrival(began, server, size > 0 ? (size_t)size : 0);
    const struct timespec then = {(time_t)(end / A_SECOND), (long)(end % A_SECOND)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL) != 0) {
    }
    reads++;
    bytes_read += size > 0 ? (unsigned long long)size : 0;
}

ssize_t pread(int fd, void *buffer, size_t size, off_t offset)
{
    size_t server;
    const int waits = is_slow(fd, &server);
    const uint64_t began = waits ? now() : 0;
    const ssize_t n = slow.pread(fd, buffer, size, offset);
    if (waits) wait_for(began, server, n);
    return n;
}

ssize_t pread64(int fd, void *buffer, size_t size, off_t offset)
{
    return pread(fd, buffer, size, offset);
}

ssize_t read(int fd, void *buffer, size_t size)
{
    size_t server;
    const int waits = is_slow(fd, &server);
    const uint64_t began = waits ? now() : 0;
    const ssize_t n = slow.read(fd, buffer, size);
    if (waits) wait_for(began, server, n);
    return n;
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    static int (*real)(pid_t pid, size_t size, cpu_set_t * set);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "sched_getaffinity");
    if (!slow.cores) return real(pid, size, set);
    CPU_ZERO_S(size, set);
    for (unsigned i = 0; i < slow.cores; i++) CPU_SET_S(i, size, set);
    return 0;
}
