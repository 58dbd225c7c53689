/* Writes a checkpoint as safetensors: one file, or shards of limited size with model.safetensors.index.json. They are named
 * and filled as by huggingface_hub: in order, with a new shard when the next tensor does not fit, and a tensor beyond the
 * limit in a shard of its own. */
#include <stddef.h>
#include <stdlib.h>

#include "convert/convert_to.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/end_sum.h"
#include "tessera/sys/json.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"
#include "write/safetensors_write.h"

/* ---- a whole checkpoint ---- */

#define INDEX_NAME "model.safetensors.index.json"

typedef struct output_files {
    const tsr_conversion_job *job;
    tsr_chosen selection;
    tsr_safetensors_output *pieces;
    size_t count;
    tsr_safetensors_file *files;
    uint32_t file_count;
    const tsr_part **parts; /* part of each file; NULL if the files are not one per part */
    tsr_safetensors_layout layout;
    const tsr_converted **seconds; /* rows that are second names of others, by file */
    size_t second_count;
    size_t second_next; /* the first one of the next file */
    bool has_seconds;   /* there may be some */
} output_files;

/* Whether the format has this dtype (including float4, packed or not). */
static bool is_storable(tsr_dtype dtype)
{
    uint64_t last = 1;
    return tsr_dtype_unpack(&dtype, &last) && tsr_dtype_describe(dtype)->safetensors_name;
}

const char *tsr_safetensors_refusal(const tsr_converted *row)
{
    if (tsr_is_object(row->entry))
        return "is an object, which safetensors cannot store (pass --objects drop or --objects sidecar)";
    if (row->entry->kind == TSR_ENTRY_OPAQUE) return tsr_opaque_refusal(row->entry);
    switch (row->dtype) {
    case TSR_COMPLEX32: return "is complex32, which safetensors does not have";
    case TSR_BCOMPLEX32: return "is bcomplex32, which safetensors does not have";
    case TSR_COMPLEX128: return "is complex128, which safetensors does not have";
    default: return is_storable(row->dtype) ? NULL : "has a type that safetensors does not have";
    }
}

/* ---- choosing files ---- */

/* Removes the part's name from a name that begins with it. */
static tsr_str name_in_part(tsr_str name, tsr_str part)
{
    if (part.size == 0 || name.size <= part.size + 1 || !tsr_str_starts(name, part) || name.data[part.size] != '.')
        return name;
    return tsr_str_after(name, part.size + 1);
}

static tsr_status add_piece(output_files *p, tsr_converted *row, tsr_error *err)
{
    TSR_TRY(tsr_write_item_measure(row->entry, NULL, row->dtype, &row->bytes, err));
    row->file = p->file_count;
    p->job->out->byte_total += row->bytes;
    p->pieces[p->count++] =
        (tsr_safetensors_output){.entry = row->entry, .name = row->name, .dtype = row->dtype, .file = row->file};
    return TSR_OK;
}

/* ---- second names ---- */

static bool is_same_tensor(const tsr_converted *a, const tsr_converted *b)
{
    const tsr_entry *x = a->entry, *y = b->entry;
    return a->dtype == b->dtype && x->dtype == y->dtype && x->ndim == y->ndim &&
           (!x->ndim || memcmp(x->shape, y->shape, x->ndim * sizeof *x->shape) == 0) && x->chunk_count == 1 &&
           y->chunk_count == 1 && x->chunks->file == y->chunks->file && x->chunks->byte_offset == y->chunks->byte_offset;
}

typedef struct shared_storage {
    tsr_converted *first; /* the tensor that is written */
    uint32_t users, names;
} shared_storage;

/* Finds what each second name is another name of. If the first name is left out, a second name takes its place. */
static tsr_status find_firsts(output_files *p, tsr_error *err)
{
    uint32_t largest = 0;
    for (uint64_t i = 0; i < p->selection.count; i++) {
        const tsr_converted *row = &p->selection.rows[i];
        if (!row->written || !row->entry->is_second_name) continue;
        p->has_seconds = true;
        if (row->entry->storage_id > largest) largest = row->entry->storage_id;
    }
    if (!p->has_seconds) return TSR_OK;
    shared_storage *storages = tsr_arena_array(p->job->arena, (size_t)largest + 1, sizeof *storages, err);
    if (!storages) return TSR_E_NOMEM;
    for (int pass = 0; pass < 2; pass++) { /* first names, then second names */
        for (uint64_t i = 0; i < p->selection.count; i++) {
            tsr_converted *row = &p->selection.rows[i];
            const tsr_entry *entry = row->entry;
            if (!row->written || entry->is_second_name != (pass == 1)) continue;
            if (!entry->storage_id || entry->storage_id > largest) continue;
            shared_storage *storage = &storages[entry->storage_id];
            storage->users++;
            if (!storage->first) storage->first = row;
            else if (pass == 1 && is_same_tensor(row, storage->first) && tsr_safetensors_may_be_second(row->name))
                row->second_of = storage->first;
            storage->names += storage->first == row || row->second_of;
        }
    }
    for (uint64_t i = 0; i < p->selection.count; i++) {
        tsr_converted *row = &p->selection.rows[i];
        const uint32_t id = row->entry->storage_id;
        if (row->second_of || (id && id <= largest && storages[id].users == storages[id].names)) row->copied = false;
    }
    return TSR_OK;
}

static int by_file(const void *a, const void *b)
{
    const tsr_converted *x = *(const tsr_converted *const *)a, *y = *(const tsr_converted *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x > y) - (x < y);
}

/* Puts the second names into the files of their tensors, and lists them by file. */
static tsr_status place_seconds(output_files *p, tsr_error *err)
{
    if (!p->has_seconds) return TSR_OK;
    p->seconds = tsr_arena_array(p->job->arena, (size_t)p->selection.count, sizeof *p->seconds, err);
    if (!p->seconds) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < p->selection.count; i++) {
        tsr_converted *row = &p->selection.rows[i];
        if (!row->second_of) continue;
        row->file = row->second_of->file;
        p->seconds[p->second_count++] = row;
    }
    qsort(p->seconds, p->second_count, sizeof *p->seconds, by_file);
    return TSR_OK;
}

/* Whether a row gets bytes of its own. */
static bool is_stored(const tsr_converted *row)
{
    return row->written && !row->second_of;
}

/* ---- files ---- */

/* Makes one file for every part that has tensors. The rows are in the order of the catalog's entries. */
static tsr_status assign_parts(output_files *p, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(p->job->checkpoint);
    p->parts = tsr_arena_array(p->job->arena, catalog->part_count, sizeof *p->parts, err);
    if (!p->parts) return TSR_E_NOMEM;
    for (uint32_t n = 0; n < catalog->part_count; n++) {
        const tsr_part *part = &catalog->parts[n];
        const size_t before = p->count;
        for (uint64_t i = part->first_entry; i < part->first_entry + part->entry_count; i++) {
            tsr_converted *row = &p->selection.rows[i];
            if (!row->written) continue;
            row->name = name_in_part(row->name, part->name);
            if (is_stored(row)) TSR_TRY(add_piece(p, row, err));
        }
        if (p->count > before) p->parts[p->file_count++] = part;
    }
    return TSR_OK;
}

static tsr_status assign_files(output_files *p, tsr_error *err)
{
    const uint64_t most = p->job->options->max_shard_size;
    uint64_t in_file = 0;
    for (uint64_t i = 0; i < p->selection.count; i++) {
        tsr_converted *row = &p->selection.rows[i];
        if (!is_stored(row)) continue;
        TSR_TRY(tsr_write_item_measure(row->entry, NULL, row->dtype, &row->bytes, err));
        const bool fits = !most || in_file == 0 || (in_file <= most && row->bytes <= most - in_file);
        if (!fits) {
            p->file_count++;
            in_file = 0;
        }
        in_file += row->bytes;
        TSR_TRY(add_piece(p, row, err));
    }
    p->file_count++;
    return TSR_OK;
}

static tsr_status name_part(output_files *p, uint32_t f, tsr_error *err)
{
    const tsr_str part = p->parts[f]->name.size ? p->parts[f]->name : TSR_STR("checkpoint");
    p->files[f].name = tsr_arena_format(p->job->arena, err, "%.*s.safetensors", TSR_STR_ARG(part));
    return p->files[f].name.data ? TSR_OK : TSR_E_NOMEM;
}

/* Appends the pairs that a file has in addition to those of the source: second names, and which part it is, so that opening the
 * directory gives the same parts. */
static tsr_status add_own_pairs(output_files *p, uint32_t f, tsr_vec *pairs, tsr_error *err)
{
    for (; p->second_next < p->second_count && p->seconds[p->second_next]->file == f; p->second_next++) {
        const tsr_converted *row = p->seconds[p->second_next];
        tsr_text_pair *pair = tsr_vec_push(pairs, err);
        if (!pair) return TSR_E_NOMEM;
        *pair = (tsr_text_pair){row->name, row->second_of->name};
    }
    if (!p->parts) return TSR_OK;
    const tsr_str name = p->parts[f]->name;
    tsr_text_pair *pair = tsr_vec_push(pairs, err);
    if (!pair) return TSR_E_NOMEM;
    *pair = (tsr_text_pair){TSR_STR(TSR_SAFETENSORS_PART), name.size ? name : TSR_STR("")};
    return TSR_OK;
}

static tsr_status describe_file(output_files *p, uint32_t f, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(p->job->checkpoint);
    const tsr_text_pairs source = p->parts ? (tsr_text_pairs){p->parts[f]->metadata, p->parts[f]->metadata_count}
                                           : (tsr_text_pairs){catalog->metadata, catalog->metadata_count};
    tsr_vec own = tsr_vec_of(tsr_checkpoint_host(p->job->checkpoint)->allocator, sizeof(tsr_text_pair));
    tsr_status status = add_own_pairs(p, f, &own, err);
    if (status == TSR_OK)
        status = tsr_safetensors_carry(source, (tsr_text_pairs){own.items, own.count}, p->job->arena, &p->files[f], err);
    tsr_vec_free(&own);
    return status;
}

static tsr_status name_files(output_files *p, tsr_error *err)
{
    tsr_arena *arena = p->job->arena;
    const uint32_t generation = p->job->generation;
    const tsr_str head = generation ? tsr_arena_format(arena, err, "model-g%u", (unsigned)generation) : TSR_STR("model");
    if (!head.data) return TSR_E_NOMEM;
    p->files = tsr_arena_array(arena, p->file_count, sizeof *p->files, err);
    if (!p->files) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < p->file_count; f++) {
        if (p->parts) {
            TSR_TRY(name_part(p, f, err));
        } else if (!p->job->options->max_shard_size) {
            p->files[f].name = tsr_single_file(p->job);
        } else if (p->file_count == 1) {
            p->files[f].name = tsr_arena_format(arena, err, "%.*s.safetensors", TSR_STR_ARG(head));
        } else {
            p->files[f].name = tsr_arena_format(arena, err, "%.*s-%05u-of-%05u.safetensors", TSR_STR_ARG(head),
                                                (unsigned)f + 1, (unsigned)p->file_count);
        }
        if (!p->files[f].name.data) return TSR_E_NOMEM;
        TSR_TRY(describe_file(p, f, err));
    }
    return TSR_OK;
}

/* ---- the index ---- */

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const tsr_safetensors_output *)a)->name, ((const tsr_safetensors_output *)b)->name);
}

static tsr_status emit_index(const output_files *p, tsr_vec *text, tsr_error *err)
{
    tsr_safetensors_output *sorted = tsr_arena_array(p->job->arena, p->count, sizeof *sorted, err);
    if (!sorted) return TSR_E_NOMEM;
    if (p->count) memcpy(sorted, p->pieces, p->count * sizeof *sorted);
    qsort(sorted, p->count, sizeof *sorted, by_name);
    tsr_json json;
    tsr_json_start(&json, tsr_vec_write, text, 1, err);
    tsr_json_object(&json);
    tsr_json_put_object(&json, "metadata");
    tsr_json_put_uint(&json, "total_size", p->job->out->byte_total);
    /* Different limits may divide a model in the same way, but --resume must tell these jobs apart. */
    if (p->job->options->max_shard_size) tsr_json_put_uint(&json, "max_shard_size", p->job->options->max_shard_size);
    tsr_json_object_end(&json);
    tsr_json_put_object(&json, "weight_map");
    for (size_t i = 0; i < p->count; i++) {
        tsr_json_key_str(&json, sorted[i].name);
        tsr_json_str(&json, p->files[sorted[i].file].name);
    }
    tsr_json_object_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static tsr_status write_index(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    const output_files *p = ctx;
    tsr_vec text = tsr_vec_of(tsr_checkpoint_host(p->job->checkpoint)->allocator, 1);
    tsr_status status = emit_index(p, &text, err);
    if (status == TSR_OK && !p->job->options->no_checksums)
        status = tsr_end_sum_append(&text, tsr_checkpoint_host(p->job->checkpoint), err);
    if (status == TSR_OK) status = output->create(output, TSR_STR(INDEX_NAME), text.count, marker, err);
    if (status == TSR_OK) status = output->write_at(output, *marker, 0, text.items, text.count, err);
    tsr_vec_free(&text);
    return status;
}

/* ---- the whole checkpoint ---- */

static tsr_status describe(const output_files *p, tsr_error *err)
{
    tsr_conversion *out = p->job->out;
    tsr_str *names = tsr_arena_array(p->job->arena, p->file_count, sizeof *names, err);
    uint64_t *sizes = tsr_arena_array(p->job->arena, p->file_count, sizeof *sizes, err);
    if (!names || !sizes) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < p->file_count; f++) {
        names[f] = p->files[f].name;
        sizes[f] = p->files[f].size;
    }
    out->files = names;
    out->file_sizes = sizes;
    out->file_count = p->file_count;
    out->rows = p->selection.rows;
    out->row_count = p->selection.count;
    return TSR_OK;
}

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    output_files *p = ctx; /* also that of write_index */
    return tsr_safetensors_stage(&p->layout, number, arena, out, err);
}

static tsr_status convert(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    output_files *p = TSR_ARENA_NEW(job->arena, output_files, err);
    if (!p) return TSR_E_NOMEM;
    p->job = job;
    const tsr_host *host = tsr_checkpoint_host(job->checkpoint);
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_safetensors_refusal, job->arena, &p->selection, err));
    p->pieces = tsr_arena_array(job->arena, p->selection.tensor_count, sizeof *p->pieces, err);
    if (!p->pieces) return TSR_E_NOMEM;
    TSR_TRY(find_firsts(p, err));
    TSR_TRY(job->options->per_part ? assign_parts(p, err) : assign_files(p, err));
    TSR_TRY(place_seconds(p, err));
    TSR_TRY(name_files(p, err));
    p->layout = (tsr_safetensors_layout){.pieces = p->pieces,
                                         .piece_count = p->count,
                                         .files = p->files,
                                         .file_count = p->file_count,
                                         .unsummed = job->options->no_checksums};
    TSR_TRY(tsr_safetensors_lay_out(&p->layout, host, job->arena, err));
    TSR_TRY(describe(p, err));
    *out = (tsr_writer){.stage_count = 1, .crc = !job->options->no_checksums, .stage = stage_of, .ctx = p};
    /* An index must be replaced by an index. */
    const bool is_named = job->options->file_name.size > 0;
    if (!p->parts && !is_named && (p->file_count > 1 || job->generation > 0)) out->finish = write_index;
    return TSR_OK;
}

/* ---- for a plan ---- */

/* Writes sharded safetensors files for the target's ranks, like DCP's HuggingFaceStorageWriter: one file per rank that owns
 * shards, each with the offsets of its pieces in the metadata.
 *
 *   shard-00002-model-00001-of-00001.safetensors
 *   __metadata__: {"format": "pt", "DCP_SHARDING_INFO": "{\"w\":{\"saved_offsets\":[4,0]}}", "DCP_VERSION": "1.0"}
 *
 * The format does not store global shapes: readers infer them from the farthest end of the pieces. */

typedef struct gathering {
    const tsr_conversion_job *job;
    const tsr_plan *plan;
    tsr_chosen chosen;
    tsr_vec owned; /* of tsr_safetensors_output, whose `file` is the rank that writes it */
    tsr_safetensors_output *pieces;
    tsr_safetensors_file *files; /* those that are not empty */
    uint32_t file_count;
    tsr_safetensors_layout layout;
    size_t count;
} gathering;

static tsr_status add_shard(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    gathering *g = ctx;
    const tsr_entry *entry = tsr_plan_tensor_at(g->plan, tensor).entry;
    tsr_converted *row = tsr_row_of(&g->chosen, entry);
    if (!row) return TSR_OK;
    TSR_FAIL_IF(shard->box_count > 1, err, TSR_E_UNSUPPORTED,
                "'%.*s': rank %llu holds %llu separate boxes of it, but sharded safetensors store one box per file",
                TSR_STR_ARG(entry->fqn), (unsigned long long)owner, (unsigned long long)shard->box_count);
    tsr_safetensors_output *piece = tsr_vec_push(&g->owned, err);
    uint64_t *box = tsr_arena_array(g->job->arena, 2 * (size_t)shard->ndim, sizeof *box, err);
    if (!piece || !box) return TSR_E_NOMEM;
    if (shard->ndim) memcpy(box, shard->boxes[0].offsets, shard->ndim * sizeof *box);
    if (shard->ndim) memcpy(box + shard->ndim, shard->boxes[0].sizes, shard->ndim * sizeof *box);
    *piece = (tsr_safetensors_output){.entry = entry,
                                      .offsets = box,
                                      .sizes = box + shard->ndim,
                                      .name = row->name,
                                      .dtype = row->dtype,
                                      .file = (uint32_t)owner};
    return tsr_write_item_measure(entry, NULL, row->dtype, &row->bytes, err);
}

/* Sorts the pieces by owner, and turns the owners' numbers into numbers of files, which are named by rank from 1 on. */
static tsr_status sort_into_files(gathering *g, tsr_error *err)
{
    const tsr_safetensors_output *list = g->owned.items;
    tsr_arena *arena = g->job->arena;
    const size_t *order;
    TSR_TRY(
        tsr_order_by_file(&g->owned, offsetof(tsr_safetensors_output, file), tsr_plan_ranks(g->plan), arena, &order, err));
    g->pieces = tsr_arena_array(arena, g->owned.count, sizeof *g->pieces, err);
    g->files = tsr_arena_array(arena, g->owned.count, sizeof *g->files, err);
    if (!g->pieces || !g->files) return TSR_E_NOMEM;
    for (size_t i = 0; i < g->owned.count; i++) {
        const tsr_safetensors_output *piece = &list[order[i]];
        if (i == 0 || piece->file != list[order[i - 1]].file) {
            tsr_safetensors_file *file = &g->files[g->file_count++];
            file->name =
                tsr_arena_format(arena, err, "shard-%05u-model-00001-of-00001.safetensors", (unsigned)piece->file + 1);
            if (!file->name.data) return TSR_E_NOMEM;
        }
        g->pieces[i] = *piece;
        g->pieces[i].file = g->file_count - 1;
        tsr_row_of(&g->chosen, piece->entry)->file = g->file_count - 1;
    }
    return TSR_OK;
}

static tsr_status emit_offsets(const tsr_safetensors_output *pieces, size_t count, tsr_vec *text, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, tsr_vec_write, text, 0, err);
    tsr_json_object(&json);
    for (size_t i = 0; i < count; i++) {
        tsr_packed packed;
        TSR_TRY(tsr_gather_pack(pieces[i].entry, &packed, err));
        tsr_json_key_str(&json, pieces[i].name);
        tsr_json_object(&json);
        tsr_json_put_u64s(&json, "saved_offsets", pieces[i].offsets, packed.ndim);
        tsr_json_object_end(&json);
    }
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static tsr_status describe_rank_file(gathering *g, const tsr_safetensors_output *pieces, size_t count,
                                     tsr_safetensors_file *file, tsr_error *err)
{
    tsr_vec text = tsr_vec_of(tsr_checkpoint_host(g->job->checkpoint)->allocator, 1);
    const tsr_catalog *source = tsr_checkpoint_catalog(g->job->checkpoint);
    tsr_text_pair pairs[] = {{TSR_STR(TSR_SAFETENSORS_SHARDING), {NULL, 0}}, {TSR_STR("DCP_VERSION"), TSR_STR("1.0")}};
    tsr_status status = emit_offsets(pieces, count, &text, err);
    if (status == TSR_OK) {
        pairs[0].value = tsr_arena_str(g->job->arena, (tsr_str){text.items, text.count - 1}, err);
        status = !pairs[0].value.data ? TSR_E_NOMEM
                                      : tsr_safetensors_carry((tsr_text_pairs){source->metadata, source->metadata_count},
                                                              (tsr_text_pairs){pairs, 2}, g->job->arena, file, err);
    }
    tsr_vec_free(&text);
    return status;
}

static tsr_status describe_files(gathering *g, tsr_error *err)
{
    for (size_t f = 0, from = 0; f < g->file_count; f++) {
        size_t to = from;
        while (to < g->owned.count && g->pieces[to].file == f) to++;
        TSR_TRY(describe_rank_file(g, g->pieces + from, to - from, &g->files[f], err));
        from = to;
    }
    return TSR_OK;
}

static tsr_status report(gathering *g, tsr_error *err)
{
    tsr_str *names = tsr_arena_array(g->job->arena, g->file_count, sizeof *names, err);
    uint64_t *sizes = tsr_arena_array(g->job->arena, g->file_count, sizeof *sizes, err);
    if (!names || !sizes) return TSR_E_NOMEM;
    tsr_conversion *out = g->job->out;
    *out = (tsr_conversion){.rows = g->chosen.rows,
                            .row_count = g->chosen.count,
                            .files = names,
                            .file_sizes = sizes,
                            .file_count = g->file_count,
                            .marker = TSR_NO_FILE};
    for (uint32_t f = 0; f < g->file_count; f++) {
        names[f] = g->files[f].name;
        sizes[f] = g->files[f].size;
        out->byte_total += g->files[f].plan.data_size;
    }
    return TSR_OK;
}

static int by_entry(const void *a, const void *b)
{
    const tsr_write_item *x = a, *y = b;
    if (x->entry != y->entry) return (uintptr_t)x->entry < (uintptr_t)y->entry ? -1 : 1;
    return (x->file > y->file) - (x->file < y->file);
}

static tsr_status gather(gathering *g, tsr_error *err)
{
    const tsr_conversion_job *job = g->job;
    TSR_TRY(tsr_plan_each_write(g->plan, add_shard, g, err));
    TSR_TRY(sort_into_files(g, err));
    TSR_TRY(describe_files(g, err));
    g->count = g->owned.count;
    g->layout = (tsr_safetensors_layout){.pieces = g->pieces,
                                         .piece_count = g->count,
                                         .files = g->files,
                                         .file_count = g->file_count,
                                         .unsummed = job->options->no_checksums};
    TSR_TRY(tsr_safetensors_lay_out(&g->layout, tsr_checkpoint_host(job->checkpoint), job->arena, err));
    if (g->count)
        qsort(g->layout.write_items, g->count, sizeof *g->layout.write_items,
              by_entry); /* each tensor is located only once */
    return report(g, err);
}

static tsr_status reshard(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err)
{
    gathering *g = TSR_ARENA_NEW(job->arena, gathering, err);
    if (!g) return TSR_E_NOMEM;
    *g = (gathering){.job = job,
                     .plan = plan,
                     .owned = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, sizeof(tsr_safetensors_output))};
    tsr_status status = tsr_choose(job->checkpoint, job->options, tsr_safetensors_refusal, job->arena, &g->chosen, err);
    if (status == TSR_OK) status = tsr_leave_unplanned(&g->chosen, plan, err);
    if (status == TSR_OK) status = gather(g, err);
    tsr_vec_free(&g->owned);
    *out = (tsr_writer){.stage_count = 1,
                        .crc = !job->options->no_checksums,
                        .marker = TSR_NO_FILE,
                        .stage = tsr_safetensors_stage,
                        .ctx = &g->layout};
    return status;
}

const tsr_container_writers tsr_safetensors_writers = {convert, reshard};
