/* Reads several safetensors files as one catalog: the shards that an index names, or one file per rank. */
#include "formats/common/incomplete.h"
#include "formats/common/metadata.h"
#include "formats/common/rank_entries.h"
#include "formats/safetensors/safetensors_reader.h"
#include "formats/torch/torch_union.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

/* ---- index ---- */

/* Reads an index file and its safetensors files as one catalog.
 *
 * The entries have the order of the index, followed by the tensors that only the files have. Copies of a tensor in other
 * files become replicas, which a full check compares. A tensor that cannot be found is listed as opaque with the type
 * "missing", so that no later step loses it silently. Second names of tensors follow, unless the index lists them. */

/* A copy of a tensor in a file other than the one in the index. */
typedef struct copy {
    uint32_t entry;
    tsr_chunk chunk;
} copy;

/* A second name that a file states. */
typedef struct second_name {
    uint32_t opened;
    size_t second;
} second_name;

typedef struct builder {
    tsr_checkpoint *checkpoint;
    tsr_weight_map map;
    tsr_safetensors *opened; /* one for each of map.files */
    uint32_t *opened_of;     /* store file → its number in `opened` */
    const uint64_t *zeros;
    tsr_map *entry_of;  /* key → entry */
    tsr_vec entries;    /* of tsr_entry */
    tsr_vec chunks;     /* of tsr_chunk: one per entry, unused if the tensor is missing */
    tsr_vec copies;     /* of copy */
    tsr_vec seconds;    /* of second_name */
    tsr_map *second_of; /* second name → the first of `seconds` that states it */
    uint32_t storages;  /* storage ids in use */
    uint64_t bytes;     /* of the tensors in the weight map */
    bool incomplete;
    tsr_error *err;
} builder;

static tsr_place at_tensor(const builder *b, uint32_t file, uint64_t position, tsr_str fqn)
{
    return (tsr_place){b->checkpoint->store->files[file].name, position, fqn};
}

static tsr_status add_entry(builder *b, tsr_str key)
{
    TSR_FAIL_IF(b->entries.count >= b->checkpoint->host->limits.entries || b->entries.count >= UINT32_MAX - 1, b->err,
                TSR_E_LIMIT, "index: more than %zu tensors", b->entries.count);
    tsr_entry *entry = tsr_vec_push(&b->entries, b->err);
    tsr_chunk *chunk = entry ? tsr_vec_push(&b->chunks, b->err) : NULL;
    if (!chunk) return TSR_E_NOMEM;
    entry->fqn = key;
    entry->kind = TSR_ENTRY_OPAQUE;
    entry->type = TSR_STR("missing");
    return tsr_map_put(b->entry_of, key, (uint32_t)(b->entries.count - 1), NULL, NULL, b->err);
}

static void fill_entry(builder *b, uint32_t number, const tsr_safetensors *opened, const tsr_safetensors_tensor *t)
{
    tsr_entry *entry = (tsr_entry *)b->entries.items + number;
    *entry = (tsr_entry){.fqn = entry->fqn,
                         .kind = TSR_ENTRY_TENSOR,
                         .dtype = t->dtype,
                         .ndim = t->ndim,
                         .shape = t->shape,
                         .chunk_count = 1};
    ((tsr_chunk *)b->chunks.items)[number] = tsr_safetensors_chunk(opened, t, b->zeros);
}

/* ---- second names ---- */

static tsr_str name_of_second(const builder *b, const second_name *s)
{
    const tsr_safetensors *opened = &b->opened[s->opened];
    return opened->metadata[opened->seconds[s->second].pair].key;
}

static tsr_status list_seconds(builder *b)
{
    for (uint32_t f = 0; f < b->map.file_count; f++) {
        for (size_t i = 0; i < b->opened[f].second_count; i++) {
            second_name *s = tsr_vec_push(&b->seconds, b->err);
            if (!s) return TSR_E_NOMEM;
            *s = (second_name){f, i};
            TSR_TRY(tsr_map_put(b->second_of, name_of_second(b, s), (uint32_t)b->seconds.count - 1, NULL, NULL, b->err));
        }
    }
    return TSR_OK;
}

/* Whether the file that should have a tensor states it as a second name of another one. */
static bool is_second(const builder *b, const tsr_weight *weight)
{
    const uint32_t number = tsr_map_get(b->second_of, weight->key, UINT32_MAX);
    if (number == UINT32_MAX) return false;
    return b->opened_of[weight->file] == ((const second_name *)b->seconds.items)[number].opened;
}

/* Makes an entry that has no tensor yet a second name of another one. */
static void fill_second(builder *b, uint32_t number, uint32_t first)
{
    tsr_entry *entries = b->entries.items;
    tsr_chunk *chunks = b->chunks.items;
    entries[number] = tsr_safetensors_second_entry(&entries[first], entries[number].fqn, &b->storages);
    chunks[number] = chunks[first];
}

/* Adds the second names in the index itself. */
static tsr_status add_seconds_of_index(builder *b)
{
    for (size_t i = 0; i < b->map.texts.count; i++) {
        const tsr_text_pair *pair = &b->map.texts.pairs[i];
        const uint32_t first = tsr_map_get(b->entry_of, pair->value, UINT32_MAX);
        if (first == UINT32_MAX || ((const tsr_entry *)b->entries.items)[first].kind != TSR_ENTRY_TENSOR) continue;
        if (((const tsr_entry *)b->entries.items)[first].is_second_name) continue;
        if (!tsr_safetensors_may_be_second(pair->key) || tsr_map_get(b->entry_of, pair->key, UINT32_MAX) != UINT32_MAX)
            continue;
        TSR_TRY(add_entry(b, pair->key));
        fill_second(b, (uint32_t)b->entries.count - 1, first);
    }
    return TSR_OK;
}

/* Adds the second names that are not the names of tensors in other files. All tensors have been added. */
static tsr_status index_add_seconds(builder *b)
{
    const second_name *list = b->seconds.items;
    for (size_t i = 0; i < b->seconds.count; i++) {
        tsr_safetensors *opened = &b->opened[list[i].opened];
        tsr_safetensors_second *second = &opened->seconds[list[i].second];
        const tsr_text_pair *pair = &opened->metadata[second->pair];
        const uint32_t first = tsr_map_get(b->entry_of, pair->value, UINT32_MAX);
        uint32_t number = tsr_map_get(b->entry_of, pair->key, UINT32_MAX);
        if (number == UINT32_MAX) {
            number = (uint32_t)b->entries.count;
            TSR_TRY(add_entry(b, pair->key));
        } else if (((const tsr_entry *)b->entries.items)[number].kind == TSR_ENTRY_TENSOR) {
            second->is_text = true;
            continue;
        }
        fill_second(b, number, first);
    }
    return add_seconds_of_index(b);
}

/* ---- tensors ---- */

static tsr_status add_weight(builder *b, const tsr_weight *weight)
{
    TSR_TRY(add_entry(b, weight->key));
    uint32_t number = (uint32_t)(b->entries.count - 1);
    if (weight->file == TSR_NO_FILE) {
        b->incomplete = true;
        return TSR_OK;
    }
    const tsr_safetensors *opened = &b->opened[b->opened_of[weight->file]];
    const tsr_safetensors_tensor *t = tsr_safetensors_find(opened, weight->key);
    if (t) {
        b->bytes += t->end - t->begin;
        fill_entry(b, number, opened, t);
        return TSR_OK;
    }
    if (is_second(b, weight)) return TSR_OK; /* its entry is filled by add_seconds */
    b->incomplete = true;
    return tsr_finding_add(
        b->checkpoint->findings, "index/missing-key", at_tensor(b, weight->file, TSR_NO_POSITION, weight->key), b->err,
        "'%.*s' is not in '%.*s', where the index places it", TSR_STR_ARG(weight->key), TSR_STR_ARG(weight->file_name));
}

/* Adds a tensor that the index locates in a different file. It is either a copy of that tensor or a different tensor of the
 * same name. */
static tsr_status add_copy(builder *b, uint32_t number, const tsr_safetensors *opened, const tsr_safetensors_tensor *t)
{
    const tsr_entry *entry = (const tsr_entry *)b->entries.items + number;
    const tsr_chunk *chunk = (const tsr_chunk *)b->chunks.items + number;
    bool same = entry->dtype == t->dtype && tsr_shape_equal(entry->ndim, entry->shape, t->ndim, t->shape);
    TSR_TRY(tsr_finding_add_at(
        b->checkpoint->findings, (tsr_rated_rule){"index/key-in-two-files", same ? TSR_WARNING : TSR_ERROR},
        at_tensor(b, opened->file, t->position, t->name), b->err, "'%.*s' is in '%.*s' too%s", TSR_STR_ARG(t->name),
        TSR_STR_ARG(b->checkpoint->store->files[chunk->file == TSR_NO_FILE ? opened->file : chunk->file].name),
        same ? "" : ", with a different dtype or shape"));
    if (!same) return TSR_OK;
    copy *added = tsr_vec_push(&b->copies, b->err);
    if (!added) return TSR_E_NOMEM;
    *added = (copy){number, tsr_safetensors_chunk(opened, t, b->zeros)};
    return TSR_OK;
}

/* Adds a tensor of a file to which the index does not assign it. */
static tsr_status add_unmapped(builder *b, const tsr_safetensors *opened, const tsr_safetensors_tensor *t)
{
    uint32_t number = tsr_map_get(b->entry_of, t->name, UINT32_MAX);
    if (number == UINT32_MAX) {
        TSR_TRY(tsr_finding_add(b->checkpoint->findings, "index/extra-key", at_tensor(b, opened->file, t->position, t->name),
                                b->err, "'%.*s' is not in the index", TSR_STR_ARG(t->name)));
        number = (uint32_t)b->entries.count;
        TSR_TRY(add_entry(b, t->name));
        fill_entry(b, number, opened, t);
        return TSR_OK;
    }
    if (((const tsr_entry *)b->entries.items)[number].kind == TSR_ENTRY_TENSOR) return add_copy(b, number, opened, t);
    fill_entry(b, number, opened, t); /* used although it is not where the index says; a finding reports that */
    return TSR_OK;
}

static tsr_status add_unmapped_of(builder *b, const tsr_safetensors *opened)
{
    for (uint64_t i = 0; i < opened->count; i++) {
        const tsr_safetensors_tensor *t = &opened->tensors[i];
        uint32_t number = tsr_map_get(b->entry_of, t->name, UINT32_MAX);
        if (number < b->map.count && b->map.weights[number].file == opened->file) continue;
        TSR_TRY(add_unmapped(b, opened, t));
    }
    return TSR_OK;
}

/* There are few copies: they are counted per entry, and then each entry gets its range of one array. */
static tsr_status attach_copies(builder *b, tsr_entry *entries)
{
    const copy *copies = b->copies.items;
    tsr_chunk *replicas = tsr_arena_array(b->checkpoint->arena, b->copies.count, sizeof *replicas, b->err);
    if (!replicas) return TSR_E_NOMEM;
    for (size_t i = 0; i < b->copies.count; i++) entries[copies[i].entry].replica_count++;
    for (size_t i = 0; i < b->copies.count; i++) {
        tsr_entry *entry = &entries[copies[i].entry];
        if (entry->replicas) continue;
        entry->replicas = replicas;
        replicas += entry->replica_count;
        entry->replica_count = 0;
    }
    for (size_t i = 0; i < b->copies.count; i++) {
        tsr_entry *entry = &entries[copies[i].entry];
        ((tsr_chunk *)entry->replicas)[entry->replica_count++] = copies[i].chunk;
    }
    return TSR_OK;
}

static tsr_status keep_catalog(builder *b)
{
    size_t count = b->entries.count;
    tsr_entry *entries = tsr_arena_array(b->checkpoint->arena, count, sizeof *entries, b->err);
    tsr_chunk *chunks = entries ? tsr_arena_array(b->checkpoint->arena, count, sizeof *chunks, b->err) : NULL;
    if (!chunks) return TSR_E_NOMEM;
    if (count) memcpy(entries, b->entries.items, count * sizeof *entries);
    if (count) memcpy(chunks, b->chunks.items, count * sizeof *chunks);
    for (size_t i = 0; i < count; i++)
        if (entries[i].chunk_count) entries[i].chunks = &chunks[i];
    b->checkpoint->catalog.entries = entries;
    b->checkpoint->catalog.entry_count = count;
    return attach_copies(b, entries);
}

static tsr_status build(builder *b)
{
    for (uint32_t i = 0; i < b->map.file_count; i++) b->opened_of[b->map.files[i]] = i;
    TSR_TRY(tsr_safetensors_zeros(b->checkpoint, b->opened, b->map.file_count, &b->zeros, b->err));
    TSR_TRY(list_seconds(b));
    for (uint64_t i = 0; i < b->map.count; i++) TSR_TRY(add_weight(b, &b->map.weights[i]));
    for (uint32_t i = 0; i < b->map.file_count; i++) TSR_TRY(add_unmapped_of(b, &b->opened[i]));
    TSR_TRY(index_add_seconds(b));
    TSR_TRY(keep_catalog(b));
    TSR_TRY(tsr_safetensors_keep_metadata(b->checkpoint, b->opened, b->map.file_count, b->err));
    if (!b->incomplete) TSR_TRY(tsr_weight_map_check_total(b->checkpoint, &b->map, b->bytes, b->err));
    return tsr_weight_map_check_stray(b->checkpoint, &b->map, TSR_STR(".safetensors"), b->err);
}

static tsr_status open_index(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    uint32_t files = checkpoint->store->file_count;
    builder b = {.checkpoint = checkpoint, .err = err};
    TSR_TRY(tsr_weight_map_read(checkpoint, &b.map, err));
    TSR_TRY(tsr_safetensors_open_all(checkpoint, b.map.files, b.map.file_count, &b.opened, err));
    b.entries = tsr_vec_of(allocator, sizeof(tsr_entry));
    b.chunks = tsr_vec_of(allocator, sizeof(tsr_chunk));
    b.copies = tsr_vec_of(allocator, sizeof(copy));
    b.seconds = tsr_vec_of(allocator, sizeof(second_name));
    b.opened_of = tsr_alloc(allocator, files, sizeof *b.opened_of, err);
    b.entry_of = b.opened_of ? tsr_map_new(allocator, (size_t)b.map.count, err) : NULL;
    b.second_of = b.entry_of ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = b.second_of ? build(&b) : TSR_E_NOMEM;
    tsr_map_free(b.entry_of);
    tsr_map_free(b.second_of);
    tsr_vec_free(&b.seconds);
    tsr_free(allocator, b.opened_of, files, sizeof *b.opened_of);
    tsr_vec_free(&b.entries);
    tsr_vec_free(&b.chunks);
    tsr_vec_free(&b.copies);
    tsr_safetensors_close_all(checkpoint, b.opened, b.map.file_count);
    return status;
}

const tsr_reader tsr_reader_safetensors_index = {
    .format = TSR_FORMAT_SAFETENSORS_INDEX, .open = open_index, .extents = tsr_safetensors_extents};

/* ---- ranks ---- */

/* Reads one or several safetensors files per rank without an index, as in vLLM's sharded state:
 *
 *   model-rank-R-part-P.safetensors
 *
 * Every rank has the same names. Nothing says how the ranks' tensors form the whole tensors, so those that differ are listed
 * per rank (rank_entries.h). There are no checksums, so the bytes are compared. */

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
