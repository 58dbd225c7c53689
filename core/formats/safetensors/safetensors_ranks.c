/* Reads one or several safetensors files per rank without an index, as in vLLM's sharded state:
 *
 *   model-rank-R-part-P.safetensors
 *
 * Every rank has the same names. Nothing says how the ranks' tensors form the whole tensors, so those that differ are listed
 * per rank (rank_entries.h). There are no checksums, so the bytes are compared. */
#include "formats/common/incomplete.h"
#include "formats/common/rank_entries.h"
#include "formats/safetensors/safetensors_reader.h"
#include "formats/torch/torch_union.h"
#include "tessera/sys/try.h"

typedef struct joining {
    tsr_checkpoint *checkpoint;
    tsr_safetensors *opened; /* one per file */
    tsr_torch_union entries;
    tsr_rank_entries holders;
    tsr_map *seen; /* the names of the current rank so far */
    const uint64_t *zeros;
    tsr_error *err;
} joining;

static tsr_str name_of(const joining *j, uint32_t i)
{
    return j->checkpoint->store->files[j->checkpoint->files[i]].name;
}

static tsr_status add_tensor(joining *j, uint32_t i, uint32_t rank, const tsr_safetensors_tensor *t)
{
    tsr_entry *entry = TSR_ARENA_NEW(j->checkpoint->arena, tsr_entry, j->err);
    tsr_chunk *chunk = TSR_ARENA_NEW(j->checkpoint->arena, tsr_chunk, j->err);
    uint32_t number, *first;
    tsr_joined joined;
    bool is_new;
    if (!entry || !chunk) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(j->seen, t->name, i, &first, &is_new, j->err));
    TSR_FAIL_IF(!is_new, j->err, TSR_E_FORMAT, "'%.*s' is in two files of one rank: '%.*s' and '%.*s'", TSR_STR_ARG(t->name),
                TSR_STR_ARG(name_of(j, *first)), TSR_STR_ARG(name_of(j, i)));
    *chunk = tsr_safetensors_chunk(&j->opened[i], t, j->zeros);
    *entry = (tsr_entry){.fqn = t->name,
                         .kind = TSR_ENTRY_TENSOR,
                         .dtype = t->dtype,
                         .ndim = t->ndim,
                         .shape = t->shape,
                         .chunks = chunk,
                         .chunk_count = 1};
    TSR_TRY(tsr_torch_union_add(&j->entries, entry, 0, &number, &joined, j->err));
    return tsr_rank_entries_add(&j->holders, number, rank, entry, j->err);
}

/* The files are sorted by rank, so a new rank begins where the number changes. */
static tsr_status add_files(joining *j, tsr_str *names)
{
    const uint32_t count = j->checkpoint->file_count;
    uint64_t last = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t rank, part;
        if (j->checkpoint->file_ranks) rank = j->checkpoint->file_ranks[i];
        else tsr_rank_part_of(name_of(j, i), &rank, &part);
        if (rank != last) {
            names[j->holders.ranks++] = name_of(j, i);
            tsr_map_free(j->seen);
            j->seen = tsr_map_new(j->checkpoint->host->allocator, 0, j->err);
            if (!j->seen) return TSR_E_NOMEM;
        }
        last = rank;
        for (uint64_t t = 0; t < j->opened[i].count; t++)
            TSR_TRY(add_tensor(j, i, j->holders.ranks - 1, &j->opened[i].tensors[t]));
    }
    return TSR_OK;
}

static tsr_status join(joining *j)
{
    tsr_checkpoint *checkpoint = j->checkpoint;
    tsr_str *names = tsr_arena_array(checkpoint->arena, checkpoint->file_count, sizeof *names, j->err);
    if (!names) return TSR_E_NOMEM;
    j->holders.names = names;
    TSR_TRY(tsr_safetensors_zeros(checkpoint, j->opened, checkpoint->file_count, &j->zeros, j->err));
    TSR_TRY(tsr_torch_union_open(&j->entries, checkpoint, j->err));
    TSR_TRY(add_files(j, names));
    TSR_TRY(tsr_torch_union_keep(&j->entries, 0, j->err));
    return tsr_rank_entries_settle(&j->holders, j->err);
}

static tsr_status open_ranks(tsr_checkpoint *checkpoint, tsr_error *err)
{
    joining j = {.checkpoint = checkpoint, .holders = {.checkpoint = checkpoint}, .err = err};
    const tsr_allocator *allocator = checkpoint->host->allocator;
    j.entries = (tsr_torch_union){.entries = tsr_vec_of(allocator, sizeof(tsr_entry)), .chunks = tsr_vec_of(allocator, 1)};
    TSR_TRY(tsr_safetensors_open_all(checkpoint, checkpoint->files, checkpoint->file_count, &j.opened, err));
    tsr_status status = join(&j);
    for (uint32_t f = 0; f < checkpoint->file_count; f++) j.opened[f].second_count = 0; /* a rank's file has none */
    if (status == TSR_OK) status = tsr_safetensors_keep_metadata(checkpoint, j.opened, checkpoint->file_count, err);
    tsr_map_free(j.seen);
    tsr_torch_union_close(&j.entries);
    tsr_rank_entries_close(&j.holders);
    tsr_safetensors_close_all(checkpoint, j.opened, checkpoint->file_count);
    return status;
}

const tsr_reader tsr_reader_safetensors_ranks = {
    .format = TSR_FORMAT_SHARDS, .is_rare = true, .open = open_ranks, .extents = tsr_safetensors_extents};
