/* Writes sharded safetensors files for the target's ranks, like DCP's HuggingFaceStorageWriter: one file per rank that owns
 * shards, each with the offsets of its pieces in the metadata.
 *
 *   shard-00002-model-00001-of-00001.safetensors
 *   __metadata__: {"format": "pt", "DCP_SHARDING_INFO": "{\"w\":{\"saved_offsets\":[4,0]}}", "DCP_VERSION": "1.0"}
 *
 * The format does not store global shapes: readers infer them from the farthest end of the pieces. */
#include <stdlib.h>

#include "convert/convert_to.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/json.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"
#include "write/safetensors_write.h"

typedef struct owned {
    tsr_safetensors_output piece;
    size_t order;
} owned;

typedef struct gathering {
    const tsr_conversion_job *job;
    const tsr_plan *plan;
    tsr_chosen chosen;
    tsr_vec owned;
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
    owned *o = tsr_vec_push(&g->owned, err);
    uint64_t *box = tsr_arena_array(g->job->arena, 2 * (size_t)shard->ndim, sizeof *box, err);
    if (!o || !box) return TSR_E_NOMEM;
    if (shard->ndim) memcpy(box, shard->boxes[0].offsets, shard->ndim * sizeof *box);
    if (shard->ndim) memcpy(box + shard->ndim, shard->boxes[0].sizes, shard->ndim * sizeof *box);
    o->order = g->owned.count;
    o->piece = (tsr_safetensors_output){.entry = entry,
                                        .offsets = box,
                                        .sizes = box + shard->ndim,
                                        .name = row->name,
                                        .dtype = row->dtype,
                                        .file = (uint32_t)owner};
    return tsr_blit_measure(entry, NULL, row->dtype, &row->bytes, err);
}

static int by_owner(const void *a, const void *b)
{
    const owned *x = a, *y = b;
    if (x->piece.file != y->piece.file) return x->piece.file < y->piece.file ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Sorts the pieces by owner, and turns the owners' numbers into numbers of files, which are named by rank from 1 on. */
static tsr_status sort_into_files(gathering *g, tsr_error *err)
{
    owned *list = g->owned.items;
    tsr_arena *arena = g->job->arena;
    g->pieces = tsr_arena_array(arena, g->owned.count, sizeof *g->pieces, err);
    g->files = tsr_arena_array(arena, g->owned.count, sizeof *g->files, err);
    if (!g->pieces || !g->files) return TSR_E_NOMEM;
    if (g->owned.count) qsort(list, g->owned.count, sizeof *list, by_owner);
    for (size_t i = 0; i < g->owned.count; i++) {
        const uint32_t owner = list[i].piece.file;
        if (i == 0 || owner != list[i - 1].piece.file) {
            tsr_safetensors_file *file = &g->files[g->file_count++];
            file->name = tsr_arena_format(arena, err, "shard-%05u-model-00001-of-00001.safetensors", (unsigned)owner + 1);
            if (!file->name.data) return TSR_E_NOMEM;
        }
        g->pieces[i] = list[i].piece;
        g->pieces[i].file = g->file_count - 1;
        tsr_row_of(&g->chosen, list[i].piece.entry)->file = g->file_count - 1;
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

static tsr_status describe_file(gathering *g, const tsr_safetensors_output *pieces, size_t count, tsr_safetensors_file *file,
                                tsr_error *err)
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
        TSR_TRY(describe_file(g, g->pieces + from, to - from, &g->files[f], err));
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
    const tsr_blit *x = a, *y = b;
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
    if (g->count) qsort(g->layout.blits, g->count, sizeof *g->layout.blits, by_entry); /* each tensor is located only once */
    return report(g, err);
}

static tsr_status write_headers(const tsr_stage *stage, const tsr_sink *sink, tsr_error *err)
{
    const gathering *g = stage->ctx;
    return tsr_safetensors_write_headers(&g->layout, tsr_checkpoint_host(g->job->checkpoint), sink, err);
}

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    gathering *g = ctx;
    (void)number, (void)arena, (void)err;
    *out = (tsr_stage){.blits = g->layout.blits, .count = g->count, .rest = write_headers, .ctx = g};
    return TSR_OK;
}

tsr_status tsr_reshard_to_safetensors(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err)
{
    gathering *g = TSR_ARENA_NEW(job->arena, gathering, err);
    if (!g) return TSR_E_NOMEM;
    *g = (gathering){
        .job = job, .plan = plan, .owned = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, sizeof(owned))};
    tsr_status status = tsr_choose(job->checkpoint, job->options, tsr_safetensors_refusal, job->arena, &g->chosen, err);
    if (status == TSR_OK) status = tsr_leave_unplanned(&g->chosen, plan, err);
    if (status == TSR_OK) status = gather(g, err);
    tsr_vec_free(&g->owned);
    *out = (tsr_writer){
        .stage_count = 1, .crc = !job->options->no_checksums, .marker = TSR_NO_FILE, .stage = stage_of, .ctx = g};
    return status;
}
