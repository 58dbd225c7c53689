/* Plans: the layout that is asked for, the storage of ranks, and what each rank reads and writes. */
#ifndef TESSERA_SYS_PLAN_H
#define TESSERA_SYS_PLAN_H

#include "tessera/plan.h"
#include "tessera/sys/layout.h"
#include "tessera/target.h"

TSR_API_BEGIN

/* Targets (tessera/target.h) by the name of a strategy, and the ranks that hold a tensor under one.
 *
 * Example:
 *
 *     tsr_target target;
 *     status = tsr_target_parse(TSR_STR("dp=4"), TSR_STR("shard(0)"), arena, &target, &err);
 *     tsr_holders holders;
 *     if (status == TSR_OK) status = tsr_target_holders(&target, entry, &holders, &err);
 *     if (status == TSR_OK && tsr_holders_have(&holders, 3)) printf("rank 3 holds a part\n"); */

/* Whether every rank is one, and whether `rank` is. */
static inline bool tsr_holders_are_all(const tsr_holders *holders)
{
    return !holders->ranks && !holders->at_coordinate;
}
bool tsr_holders_have(const tsr_holders *holders, uint64_t rank);

/* Which ranks hold a tensor by the rule that gives its placements. TSR_E_USAGE for a layer that is in no stage. */
tsr_status tsr_target_holders(const tsr_target *target, const tsr_entry *entry, tsr_holders *out, tsr_error *err);

/* The placements of a tensor, in the target's mesh. A rule that names a dim which the tensor does not have is TSR_E_USAGE; a
 * default that does replicates there instead: *out is then a copy in `arena` and *replicated is true. */
tsr_status tsr_target_placements(const tsr_target *target, const tsr_entry *entry, tsr_arena *arena,
                                 const tsr_placement **out, bool *replicated, tsr_error *err);

/* Makes the target that PyTorch's API of that name produces. It lives in `arena`.
 *
 *   fsdp2   mesh (dp)                 shard(0)
 *   hsdp    mesh (replicate, shard)   replicate, shard(0)
 *   ddp     mesh (dp)                 replicate
 *
 * Errors: TSR_E_USAGE if the mesh has a different number of dims. */
typedef enum tsr_strategy { TSR_STRATEGY_FSDP2, TSR_STRATEGY_HSDP, TSR_STRATEGY_DDP } tsr_strategy;
tsr_status tsr_target_strategy(tsr_strategy strategy, tsr_mesh mesh, tsr_arena *arena, tsr_target *out, tsr_error *err);

/* Makes a target for tensor parallelism, alone on a mesh (tp) or combined with FSDP2 on a mesh (dp, tp). Each rule gives a
 * style to the modules that its GLOB matches:
 *
 *   COLUMN             linear: weight and bias are split on dim 0
 *   ROW                linear: the weight is split on dim 1, the bias is whole on every tp rank
 *   EMBEDDING_ROW      embedding: the weight is split on dim 0
 *   EMBEDDING_COLUMN   embedding: the weight is split on dim 1
 *
 * All other tensors are whole on every tp rank. With FSDP2, dim 0 is a strided shard where tp splits it too.
 * Source: torch.distributed.tensor.parallel ColwiseParallel, RowwiseParallel. */
typedef enum tsr_tp_style { TSR_TP_COLUMN, TSR_TP_ROW, TSR_TP_EMBEDDING_ROW, TSR_TP_EMBEDDING_COLUMN } tsr_tp_style;
typedef struct tsr_tp_rule {
    tsr_str module; /* GLOB */
    tsr_tp_style style;
} tsr_tp_rule;
tsr_status tsr_target_tensor_parallel(tsr_mesh mesh, const tsr_tp_rule *rules, uint32_t rule_count, tsr_arena *arena,
                                      tsr_target *out, tsr_error *err);

/* Targets that are made of other things than texts: checked, or with FSDP1's flat parameters.
 *
 * Example:
 *
 *     const tsr_fsdp1 fsdp1 = {.ranks = 8};
 *     const tsr_fsdp1_unit *units;
 *     status = tsr_target_fsdp1(catalog, &fsdp1, arena, &units, &err);
 *     if (status == TSR_OK) printf("every rank holds %llu bytes\n", (unsigned long long)units[0].slice_bytes); */

/* Every placement list by itself: as many placements as mesh dims, no `partial` (its values are parts of sums that only
 * the running job can add up). TSR_E_USAGE naming the rule. */
tsr_status tsr_target_check(const tsr_target *target, tsr_error *err);

/* fsdp1: which original parameters make up each flat parameter, and how it is cut. */
typedef struct tsr_fsdp1_unit {
    tsr_str match;                   /* the GLOB that claimed its parameters; "" for the root unit */
    const tsr_entry *const *entries; /* in the catalog's order */
    uint64_t count;
    tsr_dtype dtype; /* of all of them */
    bool use_orig_params;
    tsr_flat_layout flat; /* index i is entries[i] */
    uint64_t slice_bytes; /* what every rank holds, padding included */
} tsr_fsdp1_unit;

typedef struct tsr_fsdp1 {
    const tsr_str *units; /* GLOBs of wrapped modules' parameters, innermost first: the first that matches claims */
    uint32_t unit_count;
    bool (*match)(tsr_str glob, tsr_str name);
    bool (*want)(void *ctx, tsr_str fqn); /* NULL: every tensor is a parameter */
    void *want_ctx;
    bool use_orig_params; /* parameters begin at multiples of 16 bytes */
    uint64_t ranks;       /* ≥ 1 */
} tsr_fsdp1;

/* unit_count + 1 units: one for each GLOB, then the root unit with what none claimed. All live in `arena`. TSR_E_USAGE when
 * a unit's dtypes differ (FSDP1 flattens one dtype only) or are not byte-aligned; TSR_E_LIMIT on overflow. */
tsr_status tsr_target_fsdp1(const tsr_catalog *catalog, const tsr_fsdp1 *options, tsr_arena *arena,
                            const tsr_fsdp1_unit **units, tsr_error *err);

/* The read items of a plan one by one, the bytes that they touch, and who writes what.
 *
 * Example:
 *
 *     tsr_plan_cursor *cursor;
 *     const tsr_read_item *item;
 *     status = tsr_plan_cursor_new(plan, 0, 1, &cursor, &err);
 *     if (status == TSR_OK) status = tsr_plan_cursor_next(cursor, &item, &err);
 *     if (status == TSR_OK && item) printf("rank 0 begins with tensor %llu\n", (unsigned long long)item->tensor);
 *     tsr_plan_cursor_free(cursor); */

/* The units whose flat ranges the ranks hold (tsr_plan_options.flat_units); NULL and 0: no flat ranges. */
const tsr_fsdp1_unit *tsr_plan_flat_units(const tsr_plan *plan, uint64_t *count);

/* The items of ranks [first, first + ranks), rank after rank, each rank's as tsr_plan_rank has them; holds one rank's items
 * at a time. *item is NULL at the end, and valid until the next call. */
typedef struct tsr_plan_cursor tsr_plan_cursor;
tsr_status tsr_plan_cursor_new(const tsr_plan *plan, uint64_t first, uint64_t ranks, tsr_plan_cursor **out, tsr_error *err);
tsr_status tsr_plan_cursor_next(tsr_plan_cursor *cursor, const tsr_read_item **item, tsr_error *err);
void tsr_plan_cursor_free(tsr_plan_cursor *cursor); /* accepts NULL */

/* The bytes of a file that an item touches: from its first to its last where the chunk is contiguous raw bytes, the whole
 * chunk (for DCP: the item's blob) where that is only known after a look inside. */
typedef struct tsr_byte_range {
    uint32_t file;
    uint64_t byte_offset;
    uint64_t byte_length;
} tsr_byte_range;
tsr_byte_range tsr_read_item_bytes(const tsr_plan *plan, const tsr_read_item *item);

/* Who writes what: every distinct shard once, by the least loaded of the ranks that hold it, ties to the lowest; load is
 * what a rank holds alone plus the shared shards it was given before. In order of (tensor, lowest holder). Shards without
 * elements are left out; a tensor without elements is one box, the whole of it, of the lowest rank that holds it. `shard` is
 * valid during the call. A non-zero status of `each` stops and is returned. */
typedef tsr_status tsr_each_write(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err);
tsr_status tsr_plan_each_write(const tsr_plan *plan, tsr_each_write *each, void *ctx, tsr_error *err);

/* The ranks of the target, at least 1. */
uint64_t tsr_plan_ranks(const tsr_plan *plan);

/* Bytes of tensors, by rank of the target. */
typedef struct tsr_rank_load {
    uint64_t held;     /* of all its shards */
    uint64_t read;     /* from storage, when every distinct shard is read once, by its owner as above */
    uint64_t received; /* from other ranks then: held - read */
} tsr_rank_load;

typedef struct tsr_file_load {
    uint64_t reads; /* items, when every distinct shard is read once */
    uint64_t bytes; /* that they need */
} tsr_file_load;

typedef struct tsr_plan_totals {
    uint64_t ranks;
    const tsr_rank_load *per_rank;
    uint32_t file_count;
    const tsr_file_load *per_file; /* by number in the store; files above have no reads */
    uint64_t classes;              /* distinct (shape, chunk boxes, placements) */
    uint64_t reads;                /* of all files */
    uint64_t bytes;                /* of all reads, each distinct shard once */
    uint64_t span_bytes;           /* from the first to the last byte of every read: what one request an item would fetch */
    uint64_t largest_read;         /* bytes of one item */
    uint64_t held_max;
    double imbalance;     /* largest share held by a rank over the mean; 1 is even, 0 when nothing is held */
    double amplification; /* span_bytes / bytes; 1 when nothing is read */
} tsr_plan_totals;
/* O(classes × ranks + shared shards × their holders); everything lives in `arena`. */
tsr_status tsr_plan_count_totals(const tsr_plan *plan, tsr_arena *arena, tsr_plan_totals *out, tsr_error *err);

/* All items of one rank, sorted by (file, byte_offset of the chunk, tensor, storage offsets). With a storage they are sorted by
 * server first, and each rank begins at another server. They and their arrays live in `arena`. O(items × log items). */
tsr_status tsr_plan_rank(const tsr_plan *plan, uint64_t dest_rank, tsr_arena *arena, const tsr_read_item **items,
                         uint64_t *count, tsr_error *err);

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
