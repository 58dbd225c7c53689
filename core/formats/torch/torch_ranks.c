/* A directory with one torch.save file per rank as one checkpoint: the boxes of DTensors and ShardedTensors come together.
 * Plain tensors count only where they are equal on all ranks (rank_entries.h): then all copies but the first are kept as
 * replicas for a full check to compare. Of objects the first rank's stays. A rank's number comes from its DTensors or ShardedTensors, else from its
 * file's name. */
#include <inttypes.h>

#include "formats/common/file_names.h"
#include "formats/common/metadata.h"
#include "formats/common/rank_entries.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_union.h"
#include "tessera/sys/try.h"

enum { MISSING_SHOWN = 16 };

typedef struct ranks {
    tsr_checkpoint *checkpoint;
    tsr_torch_union entries;
    tsr_rank_entries holders;
    tsr_vec runs;
    tsr_torch_file *files; /* in order of checkpoint->files */
    uint32_t world;
    tsr_error *err;
} ranks;

static tsr_str name_of(const ranks *r, uint32_t i)
{
    return r->checkpoint->store->files[r->checkpoint->files[i]].name;
}

static tsr_place in_file(const ranks *r, uint32_t i, tsr_str fqn)
{
    return (tsr_place){name_of(r, i), TSR_NO_POSITION, fqn};
}

/* The number in a file's name at the position where the names differ. recognize.c has made sure that each name has one
 * there. */
static tsr_torch_rank number_in_name(const ranks *r, uint32_t i)
{
    if (r->checkpoint->file_ranks) return (tsr_torch_rank){.hinted = true, .hint = r->checkpoint->file_ranks[i]};
    tsr_str name = name_of(r, i), other = name_of(r, i ? i - 1 : 1);
    size_t at = 0;
    uint64_t number = 0;
    while (at < name.size && at < other.size && name.data[at] == other.data[at]) at++;
    while (at && tsr_is_digit(name.data[at - 1])) at--;
    for (; at < name.size && tsr_is_digit(name.data[at]) && number <= INT32_MAX; at++)
        number = number * 10 + (uint64_t)(name.data[at] - '0');
    return (tsr_torch_rank){.hinted = number <= INT32_MAX, .hint = (uint32_t)number};
}

static tsr_status add_file(ranks *r, uint32_t i, uint32_t storage_base)
{
    tsr_torch_flat flat;
    tsr_catalog *catalog = &r->checkpoint->catalog;
    tsr_checkpoint *c = r->checkpoint;
    TSR_TRY(tsr_torch_flatten(r->files[i].root, c->host, &c->expansion, c->arena, &flat, r->err));
    if (i == 0) {
        catalog->mappings = flat.mappings;
        catalog->mapping_count = flat.mapping_count;
    }
    for (uint64_t k = 0; k < flat.entry_count; k++) {
        uint32_t number;
        tsr_joined joined;
        TSR_TRY(tsr_torch_union_add(&r->entries, &flat.entries[k], storage_base, &number, &joined, r->err));
        TSR_TRY(tsr_rank_entries_add(&r->holders, number, i, &flat.entries[k], r->err));
    }
    return TSR_OK;
}

/* The rank that wrote a file: as its tensors state it, otherwise the number in its name. */
static bool rank_of(const tsr_torch_rank *rank, uint32_t *out)
{
    *out = rank->known ? rank->rank : rank->hint;
    return rank->known || rank->hinted;
}

/* Reports ranks of the meshes that have no file, and ranks that have two. */
static tsr_status check_world(ranks *r)
{
    uint32_t world = r->world, missing = 0, count = r->checkpoint->file_count;
    if (world == 0) return TSR_OK;
    uint32_t *holder = tsr_arena_array(r->checkpoint->arena, world, sizeof *holder, r->err);
    if (!holder) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rank;
        if (!rank_of(&r->files[i].rank, &rank) || rank >= world) continue;
        if (holder[rank])
            TSR_TRY(tsr_finding_add(r->checkpoint->findings, "torch/rank-twice", in_file(r, i, (tsr_str){NULL, 0}), r->err,
                                    "rank %u wrote '%.*s' and '%.*s'", rank, TSR_STR_ARG(name_of(r, holder[rank] - 1)),
                                    TSR_STR_ARG(name_of(r, i))));
        holder[rank] = i + 1;
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        if (holder[rank] || ++missing > MISSING_SHOWN) continue;
        TSR_TRY(tsr_finding_add(r->checkpoint->findings, "torch/rank-missing", TSR_NOWHERE, r->err,
                                "the file of rank %u of %u is missing", rank, world));
    }
    return TSR_OK;
}

/* A damaged mesh may claim any number of ranks. Far more ranks than files get a single finding. */
static tsr_status bound_world(ranks *r)
{
    uint32_t bound = r->checkpoint->file_count * 1024u + 65536u;
    if (r->world <= bound) return TSR_OK;
    tsr_status status =
        tsr_finding_add(r->checkpoint->findings, "torch/rank-missing", TSR_NOWHERE, r->err,
                        "the files were written by %u ranks, but there are %u files", r->world, r->checkpoint->file_count);
    r->world = 0;
    return status;
}

static tsr_status join_files(ranks *r)
{
    uint32_t storage_base = 0;
    for (uint32_t i = 0; i < r->checkpoint->file_count; i++) {
        TSR_TRY(tsr_torch_file_open(r->checkpoint, r->checkpoint->files[i], number_in_name(r, i), &r->files[i], &r->runs,
                                    r->err));
        if (r->files[i].rank.world > r->world) r->world = r->files[i].rank.world;
        if (r->files[i].rank.known) r->holders.sharded = true;
        tsr_status status = add_file(r, i, storage_base);
        if (status != TSR_OK) {
            tsr_error_context(r->err, "%.*s", TSR_STR_ARG(name_of(r, i)));
            return status;
        }
        storage_base += r->files[i].storage_count;
    }
    TSR_TRY(bound_world(r));
    TSR_TRY(check_world(r));
    TSR_TRY(tsr_torch_union_keep(&r->entries, storage_base, r->err));
    TSR_TRY(tsr_torch_keep_runs(r->checkpoint, &r->runs, r->err));
    TSR_TRY(tsr_rank_entries_settle(&r->holders, r->err));
    return tsr_torch_note_storages(r->checkpoint, r->err);
}

static tsr_status name_files(ranks *r)
{
    const uint32_t count = r->checkpoint->file_count;
    tsr_str *names = tsr_arena_array(r->checkpoint->arena, count, sizeof *names, r->err);
    if (!names) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) names[i] = name_of(r, i);
    r->holders = (tsr_rank_entries){.checkpoint = r->checkpoint, .names = names, .ranks = count, .decide = tsr_torch_decide};
    return TSR_OK;
}

static tsr_status open_ranks(tsr_checkpoint *checkpoint, tsr_error *err)
{
    ranks r = {.checkpoint = checkpoint, .err = err, .runs = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_torch_run))};
    r.files = tsr_arena_array(checkpoint->arena, checkpoint->file_count, sizeof *r.files, err);
    if (!r.files) return TSR_E_NOMEM;
    tsr_status status = name_files(&r);
    if (status == TSR_OK) status = tsr_torch_union_open(&r.entries, checkpoint, err);
    if (status == TSR_OK) status = join_files(&r);
    tsr_torch_union_close(&r.entries);
    tsr_rank_entries_close(&r.holders);
    tsr_vec_free(&r.runs);
    return status;
}

const tsr_reader tsr_reader_torch_ranks = {.format = TSR_FORMAT_TORCH_RANKS,
                                           .is_rare = true,
                                           .open = open_ranks,
                                           .extents = tsr_torch_extents,
                                           .crc = tsr_torch_crc};

/* ---- index ---- */

/* pytorch_model.bin.index.json and its shards as one catalog: entries in the order of the index, then what the files have
 * beside it. A tensor that cannot be found is listed as opaque, "missing", so that no later step loses it silently. */

typedef struct shard {
    tsr_entry *entries;
    uint64_t count;
    tsr_name_index *index;
    bool *mapped; /* an entry that the index sends to this file */
    uint32_t storage_base;
    uint32_t file;
} shard;

typedef struct joining {
    tsr_checkpoint *checkpoint;
    tsr_weight_map map;
    tsr_torch_union entries;
    tsr_vec runs;
    shard *shards;      /* one each of map.files */
    uint32_t *shard_of; /* store file → its number in `shards` */
    uint64_t bytes;
    bool incomplete;
    tsr_error *err;
} joining;

static tsr_place in_shard(const joining *j, const shard *s, tsr_str fqn)
{
    return (tsr_place){j->checkpoint->store->files[s->file].name, TSR_NO_POSITION, fqn};
}

static tsr_status open_shard(joining *j, uint32_t number, uint32_t *storage_base)
{
    tsr_torch_file file;
    tsr_torch_flat flat;
    tsr_checkpoint *checkpoint = j->checkpoint;
    shard *s = &j->shards[number];
    s->file = j->map.files[number];
    s->storage_base = *storage_base;
    j->shard_of[s->file] = number;
    TSR_TRY(tsr_torch_file_open(checkpoint, s->file, (tsr_torch_rank){0}, &file, &j->runs, j->err));
    tsr_status status =
        tsr_torch_flatten(file.root, checkpoint->host, &checkpoint->expansion, checkpoint->arena, &flat, j->err);
    if (status != TSR_OK) {
        tsr_error_context(j->err, "%.*s", TSR_STR_ARG(checkpoint->store->files[s->file].name));
        return status;
    }
    if (number == 0) {
        checkpoint->catalog.mappings = flat.mappings;
        checkpoint->catalog.mapping_count = flat.mapping_count;
    }
    s->entries = flat.entries;
    s->count = flat.entry_count;
    *storage_base += file.storage_count;
    s->mapped = tsr_arena_array(checkpoint->arena, (size_t)s->count, sizeof *s->mapped, j->err);
    if (!s->mapped) return TSR_E_NOMEM;
    return tsr_name_index_new(checkpoint->host->allocator, TSR_NAMED_ITEMS(s->entries, s->count), &s->index, NULL, j->err);
}

static tsr_status add_missing(joining *j, const tsr_weight *weight)
{
    tsr_joined joined;
    tsr_entry entry = {.fqn = weight->key, .kind = TSR_ENTRY_OPAQUE, .type = TSR_STR("missing")};
    j->incomplete = true;
    TSR_TRY(tsr_torch_union_add(&j->entries, &entry, 0, NULL, &joined, j->err));
    if (weight->file == TSR_NO_FILE) return TSR_OK;
    return tsr_finding_add(j->checkpoint->findings, "index/missing-key",
                           in_shard(j, &j->shards[j->shard_of[weight->file]], weight->key), j->err,
                           "'%.*s' is not in '%.*s', where the index places it", TSR_STR_ARG(weight->key),
                           TSR_STR_ARG(weight->file_name));
}

static tsr_status add_weight(joining *j, const tsr_weight *weight)
{
    shard *s = weight->file == TSR_NO_FILE ? NULL : &j->shards[j->shard_of[weight->file]];
    uint64_t at = s ? tsr_name_index_find(s->index, weight->key) : TSR_NO_NAME, bytes;
    if (at == TSR_NO_NAME) return add_missing(j, weight);
    tsr_joined joined;
    s->mapped[at] = true;
    if (tsr_entry_bytes(&s->entries[at], &bytes)) j->bytes += bytes;
    return tsr_torch_union_add(&j->entries, &s->entries[at], s->storage_base, NULL, &joined, j->err);
}

/* An entry that its file has and that the index does not send to this file. */
static tsr_status add_unmapped(joining *j, const shard *s, const tsr_entry *entry)
{
    tsr_joined joined;
    uint32_t number;
    TSR_TRY(tsr_torch_union_add(&j->entries, entry, s->storage_base, &number, &joined, j->err));
    tsr_findings *findings = j->checkpoint->findings;
    if (joined == TSR_JOINED_NEW)
        return tsr_finding_add(findings, "index/extra-key", in_shard(j, s, entry->fqn), j->err, "'%.*s' is not in the index",
                               TSR_STR_ARG(entry->fqn));
    bool same = joined == TSR_JOINED_CHUNKS;
    return tsr_finding_add_at(findings, (tsr_rated_rule){"index/key-in-two-files", same ? TSR_WARNING : TSR_ERROR},
                              in_shard(j, s, entry->fqn), j->err, "'%.*s' is not only where the index places it%s",
                              TSR_STR_ARG(entry->fqn), same ? "" : ", and of a different kind, dtype or shape");
}

static tsr_status join_shards(joining *j)
{
    uint32_t storage_base = 0;
    for (uint32_t i = 0; i < j->map.file_count; i++) TSR_TRY(open_shard(j, i, &storage_base));
    for (uint64_t i = 0; i < j->map.count; i++) TSR_TRY(add_weight(j, &j->map.weights[i]));
    for (uint32_t i = 0; i < j->map.file_count; i++)
        for (uint64_t k = 0; k < j->shards[i].count; k++)
            if (!j->shards[i].mapped[k]) TSR_TRY(add_unmapped(j, &j->shards[i], &j->shards[i].entries[k]));
    TSR_TRY(tsr_torch_union_keep(&j->entries, storage_base, j->err));
    TSR_TRY(tsr_torch_keep_runs(j->checkpoint, &j->runs, j->err));
    TSR_TRY(tsr_torch_note_storages(j->checkpoint, j->err));
    if (!j->incomplete) TSR_TRY(tsr_weight_map_check_total(j->checkpoint, &j->map, j->bytes, j->err));
    return tsr_weight_map_check_stray(j->checkpoint, &j->map, TSR_STR(".bin"), j->err);
}

static tsr_status open_index(tsr_checkpoint *checkpoint, tsr_error *err)
{
    joining j = {
        .checkpoint = checkpoint, .err = err, .runs = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_torch_run))};
    TSR_TRY(tsr_weight_map_read(checkpoint, &j.map, err));
    j.shards = tsr_arena_array(checkpoint->arena, j.map.file_count, sizeof *j.shards, err);
    j.shard_of = tsr_arena_array(checkpoint->arena, checkpoint->store->file_count, sizeof *j.shard_of, err);
    if (!j.shards || !j.shard_of) return TSR_E_NOMEM;
    tsr_status status = tsr_torch_union_open(&j.entries, checkpoint, err);
    if (status == TSR_OK) status = join_shards(&j);
    for (uint32_t i = 0; i < j.map.file_count; i++) tsr_name_index_free(j.shards[i].index);
    tsr_torch_union_close(&j.entries);
    tsr_vec_free(&j.runs);
    return status;
}

const tsr_reader tsr_reader_torch_index = {
    .format = TSR_FORMAT_TORCH_INDEX, .open = open_index, .extents = tsr_torch_extents, .crc = tsr_torch_crc};
