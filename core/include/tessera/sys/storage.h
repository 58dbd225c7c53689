/* The servers of a parallel file system, and which of them hold a checkpoint's files.
 *
 *   a file of 3 stripes per round     stripe 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ …
 *   on servers [4, 5, 6]              server 4 │ 5 │ 6 │ 4 │ 5 │ 6 │ …
 *
 * Readers that read a checkpoint in the same order all ask the same server at the same time, while the others are idle. Here
 * each reader goes from server to server and begins at a different one. At any time every server then serves its share of
 * the readers.
 *
 * Example:
 *
 *     const tsr_storage_server servers[] = {{TSR_STR("oss0"), 1e9, 0.0005}, {TSR_STR("oss1"), 1e9, 0.0005}};
 *     const tsr_striping file = {.stripe_size = 1 << 20, .stripe_count = 2};
 *     const tsr_storage storage = {servers, 2, 1e9, &file, 1};
 *     printf("byte 5000000 is on server %u\n", (unsigned)tsr_storage_server_at(&storage, 0, 5000000)); */
#ifndef TESSERA_SYS_STORAGE_H
#define TESSERA_SYS_STORAGE_H

#include "tessera/sys/plan_items.h"

TSR_API_BEGIN

typedef struct tsr_storage_server {
    tsr_str name;
    double bandwidth; /* bytes per second, above 0 */
    double latency;   /* seconds before the first byte of a request, at least 0 */
} tsr_storage_server;

/* How a file is spread: its stripes go to the servers in turn. */
typedef struct tsr_striping {
    uint64_t stripe_size;    /* bytes, at least 1 */
    uint32_t stripe_count;   /* servers that hold the file, at least 1 */
    uint32_t first;          /* without `servers`: the server of the first stripe; the next ones follow it */
    const uint32_t *servers; /* NULL, or stripe_count numbers of servers */
    bool assumed;            /* the document does not list the file: such files begin at the servers in turn */
} tsr_striping;

typedef struct tsr_storage {
    const tsr_storage_server *servers;
    uint32_t server_count;
    double fastest;            /* bandwidth */
    const tsr_striping *files; /* by their numbers in the store */
    uint32_t file_count;
} tsr_storage;

/* The server that holds a byte of a file; server_count for files that are not the store's (tensors that a map computes). */
uint32_t tsr_storage_server_at(const tsr_storage *storage, uint32_t file, uint64_t at);

/* Adds what each server holds of the range to `bytes`, which has server_count numbers, as if the range had `of_bytes` bytes
 * that are evenly spread over it (of_bytes = range.byte_length: all of it is read). O(stripes), at most O(stripe_count). */
void tsr_storage_spread(const tsr_storage *storage, tsr_byte_range range, double of_bytes, double *bytes);
/* The cost of reading a range, in bytes that the fastest server delivers in the same time. */
uint64_t tsr_storage_cost(const tsr_storage *storage, tsr_byte_range range);

/* Reader `reader` (from 0) of `readers` that work at the same time: ranks, or parts of a plan. */
typedef struct tsr_storage_reader {
    uint64_t reader, readers;
} tsr_storage_reader;
typedef struct tsr_storage_item {
    uint32_t server; /* the one that stores most of it */
    uint64_t cost;   /* as tsr_storage_cost counts */
    size_t number;   /* given by the caller; keeps items of one server in this order */
} tsr_storage_item;
/* Sorts a reader's items by server and number, and rotates the list: readers begin at points that are evenly spread over the
 * cycle of all servers. Deterministic. O(count × log count). */
void tsr_storage_order(const tsr_storage *storage, tsr_storage_reader reader, tsr_storage_item *items, size_t count);

/* The bytes that a server delivers if every distinct shard is read once. */
typedef struct tsr_server_load {
    uint64_t bytes;
    double seconds; /* bytes / bandwidth: no order of reads is faster than the largest of these */
} tsr_server_load;
/* Of the files that a plan reads, those that the document does not list. */
uint32_t tsr_storage_assumed(const tsr_storage *storage, const tsr_plan_totals *totals);
/* server_count loads, in `arena`. O(chunks × stripes of a chunk). */
tsr_status tsr_plan_count_servers(const tsr_plan *plan, const tsr_storage *storage, tsr_arena *arena,
                                  const tsr_server_load **out, tsr_error *err);

TSR_API_END

#endif
