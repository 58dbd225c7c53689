/* A model of a parallel file system. Servers process one request after the other, in the order in which requests arrive
 * after the latency. A reader requests all stripes of a read at once, and waits for it before it begins the next read. It is
 * a discrete-event simulation without clocks or randomness: equal input gives equal times. */
#ifndef TSR_TESTS_SUPPORT_STORAGE_MODEL_H
#define TSR_TESTS_SUPPORT_STORAGE_MODEL_H

#include <stdlib.h>

#include "tessera/sys/plan.h"

typedef struct model_reader {
    tsr_byte_range *reads; /* in the order in which they are requested */
    size_t count, at;
    double time; /* when the next one is requested */
} model_reader;

/* The readers are in a heap, ordered by time and then by number. */
typedef struct model {
    const tsr_storage *storage;
    model_reader *readers;
    size_t *heap;
    size_t heap_count;
    double *free_at; /* when each server is free again */
    double *bytes;   /* of the current read, by server */
} model;

static inline bool model_before(const model *m, size_t a, size_t b)
{
    const double x = m->readers[a].time, y = m->readers[b].time;
    return x != y ? x < y : a < b;
}

static inline void model_sink(model *m, size_t at)
{
    for (size_t child; (child = 2 * at + 1) < m->heap_count; at = child) {
        if (child + 1 < m->heap_count && model_before(m, m->heap[child + 1], m->heap[child])) child++;
        if (!model_before(m, m->heap[child], m->heap[at])) return;
        const size_t swapped = m->heap[at];
        m->heap[at] = m->heap[child];
        m->heap[child] = swapped;
    }
}

/* Requests a read from all of its servers at the same time, so that requests arrive in the order of the readers' times. */
static inline void model_read(model *m, model_reader *r)
{
    const tsr_storage *s = m->storage;
    double end = r->time;
    tsr_storage_spread(s, r->reads[r->at], (double)r->reads[r->at].byte_length, m->bytes);
    for (uint32_t k = 0; k < s->server_count; k++) {
        if (m->bytes[k] <= 0) continue;
        const double arrives = r->time + s->servers[k].latency;
        m->free_at[k] = (m->free_at[k] > arrives ? m->free_at[k] : arrives) + m->bytes[k] / s->servers[k].bandwidth;
        end = m->free_at[k] > end ? m->free_at[k] : end;
        m->bytes[k] = 0;
    }
    r->time = end;
    r->at++;
}

/* The seconds until the last reader is done. All servers must have the same latency. */
static inline double model_run(const tsr_storage *storage, model_reader *readers, size_t count)
{
    model m = {.storage = storage, .readers = readers, .heap = malloc(count * sizeof *m.heap)};
    double end = 0;
    m.free_at = calloc(storage->server_count, sizeof *m.free_at);
    m.bytes = calloc(storage->server_count, sizeof *m.bytes);
    if (!m.heap || !m.free_at || !m.bytes) abort();
    for (size_t i = 0; i < count; i++) {
        readers[i].at = 0;
        readers[i].time = 0;
        if (readers[i].count) m.heap[m.heap_count++] = i;
    }
    while (m.heap_count) {
        model_reader *next = &readers[m.heap[0]];
        model_read(&m, next);
        end = next->time > end ? next->time : end;
        if (next->at == next->count) m.heap[0] = m.heap[--m.heap_count];
        model_sink(&m, 0);
    }
    free(m.heap), free(m.free_at), free(m.bytes);
    return end;
}

/* A lower bound for any order: the busiest server never pauses, or the slowest reader never waits for another one. */
static inline double model_bound(const tsr_storage *storage, const model_reader *readers, size_t count)
{
    double *bytes = calloc(storage->server_count, sizeof *bytes), bound = 0;
    if (!bytes) abort();
    for (size_t i = 0; i < count; i++) {
        model_reader alone = readers[i];
        for (size_t k = 0; k < alone.count; k++)
            tsr_storage_spread(storage, alone.reads[k], (double)alone.reads[k].byte_length, bytes);
        const double seconds = model_run(storage, &alone, 1);
        bound = seconds > bound ? seconds : bound;
    }
    for (uint32_t s = 0; s < storage->server_count; s++) {
        const double seconds = bytes[s] / storage->servers[s].bandwidth;
        bound = seconds > bound ? seconds : bound;
    }
    free(bytes);
    return bound;
}

#endif
