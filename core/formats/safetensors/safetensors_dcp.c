/* Reads sharded safetensors files as DCP's HuggingFaceStorageWriter writes them: every rank has its own files, whose tensors
 * are shards.
 *
 *   shard-00002-model-00001-of-00002.safetensors
 *     __metadata__: {"DCP_SHARDING_INFO": "{\"emb.weight\":{\"saved_offsets\":[4,0]},…}", "DCP_VERSION": "1.0"}
 *
 * The shape in the header is the shard's. The whole tensor's shape is not stored and is inferred as max(offset + size), as
 * in torch.distributed.checkpoint. saved_offsets count PyTorch's elements, which are pairs for float4. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/cursor.h"
#include "codec/json.h"
#include "formats/safetensors/safetensors_reader.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

typedef struct placed {
    uint32_t entry;
    uint32_t order; /* in which the shards were found */
    uint32_t ndim;
    tsr_chunk chunk;
} placed;

typedef struct builder {
    tsr_checkpoint *checkpoint;
    tsr_map *entry_of;
    tsr_vec entries; /* of tsr_entry; the shape grows with each shard that is added */
    tsr_vec shards;  /* of placed */
    tsr_error *err;
} builder;

static tsr_status read_offsets(builder *b, const cJSON *info, const tsr_safetensors_tensor *t, uint64_t *offsets)
{
    const cJSON *list;
    uint32_t d = 0;
    TSR_TRY(tsr_json_get(info, "saved_offsets", TSR_JSON_ARRAY, "DCP_SHARDING_INFO", &list, b->err));
    for (const cJSON *item = list->child; item; item = item->next, d++) {
        if (d < t->ndim) TSR_TRY(tsr_json_to_u64(item, "DCP_SHARDING_INFO saved_offsets", &offsets[d], b->err));
    }
    TSR_FAIL_AT(d != t->ndim, b->err, TSR_E_FORMAT, t->position,
                "safetensors: '%.*s' has %u dimensions but %u saved_offsets", TSR_STR_ARG(t->name), (unsigned)t->ndim,
                (unsigned)d);
    if (t->ndim && t->dtype == TSR_FLOAT4_E2M1FN) offsets[t->ndim - 1] *= 2; /* below 2^53 */
    return TSR_OK;
}

static tsr_status find_entry(builder *b, const tsr_safetensors_tensor *t, uint32_t *number)
{
    uint32_t *found;
    bool inserted;
    TSR_TRY(tsr_map_put(b->entry_of, t->name, (uint32_t)b->entries.count, &found, &inserted, b->err));
    *number = *found;
    if (!inserted) return TSR_OK;
    uint64_t *shape = tsr_arena_array(b->checkpoint->arena, t->ndim, sizeof *shape, b->err);
    tsr_entry *entry = shape ? tsr_vec_push(&b->entries, b->err) : NULL;
    if (!entry) return TSR_E_NOMEM;
    *entry = (tsr_entry){.fqn = t->name, .kind = TSR_ENTRY_TENSOR, .dtype = t->dtype, .ndim = t->ndim, .shape = shape};
    return TSR_OK;
}

static tsr_status add_shard(builder *b, const tsr_safetensors *opened, const tsr_safetensors_tensor *t, const cJSON *info)
{
    uint32_t number;
    TSR_TRY(find_entry(b, t, &number));
    tsr_entry *entry = (tsr_entry *)b->entries.items + number;
    TSR_FAIL_AT(entry->dtype != t->dtype || entry->ndim != t->ndim, b->err, TSR_E_FORMAT, t->position,
                "safetensors: this shard of '%.*s' is %s with %u dimensions, but an earlier one is %s with %u",
                TSR_STR_ARG(t->name), tsr_dtype_describe(t->dtype)->name, (unsigned)t->ndim,
                tsr_dtype_describe(entry->dtype)->name, (unsigned)entry->ndim);
    uint64_t *offsets = tsr_arena_array(b->checkpoint->arena, t->ndim, sizeof *offsets, b->err);
    placed *shard = offsets ? tsr_vec_push(&b->shards, b->err) : NULL;
    if (!shard) return TSR_E_NOMEM;
    TSR_TRY(read_offsets(b, info, t, offsets));
    for (uint32_t d = 0; d < t->ndim; d++) {
        uint64_t end, *size = (uint64_t *)&entry->shape[d];
        TSR_FAIL_AT(!tsr_add_u64(offsets[d], t->shape[d], &end), b->err, TSR_E_FORMAT, t->position,
                    "safetensors: a shard of '%.*s' ends beyond 64 bits", TSR_STR_ARG(t->name));
        if (end > *size) *size = end;
    }
    *shard = (placed){number, (uint32_t)b->shards.count, t->ndim, tsr_safetensors_chunk(opened, t, offsets)};
    return TSR_OK;
}

/* Reads the sharding info, which must list every tensor of the file. */
static tsr_status add_file(builder *b, const tsr_safetensors *opened)
{
    tsr_str text = tsr_safetensors_metadata(opened, TSR_STR(TSR_SAFETENSORS_SHARDING));
    cJSON *info;
    uint64_t found = 0;
    TSR_FAIL_IF(!text.data, b->err, TSR_E_FORMAT, "safetensors: no DCP_SHARDING_INFO in the file's metadata");
    TSR_TRY(tsr_json_parse(text, b->checkpoint->host, &info, b->err));
    tsr_status status = tsr_json_expect(info, TSR_JSON_OBJECT, "DCP_SHARDING_INFO", b->err);
    for (const cJSON *member = info->child; member && status == TSR_OK; member = member->next) {
        const tsr_safetensors_tensor *t = tsr_safetensors_find(opened, tsr_json_key_of(member));
        found += t != NULL;
        status = t ? add_shard(b, opened, t, member)
                   : tsr_fail(b->err, TSR_E_FORMAT, "safetensors: DCP_SHARDING_INFO names '%s', which is not in the file",
                              member->string);
    }
    cJSON_Delete(info);
    if (status == TSR_OK && found != opened->count)
        status =
            tsr_fail(b->err, TSR_E_FORMAT, "safetensors: DCP_SHARDING_INFO names only %" PRIu64 " of %" PRIu64 " tensors",
                     found, opened->count);
    return status;
}

/* Sorts by entry, then by box, and equal boxes in the order in which they were found. */
static int compare_placed(const void *left, const void *right)
{
    const placed *a = left, *b = right;
    if (a->entry != b->entry) return a->entry < b->entry ? -1 : 1;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (a->chunk.offsets[d] != b->chunk.offsets[d]) return a->chunk.offsets[d] < b->chunk.offsets[d] ? -1 : 1;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (a->chunk.sizes[d] != b->chunk.sizes[d]) return a->chunk.sizes[d] < b->chunk.sizes[d] ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

static bool same_box(const placed *a, const placed *b)
{
    size_t bytes = a->ndim * sizeof(uint64_t);
    return a->entry == b->entry && (bytes == 0 || (memcmp(a->chunk.offsets, b->chunk.offsets, bytes) == 0 &&
                                                   memcmp(a->chunk.sizes, b->chunk.sizes, bytes) == 0));
}

/* Distributes the sorted shards: each entry's distinct boxes become a contiguous range of `chunks`, and further copies a
 * range of `replicas`. */
static void distribute(tsr_entry *entries, const placed *shards, size_t count, tsr_chunk *chunks, tsr_chunk *replicas)
{
    for (size_t i = 0; i < count; i++) {
        tsr_entry *entry = &entries[shards[i].entry];
        bool first = i == 0 || shards[i].entry != shards[i - 1].entry;
        if (first) {
            entry->chunks = chunks;
            entry->replicas = replicas;
        }
        if (!first && same_box(&shards[i], &shards[i - 1])) {
            *replicas++ = shards[i].chunk;
            entry->replica_count++;
        } else {
            *chunks++ = shards[i].chunk;
            entry->chunk_count++;
        }
    }
}

static tsr_status keep_catalog(builder *b)
{
    tsr_arena *arena = b->checkpoint->arena;
    size_t count = b->shards.count;
    tsr_entry *entries = tsr_arena_array(arena, b->entries.count, sizeof *entries, b->err);
    tsr_chunk *chunks = entries ? tsr_arena_array(arena, count, sizeof *chunks, b->err) : NULL;
    tsr_chunk *replicas = chunks ? tsr_arena_array(arena, count, sizeof *replicas, b->err) : NULL;
    if (!replicas) return TSR_E_NOMEM;
    if (count) qsort(b->shards.items, count, sizeof(placed), compare_placed);
    if (b->entries.count) memcpy(entries, b->entries.items, b->entries.count * sizeof *entries);
    distribute(entries, b->shards.items, count, chunks, replicas);
    b->checkpoint->catalog.entries = entries;
    b->checkpoint->catalog.entry_count = b->entries.count;
    return TSR_OK;
}

/* The N of "shard-N-…"; 0 for any other name. */
static uint64_t shard_number(tsr_str name)
{
    tsr_str prefix = TSR_STR("shard-");
    uint64_t number = 0;
    if (!tsr_str_starts(name, prefix)) return 0;
    for (size_t i = prefix.size; i < name.size && tsr_is_digit(name.data[i]) && number < UINT32_MAX; i++)
        number = number * 10 + (uint64_t)(name.data[i] - '0');
    return number;
}

/* Reports gaps in the ranks, which are numbered from 1. The files are sorted by these numbers. */
static tsr_status check_sequence(tsr_checkpoint *checkpoint, tsr_error *err)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < checkpoint->file_count; i++) {
        tsr_str name = checkpoint->store->files[checkpoint->files[i]].name;
        uint64_t number = shard_number(name);
        if (number > last + 1)
            TSR_TRY(tsr_finding_add(checkpoint->findings, "dcp-safetensors/shard-gap",
                                    (tsr_place){name, TSR_NO_POSITION, {NULL, 0}}, err,
                                    "no file of shard %" PRIu64 " precedes '%.*s'", last + 1, TSR_STR_ARG(name)));
        last = number;
    }
    return tsr_finding_add(checkpoint->findings, "dcp-safetensors/no-global-shape", TSR_NOWHERE, err,
                           "the shapes are inferred from the shards found; a lost trailing shard would go unnoticed");
}

static tsr_status build(builder *b, const tsr_safetensors *opened)
{
    tsr_checkpoint *checkpoint = b->checkpoint;
    for (uint32_t i = 0; i < checkpoint->file_count; i++) {
        tsr_status status = add_file(b, &opened[i]);
        if (status == TSR_OK) continue;
        tsr_error_context(b->err, "%.*s", TSR_STR_ARG(checkpoint->store->files[opened[i].file].name));
        return status;
    }
    TSR_TRY(keep_catalog(b));
    return check_sequence(checkpoint, b->err);
}

static tsr_status open_sharded(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_safetensors *opened;
    builder b = {.checkpoint = checkpoint, .err = err};
    TSR_TRY(tsr_safetensors_open_all(checkpoint, checkpoint->files, checkpoint->file_count, &opened, err));
    b.entries = tsr_vec_of(allocator, sizeof(tsr_entry));
    b.shards = tsr_vec_of(allocator, sizeof(placed));
    b.entry_of = tsr_map_new(allocator, 0, err);
    tsr_status status = b.entry_of ? build(&b, opened) : TSR_E_NOMEM;
    for (uint32_t f = 0; f < checkpoint->file_count; f++) opened[f].second_count = 0; /* a sharded save has none */
    if (status == TSR_OK) status = tsr_safetensors_keep_metadata(checkpoint, opened, checkpoint->file_count, err);
    tsr_map_free(b.entry_of);
    tsr_vec_free(&b.entries);
    tsr_vec_free(&b.shards);
    tsr_safetensors_close_all(checkpoint, opened, checkpoint->file_count);
    return status;
}

const tsr_reader tsr_reader_dcp_safetensors = {
    .format = TSR_FORMAT_DCP_SAFETENSORS, .is_rare = true, .open = open_sharded, .extents = tsr_safetensors_extents};
