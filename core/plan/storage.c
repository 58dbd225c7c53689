/* Models how files are striped over servers, and the order in which a reader accesses the servers. */
#include "tessera/sys/plan.h"

#include <stdlib.h>

static const tsr_striping *striping_of(const tsr_storage *storage, uint32_t file)
{
    return file < storage->file_count ? &storage->files[file] : NULL;
}

static uint32_t server_of(const tsr_storage *storage, const tsr_striping *s, uint64_t stripe)
{
    const uint32_t turn = (uint32_t)(stripe % s->stripe_count);
    return s->servers ? s->servers[turn] : (uint32_t)(((uint64_t)s->first + turn) % storage->server_count);
}

uint32_t tsr_storage_server_at(const tsr_storage *storage, uint32_t file, uint64_t at)
{
    const tsr_striping *s = striping_of(storage, file);
    return s ? server_of(storage, s, at / s->stripe_size) : storage->server_count;
}

/* How many of the bytes below `end` of a file are in the stripes of one turn. */
static uint64_t bytes_below(const tsr_striping *s, uint64_t turn, uint64_t end)
{
    const uint64_t round = s->stripe_size * s->stripe_count, begin = turn * s->stripe_size, rest = end % round;
    const uint64_t more = rest > begin ? rest - begin : 0;
    return end / round * s->stripe_size + (more < s->stripe_size ? more : s->stripe_size);
}

/* Calls `visit` for the servers of a non-empty range. A server may be visited more than once. */
static void visit_range(const tsr_storage *storage, tsr_byte_range range,
                        void (*visit)(void *ctx, uint32_t server, uint64_t bytes), void *ctx)
{
    const tsr_striping *s = striping_of(storage, range.file);
    if (!s || !range.byte_length) return;
    const uint64_t end =
        range.byte_length > UINT64_MAX - range.byte_offset ? UINT64_MAX : range.byte_offset + range.byte_length;
    const uint64_t first = range.byte_offset / s->stripe_size, last = (end - 1) / s->stripe_size;
    const uint64_t turns = last - first < s->stripe_count ? last - first + 1 : s->stripe_count;
    for (uint64_t i = 0; i < turns; i++) {
        const uint64_t turn = (first + i) % s->stripe_count;
        visit(ctx, server_of(storage, s, turn), bytes_below(s, turn, end) - bytes_below(s, turn, range.byte_offset));
    }
}

typedef struct spreading {
    double share;
    double *bytes;
} spreading;

static void spread(void *ctx, uint32_t server, uint64_t bytes)
{
    const spreading *to = ctx;
    to->bytes[server] += to->share * (double)bytes;
}

void tsr_storage_spread(const tsr_storage *storage, tsr_byte_range range, double of_bytes, double *bytes)
{
    spreading to = {range.byte_length ? of_bytes / (double)range.byte_length : 0, bytes};
    visit_range(storage, range, spread, &to);
}

typedef struct costing {
    const tsr_storage *storage;
    double cost;
} costing;

static void add_cost(void *ctx, uint32_t server, uint64_t bytes)
{
    costing *c = ctx;
    c->cost += (double)bytes * (c->storage->fastest / c->storage->servers[server].bandwidth);
}

uint64_t tsr_storage_cost(const tsr_storage *storage, tsr_byte_range range)
{
    costing c = {storage, 0};
    const uint32_t server = tsr_storage_server_at(storage, range.file, range.byte_offset);
    if (server == storage->server_count) return range.byte_length;
    visit_range(storage, range, add_cost, &c);
    c.cost += storage->servers[server].latency * storage->fastest;
    return c.cost < 0x1p60 ? (uint64_t)c.cost : UINT64_C(1) << 60;
}

/* ---- order ---- */

static int by_server(const void *left, const void *right)
{
    const tsr_storage_item *a = left, *b = right;
    if (a->server != b->server) return a->server < b->server ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

/* The server at which a reader begins, as a fraction from 0 to below 1. Neighboring readers begin far apart, because they
 * often read the same files. All readers together are evenly spread. */
static double turn_of(const tsr_storage *storage, tsr_storage_reader reader)
{
    const uint64_t servers = storage->server_count, in_row = (reader.readers + servers - 1) / servers;
    if (reader.readers < servers) return (double)reader.reader / (double)reader.readers;
    const double within = (double)(reader.reader / servers) / (double)in_row;
    return ((double)(reader.reader % servers) + within) / (double)servers;
}

static void reverse(tsr_storage_item *items, size_t first, size_t end)
{
    for (; first + 1 < end; first++, end--) {
        const tsr_storage_item item = items[first];
        items[first] = items[end - 1];
        items[end - 1] = item;
    }
}

void tsr_storage_order(const tsr_storage *storage, tsr_storage_reader reader, tsr_storage_item *items, size_t count)
{
    double total = 0, before = 0;
    size_t begin = 0;
    if (count < 2) return;
    qsort(items, count, sizeof *items, by_server);
    for (size_t i = 0; i < count; i++) total += (double)items[i].cost;
    const double turn = turn_of(storage, reader) * total * (1 + 1e-12); /* rounding must not stop before a server */
    for (; begin + 1 < count && before + (double)items[begin].cost <= turn; begin++) before += (double)items[begin].cost;
    reverse(items, 0, begin);
    reverse(items, begin, count);
    reverse(items, 0, count);
}
