/* Segments of shared memory, one per rank:
 *
 *   | bytes of buffer 0, 1, … (u64 each) | buffer 0 | buffer 1 | …     buffers at multiples of 64
 *
 * The name of a segment is random and exists from its creation until all ranks have mapped it. */
#include "live/tensor/share.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/sys/alloc.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

enum { ALIGNMENT = 64, NAME_SIZE = 48 };

typedef struct segment {
    char name[NAME_SIZE];
    uint64_t size;
} segment;

struct tsr_shared {
    const tsr_allocator *allocator;
    uint32_t own, ranks;
    size_t count;
    segment *segments;
    uint8_t **mapped; /* by rank; NULL: not mapped yet */
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static tsr_status raise_errno(tsr_error *err, const char *what, uint32_t rank, int number)
{
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "shared memory: cannot %s the segment of rank %" PRIu32 ": %s", what,
                     rank, number == ENOENT ? "there is no such segment; is it on this machine?" : strerror(number));
}

static tsr_status map(tsr_shared *s, int file, uint32_t rank, tsr_error *err)
{
    void *at = mmap(NULL, (size_t)s->segments[rank].size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) return raise_errno(err, "map", rank, errno);
    s->mapped[rank] = at;
    return TSR_OK;
}

static tsr_status make_own(tsr_shared *s, segment *own, uint32_t rank, const uint64_t *sizes, tsr_error *err)
{
    uint64_t random[2] = {0};
    own->size = aligned(s->count * sizeof *sizes);
    for (size_t i = 0; i < s->count; i++) own->size += aligned(sizes[i]);
    if (own->size == 0) own->size = ALIGNMENT;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return raise_errno(err, "name", rank, errno);
    snprintf(own->name, sizeof own->name, "/tessera-%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    const int file = shm_open(own->name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0) return raise_errno(err, "make", rank, errno);
    /* Reserved now, so that a full /dev/shm is an error here rather than a signal later. */
    const int failed = posix_fallocate(file, 0, (off_t)own->size);
    s->segments[rank] = *own;
    tsr_status status = failed ? raise_errno(err, "reserve", rank, failed) : map(s, file, rank, err);
    close(file);
    if (status == TSR_OK && s->count) memcpy(s->mapped[rank], sizes, s->count * sizeof *sizes);
    return status;
}

static tsr_status open_other(tsr_shared *s, uint32_t rank, tsr_error *err)
{
    struct stat info;
    const int file = shm_open(s->segments[rank].name, O_RDWR, 0);
    if (file < 0) return raise_errno(err, "open", rank, errno);
    tsr_status status = fstat(file, &info) != 0 || (uint64_t)info.st_size != s->segments[rank].size
                            ? raise_errno(err, "find all of", rank, EIO)
                            : map(s, file, rank, err);
    close(file);
    return status;
}

static tsr_status open_others(tsr_shared *s, uint32_t own, tsr_error *err)
{
    for (uint32_t r = 0; r < s->ranks; r++)
        if (r != own) TSR_TRY(open_other(s, r, err));
    return TSR_OK;
}

static tsr_status allocate_tables(tsr_comm *comm, const tsr_allocator *allocator, size_t count, tsr_shared **out,
                                  size_t **sizes, tsr_error *err)
{
    tsr_shared *s = tsr_alloc(allocator, 1, sizeof *s, err);
    *out = s;
    if (!s) return TSR_E_NOMEM;
    *s = (tsr_shared){.allocator = allocator, .own = comm->rank, .ranks = comm->size, .count = count};
    s->segments = tsr_alloc(allocator, comm->size, sizeof *s->segments, err);
    s->mapped = tsr_alloc(allocator, comm->size, sizeof *s->mapped, err);
    *sizes = tsr_alloc(allocator, comm->size, sizeof **sizes, err);
    if (s->mapped) memset(s->mapped, 0, comm->size * sizeof *s->mapped);
    for (uint32_t r = 0; *sizes && r < comm->size; r++) (*sizes)[r] = sizeof(segment);
    return s->segments && s->mapped && *sizes ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_shared_new(tsr_comm *comm, const uint64_t *sizes, size_t count, const tsr_allocator *allocator,
                          tsr_shared **out, tsr_error *err)
{
    size_t *table = NULL;
    segment own = {.size = 0};
    tsr_shared *s = NULL;
    tsr_status status = allocate_tables(comm, allocator, count, &s, &table, err);
    if (status == TSR_OK) status = make_own(s, &own, comm->rank, sizes, err);
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) status = comm->all_gather(comm, &own, table, s->segments, err);
    if (status == TSR_OK) {
        status = open_others(s, comm->rank, err);
        status = tsr_comm_agree(comm, status, err);
    }
    if (own.name[0]) shm_unlink(own.name);
    tsr_free(allocator, table, comm->size, sizeof *table);
    if (status == TSR_OK) *out = s;
    else tsr_shared_free(s);
    return status;
}

void tsr_shared_free(tsr_shared *s)
{
    if (!s) return;
    for (uint32_t r = 0; s->mapped && s->segments && r < s->ranks; r++)
        if (s->mapped[r]) munmap(s->mapped[r], (size_t)s->segments[r].size);
    tsr_free(s->allocator, s->segments, s->ranks, sizeof *s->segments);
    tsr_free(s->allocator, s->mapped, s->ranks, sizeof *s->mapped);
    tsr_free(s->allocator, s, 1, sizeof *s);
}

uint32_t tsr_shared_ranks(const tsr_shared *shared)
{
    return shared->ranks;
}

bool tsr_shared_is_own(const tsr_shared *s, uint32_t rank, uint32_t ranks, size_t index, const void *data)
{
    uint64_t bytes;
    return s->own == rank && s->ranks == ranks && index < s->count && tsr_shared_buffer(s, rank, index, &bytes) == data;
}

uint64_t tsr_shared_digest(const tsr_shared *s)
{
    return tsr_hash_bytes(s->segments, s->ranks * sizeof *s->segments, 1) | 1;
}

void *tsr_shared_buffer(const tsr_shared *shared, uint32_t rank, size_t index, uint64_t *bytes)
{
    const uint64_t *sizes = (const uint64_t *)shared->mapped[rank];
    uint64_t at = aligned(shared->count * sizeof *sizes);
    for (size_t i = 0; i < index; i++) at += aligned(sizes[i]);
    *bytes = sizes[index];
    return *bytes ? shared->mapped[rank] + at : NULL;
}
