/* Writes boxes of tensors as a DCP directory.
 *
 *   __0_0.distcp   [item: head | storage | tail][item: head | storage | tail]…      each item a torch.save archive
 *
 * First the sizes are computed, which follow from names, shapes and dtypes. Then write items write the storages, and each item's
 * head and tail are written when the CRC of its storage is known. Heads and tails are built twice instead of being
 * stored. */
#include <stdlib.h>

#include "base/cursor.h"
#include "formats/pickle/torch_names.h"
#include "formats/torch/torch_writer.h"
#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"
#include "write/dcp_write.h"
#include "write/torch_plan.h"

typedef struct item {
    uint64_t byte_offset, byte_length;
    tsr_torch_plan *plan; /* only for objects */
} item;

/* A storage to be written, and the item that it belongs to. */
typedef struct placed_item {
    tsr_write_item write_item;
    size_t source, piece;
    uint32_t storage;
} placed_item;

typedef struct writer {
    tsr_dcp_job job;
    const tsr_host *host;
    item *items;                 /* one per piece */
    tsr_vec placed_items;        /* only while laying out */
    placed_item *sorted;         /* sorted by source, so that each tensor is located only once */
    tsr_write_item *write_items; /* those of `sorted` */
    size_t count;
    uint64_t room;    /* bytes that the objects' pickles may still take */
    uint32_t content; /* CRC over the CRCs and lengths of all items, which identifies the save */
} writer;

/* ---- items ---- */

/* Converts a box to the stored form. `offsets` may be NULL for zeros, `sizes` NULL for the whole tensor. Fills ndim + 1
 * numbers each. */
static void fragments_of_box(const tsr_entry *entry, const uint64_t *fragments, const uint64_t *offsets,
                             const uint64_t *sizes, uint64_t *stored_offsets, uint64_t *stored_sizes)
{
    uint64_t flat = 1;
    for (uint32_t d = 0; d < entry->ndim; d++) {
        const uint64_t step = entry->shape[d] / fragments[d];
        stored_offsets[d] = offsets && step ? offsets[d] / step : 0;
        stored_sizes[d] = sizes && step ? sizes[d] / step : fragments[d];
        flat *= step;
    }
    stored_offsets[entry->ndim] = 0;
    stored_sizes[entry->ndim] = flat;
}

/* Plans the archive for one box of a tensor, in `arena`, which may be temporary. */
static tsr_status tensor_archive(const writer *w, const tsr_dcp_piece *piece, tsr_arena *arena, tsr_torch_archive *out,
                                 tsr_torch_new_storage *storage, tsr_error *err)
{
    const tsr_dcp_output_entry *source = &w->job.sources[piece->source];
    tsr_packed packed;
    TSR_TRY(tsr_gather_pack(source->entry, &packed, err));
    const tsr_value root = {.kind = TSR_VALUE_TENSOR, .as.tensor = source->entry};
    tsr_torch_new_tensor tensor = {
        .entry = source->entry, .ndim = packed.ndim, .sizes = piece->sizes ? piece->sizes : packed.shape};
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    if (source->fragments) {
        fragments_of_box(source->entry, source->fragments, piece->offsets, piece->sizes, offsets, sizes);
        tensor.ndim = packed.ndim + 1;
        tensor.sizes = sizes;
    }
    storage->dtype = source->dtype != source->entry->dtype ? source->dtype : packed.dtype;
    TSR_TRY(tsr_write_item_measure(source->entry, piece->sizes, source->dtype, &storage->byte_length, err));
    const tsr_torch_tree tree = {&root, &tensor, 1, storage, 1, NULL, w->job.unsummed};
    return tsr_torch_archive_plan(&tree, w->host, arena, out, err);
}

static tsr_status add_placed_item(writer *w, size_t piece, uint32_t storage, const tsr_write_item *write_item,
                                  tsr_error *err)
{
    placed_item *own = tsr_vec_push(&w->placed_items, err);
    if (!own) return TSR_E_NOMEM;
    *own = (placed_item){*write_item, w->job.pieces[piece].source, piece, storage};
    w->job.byte_total += write_item->byte_length;
    return TSR_OK;
}

static tsr_status lay_out_tensor(writer *w, size_t i, tsr_error *err)
{
    const tsr_dcp_piece *piece = &w->job.pieces[i];
    const tsr_dcp_output_entry *source = &w->job.sources[piece->source];
    tsr_torch_archive archive;
    tsr_torch_new_storage storage;
    tsr_arena *passing = tsr_arena_new(w->host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = tensor_archive(w, piece, passing, &archive, &storage, err);
    if (status == TSR_OK) {
        w->items[i].byte_length = archive.size;
        const tsr_write_item write_item = {.entry = source->entry,
                                           .offsets = piece->offsets,
                                           .sizes = piece->sizes,
                                           .dtype = source->dtype,
                                           .file = piece->file,
                                           .byte_offset = w->items[i].byte_offset + tsr_torch_storage_at(&archive, 0),
                                           .byte_length = storage.byte_length};
        status = add_placed_item(w, i, 0, &write_item, err);
    }
    tsr_arena_free(passing);
    return status;
}

static tsr_status lay_out_object(writer *w, size_t i, tsr_error *err)
{
    const tsr_dcp_piece *piece = &w->job.pieces[i];
    const tsr_entry *entry = w->job.sources[piece->source].entry;
    tsr_torch_plan *plan = TSR_ARENA_NEW(w->job.arena, tsr_torch_plan, err);
    if (!plan) return TSR_E_NOMEM;
    const tsr_value *value = piece->value ? piece->value : entry->value;
    tsr_status status = tsr_torch_plan_open(w->job.checkpoint, value, w->job.arena, plan, err);
    plan->room = &w->room;
    plan->unsummed = w->job.unsummed;
    if (status == TSR_OK) status = tsr_torch_plan_lay_out(plan, err);
    if (status != TSR_OK) {
        tsr_error_context(err, "'%.*s'", TSR_STR_ARG(entry->fqn));
        return status;
    }
    w->items[i].plan = plan;
    w->items[i].byte_length = plan->archive.size;
    for (uint32_t s = 0; s < plan->storage_count; s++) {
        tsr_write_item write_item = plan->write_items[s];
        write_item.file = piece->file;
        write_item.byte_offset += w->items[i].byte_offset;
        TSR_TRY(add_placed_item(w, i, s, &write_item, err));
    }
    return TSR_OK;
}

static tsr_status lay_out(writer *w, tsr_error *err)
{
    tsr_dcp_job *job = &w->job;
    for (size_t i = 0; i < job->piece_count; i++) {
        const tsr_dcp_piece *piece = &job->pieces[i];
        uint64_t *at = &job->file_sizes[piece->file];
        w->items[i].byte_offset = *at;
        if (job->sources[piece->source].entry->kind == TSR_ENTRY_TENSOR) {
            TSR_TRY(lay_out_tensor(w, i, err));
        } else {
            TSR_TRY(lay_out_object(w, i, err));
        }
        TSR_FAIL_IF(!tsr_add_u64(*at, w->items[i].byte_length, at), err, TSR_E_LIMIT, "a file of %.*s is too large",
                    TSR_STR_ARG(job->sources[piece->source].name));
    }
    return TSR_OK;
}

/* ---- bytes ---- */

static uint32_t note(uint32_t crc, uint64_t number)
{
    uint8_t bytes[8];
    tsr_store_le(bytes, number, sizeof bytes);
    return tsr_crc32(NULL, crc, bytes, sizeof bytes);
}

static tsr_status write_piece(const writer *w, tsr_torch_archive *archive, uint32_t number, size_t piece,
                              const tsr_sink *sink, tsr_error *err)
{
    uint64_t at;
    tsr_vec bytes = tsr_vec_of(w->host->allocator, 1);
    tsr_status status = tsr_torch_archive_piece(archive, number, &bytes, &at, err);
    if (status == TSR_OK)
        status =
            tsr_sink_write(sink, w->job.pieces[piece].file, w->items[piece].byte_offset + at, bytes.items, bytes.count, err);
    tsr_vec_free(&bytes);
    return status;
}

/* Writes head and tail of a tensor's item. Those of objects are written after all of their storages. */
static tsr_status finish_tensor(const tsr_stage *stage, size_t i, const tsr_sink *sink, tsr_error *err)
{
    const writer *w = stage->ctx;
    const size_t piece = w->sorted[i].piece;
    tsr_torch_archive archive;
    tsr_torch_new_storage storage;
    if (w->items[piece].plan) return TSR_OK;
    tsr_arena *passing = tsr_arena_new(w->host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = tensor_archive(w, &w->job.pieces[piece], passing, &archive, &storage, err);
    if (status == TSR_OK) {
        archive.members[archive.first_storage].crc32 = w->write_items[i].crc;
        status = write_piece(w, &archive, 0, piece, sink, err);
    }
    if (status == TSR_OK) status = write_piece(w, &archive, 1, piece, sink, err);
    tsr_arena_free(passing);
    return status;
}

static tsr_status finish_objects(const tsr_stage *stage, const tsr_sink *sink, tsr_error *err)
{
    writer *w = stage->ctx;
    w->content = 0;
    for (size_t i = 0; i < w->job.piece_count; i++) {
        const tsr_torch_plan *plan = w->items[i].plan;
        if (plan) w->content = tsr_crc32(NULL, w->content, plan->archive.pickle.data, plan->archive.pickle.size);
    }
    for (size_t i = 0; i < w->count; i++) {
        const placed_item *e = &w->sorted[i];
        tsr_torch_plan *plan = w->items[e->piece].plan;
        w->content = note(note(w->content, w->write_items[i].crc), w->write_items[i].byte_length);
        if (plan) plan->archive.members[plan->archive.first_storage + e->storage].crc32 = w->write_items[i].crc;
    }
    for (size_t i = 0; i < w->job.piece_count; i++) {
        tsr_torch_plan *plan = w->items[i].plan;
        for (uint32_t s = 0; plan && s <= plan->storage_count; s++) TSR_TRY(write_piece(w, &plan->archive, s, i, sink, err));
    }
    return TSR_OK;
}

static int by_entry(const void *a, const void *b)
{
    const placed_item *x = a, *y = b;
    const uint64_t keys[][2] = {{x->source, y->source}, {x->piece, y->piece}, {x->storage, y->storage}};
    for (size_t i = 0; i < 3; i++) {
        if (keys[i][0] != keys[i][1]) return keys[i][0] < keys[i][1] ? -1 : 1;
    }
    return 0;
}

static tsr_status order_write_items(writer *w, tsr_error *err)
{
    w->count = w->placed_items.count;
    w->sorted = tsr_arena_array(w->job.arena, w->count, sizeof *w->sorted, err);
    w->write_items = tsr_arena_array(w->job.arena, w->count, sizeof *w->write_items, err);
    if (!w->sorted || !w->write_items) return TSR_E_NOMEM;
    if (w->count) memcpy(w->sorted, w->placed_items.items, w->count * sizeof *w->sorted);
    if (w->count) qsort(w->sorted, w->count, sizeof *w->sorted, by_entry);
    for (size_t i = 0; i < w->count; i++) w->write_items[i] = w->sorted[i].write_item;
    return TSR_OK;
}

/* ---- metadata ---- */

/* Describes an item of whole fragments, as flat ranges of them. */
static tsr_status describe_fragments(const writer *w, size_t i, tsr_dcp_new_item *out, tsr_error *err)
{
    const tsr_dcp_piece *piece = &w->job.pieces[i];
    const tsr_dcp_output_entry *source = &w->job.sources[piece->source];
    uint64_t *offsets = tsr_arena_array(w->job.arena, 2 * ((size_t)source->entry->ndim + 1), sizeof *offsets, err);
    if (!offsets) return TSR_E_NOMEM;
    uint64_t *sizes = offsets + source->entry->ndim + 1;
    fragments_of_box(source->entry, source->fragments, piece->offsets, piece->sizes, offsets, sizes);
    *out = (tsr_dcp_new_item){.offsets = offsets,
                              .sizes = sizes,
                              .file = w->job.files[piece->file],
                              .byte_offset = w->items[i].byte_offset,
                              .byte_length = w->items[i].byte_length};
    return TSR_OK;
}

/* Describes a chunk, with offsets and sizes in the destination's elements. */
static tsr_status describe_item(const writer *w, size_t i, const tsr_dcp_new_entry *entry, tsr_dcp_new_item *out,
                                tsr_error *err)
{
    const tsr_dcp_piece *piece = &w->job.pieces[i];
    if (w->job.sources[piece->source].fragments) return describe_fragments(w, i, out, err);
    uint64_t *zeros = piece->offsets ? NULL : tsr_arena_array(w->job.arena, entry->ndim, sizeof *zeros, err);
    if (!piece->offsets && !zeros) return TSR_E_NOMEM;
    *out = (tsr_dcp_new_item){.offsets = piece->offsets ? piece->offsets : zeros,
                              .sizes = piece->sizes ? piece->sizes : entry->shape,
                              .file = w->job.files[piece->file],
                              .byte_offset = w->items[i].byte_offset,
                              .byte_length = w->items[i].byte_length};
    return TSR_OK;
}

/* PyTorch's planners load into a dict. A root that is not a dict gets the empty key, and the positions of a root list become
 * keys. */
static tsr_status root_key(const writer *w, tsr_dcp_new_entry *entry, tsr_error *err)
{
    const uint32_t length = entry->path_length ? entry->path_length : 1;
    tsr_path_item *path = tsr_arena_array(w->job.arena, length, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    if (entry->path_length) memcpy(path, entry->path, length * sizeof *path);
    path->key =
        entry->path_length ? tsr_arena_format(w->job.arena, err, "%lld", (long long)entry->path->integer) : entry->fqn;
    path->kind = TSR_PATH_KEY;
    entry->path = path;
    entry->path_length = length;
    return path->key.data || !path->key.size ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status describe_entry(const writer *w, const tsr_dcp_output_entry *source, tsr_dcp_new_entry *out, tsr_error *err)
{
    tsr_packed packed;
    *out = (tsr_dcp_new_entry){.fqn = source->name,
                               .path = source->path,
                               .path_length = source->path_length,
                               .tensor = source->entry->kind == TSR_ENTRY_TENSOR || tsr_entry_is_subclass(source->entry),
                               .requires_grad = source->entry->requires_grad};
    if (!out->path_length || out->path[0].kind == TSR_PATH_INDEX) TSR_TRY(root_key(w, out, err));
    if (!out->tensor) return TSR_OK;
    if (source->entry->kind != TSR_ENTRY_TENSOR) {
        out->dtype = source->entry->dtype;
        out->ndim = source->entry->ndim;
        out->shape = source->entry->shape;
        return TSR_OK;
    }
    TSR_TRY(tsr_gather_pack(source->entry, &packed, err));
    out->dtype = source->dtype != source->entry->dtype ? source->dtype : packed.dtype;
    out->ndim = packed.ndim;
    uint64_t *shape = tsr_arena_array(w->job.arena, (size_t)packed.ndim + (source->fragments != NULL), sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    memcpy(shape, packed.shape, packed.ndim * sizeof *shape);
    out->shape = shape;
    out->in_mcore_data = source->in_mcore_data;
    if (!source->fragments) return TSR_OK;
    uint64_t offsets[TSR_MAX_NDIM];
    fragments_of_box(source->entry, source->fragments, NULL, NULL, offsets, shape);
    out->original_shape = source->entry->shape;
    out->original_ndim = out->ndim++;
    return TSR_OK;
}

static tsr_status describe(const writer *w, tsr_dcp_new_entry **out, tsr_error *err)
{
    const tsr_dcp_job *job = &w->job;
    tsr_dcp_new_entry *entries = tsr_arena_array(job->arena, job->source_count, sizeof *entries, err);
    tsr_dcp_new_item *items = tsr_arena_array(job->arena, job->piece_count, sizeof *items, err);
    if (!entries || !items) return TSR_E_NOMEM;
    for (size_t s = 0; s < job->source_count; s++) TSR_TRY(describe_entry(w, &job->sources[s], &entries[s], err));
    for (size_t i = 0; i < job->piece_count; i++) entries[job->pieces[i].source].item_count++;
    size_t at = 0;
    for (size_t s = 0; s < job->source_count; s++) {
        entries[s].items = items + at;
        at += entries[s].item_count;
        entries[s].item_count = 0;
    }
    for (size_t i = 0; i < job->piece_count; i++) {
        tsr_dcp_new_entry *entry = &entries[job->pieces[i].source];
        TSR_TRY(describe_item(w, i, entry, (tsr_dcp_new_item *)&entry->items[entry->item_count++], err));
    }
    *out = entries;
    return TSR_OK;
}

static tsr_status write_metadata(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    const writer *w = ctx;
    tsr_dcp_new_entry *entries;
    TSR_TRY(describe(w, &entries, err));
    const tsr_str id = tsr_dcp_save_id(entries, w->job.source_count, w->content, w->job.arena, err);
    if (!id.data) return TSR_E_NOMEM;
    tsr_vec text = tsr_vec_of(w->host->allocator, 1);
    const tsr_dcp_new_metadata metadata = {entries, w->job.source_count, id, w->job.for_torch, w->job.unsummed};
    tsr_status status = tsr_dcp_metadata_write(&metadata, w->host, &text, err);
    if (status == TSR_OK) status = output->create(output, TSR_STR(".metadata"), text.count, marker, err);
    if (status == TSR_OK) status = output->write_at(output, *marker, 0, text.items, text.count, err);
    tsr_vec_free(&text);
    return status;
}

/* ---- the whole checkpoint ---- */

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    writer *w = ctx;
    (void)number, (void)arena, (void)err;
    *out = (tsr_stage){
        .write_items = w->write_items, .count = w->count, .behind = finish_tensor, .rest = finish_objects, .ctx = w};
    return TSR_OK;
}

tsr_status tsr_dcp_lay_out(tsr_dcp_job *job, tsr_writer *out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(job->checkpoint);
    writer *w = TSR_ARENA_NEW(job->arena, writer, err);
    item *items = tsr_arena_array(job->arena, job->piece_count, sizeof *items, err);
    job->file_sizes = tsr_arena_array(job->arena, job->file_count, sizeof *job->file_sizes, err);
    if (!w || !items || !job->file_sizes) return TSR_E_NOMEM;
    job->byte_total = 0;
    *w = (writer){.job = *job,
                  .host = host,
                  .items = items,
                  .placed_items = tsr_vec_of(host->allocator, sizeof(placed_item)),
                  .room = tsr_torch_plan_room(job->checkpoint)};
    tsr_status status = lay_out(w, err);
    if (status == TSR_OK) status = order_write_items(w, err);
    tsr_vec_free(&w->placed_items);
    job->byte_total = w->job.byte_total;
    *out = (tsr_writer){.stage_count = 1, .crc = !w->job.unsummed, .stage = stage_of, .finish = write_metadata, .ctx = w};
    return status;
}

enum { REPR_BYTES = 1000, VALUE_DEPTH = 59 /* four containers are open around a value, the emitter allows 63 */ };

void tsr_put_dtype_and_shape(tsr_json *json, const tsr_entry *entry)
{
    tsr_json_put_text(json, "dtype", tsr_dtype_describe(entry->dtype)->name);
    if (entry->kind == TSR_ENTRY_OPAQUE && !entry->shape) return; /* the shape is unknown */
    tsr_json_put_u64s(json, "shape", entry->shape, entry->ndim);
}

enum { NAME_BYTES = 512, MOST_NESTED = 8 };

/* A name of a part inside others, joined by dots. */
typedef struct part_name {
    char text[NAME_BYTES];
    size_t size, depth;
} part_name;

static void put_tensor(tsr_json *json, const part_name *name, const tsr_entry *tensor, bool shapes)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "name", (tsr_str){name->text, name->size});
    tsr_json_put_text(json, "dtype", tsr_dtype_describe(tensor->dtype)->name);
    if (shapes) tsr_json_put_u64s(json, "shape", tensor->shape, tensor->ndim);
    tsr_json_object_end(json);
}

/* Writes the tensors among some pairs, and those of subclasses among them. Those in a "state" count as direct members. */
static void put_tensors(tsr_json *json, const tsr_value *parts, bool nested, bool shapes, part_name *name)
{
    const size_t before = name->size;
    if (name->depth == MOST_NESTED) return;
    name->depth++;
    for (size_t i = 0; i + 1 < parts->count; i += 2) {
        const tsr_value *key = parts->items[i], *part = parts->items[i + 1];
        if (key->kind != TSR_VALUE_STR) continue;
        if (part->kind == TSR_VALUE_DICT && !nested && tsr_str_equal(key->text, TSR_STR("state")))
            put_tensors(json, part, true, shapes, name);
        const bool holds = part->kind == TSR_VALUE_OBJECT && part->count && part->items[0]->kind == TSR_VALUE_DICT;
        if ((part->kind != TSR_VALUE_TENSOR && !holds) || key->text.size + 1 >= sizeof name->text - before) continue;
        memcpy(name->text + before, key->text.data, key->text.size);
        name->size += key->text.size;
        if (part->kind == TSR_VALUE_TENSOR) {
            put_tensor(json, name, part->as.tensor, shapes);
        } else {
            name->text[name->size++] = '.';
            put_tensors(json, part->items[0], false, shapes, name);
        }
        name->size = before;
    }
    name->depth--;
}

/* Writes the inner tensors of a tensor that is not dense. For a sharded one, those of the first shard; their shapes are left
 * out, because they differ from shard to shard. */
static void put_inner(tsr_json *json, const tsr_entry *entry)
{
    const tsr_value *value = entry->value;
    if (value && entry->is_sharded && value->kind == TSR_VALUE_LIST) value = value->count ? value->items[0] : NULL;
    const bool parts = value && value->kind == TSR_VALUE_OBJECT && value->count && value->items[0]->kind == TSR_VALUE_DICT;
    if (entry->kind != TSR_ENTRY_OPAQUE || entry->dtype == TSR_DTYPE_NONE || !parts) return;
    tsr_json_put_array(json, "inner");
    part_name name = {.size = 0};
    put_tensors(json, value->items[0], false, !entry->is_sharded, &name);
    tsr_json_array_end(json);
}

void tsr_put_object(tsr_json *json, const tsr_entry *entry, const tsr_host *host)
{
    char text[REPR_BYTES];
    tsr_json_put_str(json, "type", entry->type);
    if (entry->kind == TSR_ENTRY_OPAQUE && entry->dtype != TSR_DTYPE_NONE) tsr_put_dtype_and_shape(json, entry);
    put_inner(json, entry);
    if (!entry->value) return;
    const tsr_value *member = tsr_enum_value(entry->value), *value = member ? member : entry->value;
    if (entry->kind == TSR_ENTRY_OBJECT && tsr_value_is_json(value, VALUE_DEPTH, host->limits.expansion)) {
        tsr_json_key(json, "value");
        tsr_json_value(json, value);
    } else {
        tsr_json_put_text(json, "repr", tsr_value_text(entry->value, text, sizeof text));
    }
}
