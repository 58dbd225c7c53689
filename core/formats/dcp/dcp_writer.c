/* Writes Metadata {state_dict_metadata, planner_data, storage_data, storage_meta, version}. Each object is created from its
 * class by name, without arguments, and then gets its attributes as a dict, which is how dataclasses are pickled. An absent
 * attribute has the default of its class, so attributes that only newer versions know can be left out for older ones.
 *
 * Source: torch/distributed/checkpoint/metadata.py and filesystem.py of PyTorch 2.3 to 2.15, and files that these versions
 * wrote. */
#include "tessera/sys/dcp_item.h"

#include "codec/pickle.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/end_sum.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

#define METADATA_MODULE "torch.distributed.checkpoint.metadata"
#define STORAGE_MODULE  "torch.distributed.checkpoint.filesystem"

static void put_class(tsr_pickler *p, const char *module, const char *name)
{
    tsr_pickler_global(p, tsr_str_from(module), tsr_str_from(name));
}

static void put_key(tsr_pickler *p, const char *key)
{
    tsr_pickler_str(p, tsr_str_from(key));
}

/* Begins an instance. Its attributes follow, then end_instance. */
static void begin_instance(tsr_pickler *p, const char *module, const char *name)
{
    put_class(p, module, name);
    tsr_pickler_tuple(p, 0);
    tsr_pickler_newobj(p);
    tsr_pickler_empty_dict(p);
    tsr_pickler_mark(p);
}

static void end_instance(tsr_pickler *p)
{
    tsr_pickler_setitems(p);
    tsr_pickler_build(p);
}

static void put_size(tsr_pickler *p, const uint64_t *numbers, uint32_t ndim)
{
    put_class(p, "torch", "Size");
    if (ndim > 3) tsr_pickler_mark(p);
    for (uint32_t d = 0; d < ndim; d++) tsr_pickler_uint(p, numbers[d]);
    tsr_pickler_tuple(p, ndim);
    tsr_pickler_tuple(p, 1);
    tsr_pickler_reduce(p);
}

static void put_strides(tsr_pickler *p, const tsr_dcp_new_entry *entry)
{
    if (entry->ndim > 3) tsr_pickler_mark(p);
    for (uint32_t d = 0; d < entry->ndim; d++) {
        uint64_t stride = 1;
        for (uint32_t i = d + 1; i < entry->ndim; i++) stride *= entry->shape[i] ? entry->shape[i] : 1;
        tsr_pickler_uint(p, stride);
    }
    tsr_pickler_tuple(p, entry->ndim);
}

/* The state of TensorProperties is a tuple: dtype, layout, requires_grad, memory format, pin_memory, and strides. */
static void put_properties(tsr_pickler *p, const tsr_dcp_new_entry *entry, bool strides)
{
    put_class(p, METADATA_MODULE, "TensorProperties");
    tsr_pickler_tuple(p, 0);
    tsr_pickler_newobj(p);
    tsr_pickler_mark(p);
    put_class(p, "torch", tsr_dtype_describe(entry->dtype)->name);
    put_class(p, "torch.serialization", "_get_layout");
    put_key(p, "torch.strided");
    tsr_pickler_tuple(p, 1);
    tsr_pickler_reduce(p);
    tsr_pickler_bool(p, entry->requires_grad);
    put_class(p, METADATA_MODULE, "_MEM_FORMAT_ENCODING");
    tsr_pickler_int(p, 0);
    tsr_pickler_tuple(p, 1);
    tsr_pickler_reduce(p);
    tsr_pickler_bool(p, false);
    if (strides) put_strides(p, entry);
    tsr_pickler_tuple(p, strides ? 6 : 5);
    tsr_pickler_build(p);
}

static void put_tensor(tsr_pickler *p, const tsr_dcp_new_entry *entry, bool strides)
{
    begin_instance(p, METADATA_MODULE, "TensorStorageMetadata");
    put_key(p, "properties");
    put_properties(p, entry, strides);
    put_key(p, "size");
    put_size(p, entry->shape, entry->ndim);
    put_key(p, "chunks");
    tsr_pickler_empty_list(p);
    tsr_pickler_mark(p);
    for (uint64_t i = 0; i < entry->item_count; i++) {
        begin_instance(p, METADATA_MODULE, "ChunkStorageMetadata");
        put_key(p, "offsets");
        put_size(p, entry->items[i].offsets, entry->ndim);
        put_key(p, "sizes");
        put_size(p, entry->items[i].sizes, entry->ndim);
        end_instance(p);
    }
    tsr_pickler_appends(p);
    end_instance(p);
}

static void put_state_dict_metadata(tsr_pickler *p, const tsr_dcp_new_metadata *metadata)
{
    const bool strides = metadata->for_torch >= TSR_TORCH_WITH_STRIDES;
    tsr_pickler_empty_dict(p);
    tsr_pickler_mark(p);
    for (uint64_t i = 0; i < metadata->count; i++) {
        tsr_pickler_str(p, metadata->entries[i].fqn);
        if (metadata->entries[i].tensor) {
            put_tensor(p, &metadata->entries[i], strides);
            continue;
        }
        put_class(p, METADATA_MODULE, "BytesStorageMetadata");
        tsr_pickler_tuple(p, 0);
        tsr_pickler_newobj(p);
    }
    tsr_pickler_setitems(p);
}

static tsr_status put_path(tsr_pickler *p, const tsr_dcp_new_entry *entry, tsr_arena *arena, tsr_error *err)
{
    if (entry->path_length > 3) tsr_pickler_mark(p);
    for (uint32_t i = 0; i < entry->path_length; i++) {
        const tsr_path_item *item = &entry->path[i];
        if (item->kind == TSR_PATH_INDEX) {
            tsr_pickler_int(p, item->integer);
        } else if (item->kind == TSR_PATH_KEY) {
            tsr_pickler_str(p, item->key);
        } else {
            const tsr_str text = tsr_arena_format(arena, err, "%lld", (long long)item->integer);
            if (!text.data) return TSR_E_NOMEM;
            tsr_pickler_str(p, text);
        }
    }
    tsr_pickler_tuple(p, entry->path_length);
    return TSR_OK;
}

static tsr_status put_planner_data(tsr_pickler *p, const tsr_dcp_new_entry *entries, uint64_t count, tsr_arena *arena,
                                   tsr_error *err)
{
    tsr_pickler_empty_dict(p);
    tsr_pickler_mark(p);
    for (uint64_t i = 0; i < count; i++) {
        tsr_pickler_str(p, entries[i].fqn);
        TSR_TRY(put_path(p, &entries[i], arena, err));
    }
    tsr_pickler_setitems(p);
    return TSR_OK;
}

static void put_index(tsr_pickler *p, const tsr_dcp_new_entry *entry, uint64_t item)
{
    begin_instance(p, METADATA_MODULE, "MetadataIndex");
    put_key(p, "fqn");
    tsr_pickler_str(p, entry->fqn);
    put_key(p, "offset");
    if (entry->tensor) {
        put_size(p, entry->items[item].offsets, entry->ndim);
    } else {
        tsr_pickler_none(p);
    }
    put_key(p, "index");
    if (entry->tensor) {
        tsr_pickler_uint(p, item);
    } else {
        tsr_pickler_none(p);
    }
    end_instance(p);
}

static void put_storage_data(tsr_pickler *p, const tsr_dcp_new_entry *entries, uint64_t count)
{
    tsr_pickler_empty_dict(p);
    tsr_pickler_mark(p);
    for (uint64_t i = 0; i < count; i++) {
        for (uint64_t k = 0; k < entries[i].item_count; k++) {
            const tsr_dcp_new_item *item = &entries[i].items[k];
            put_index(p, &entries[i], k);
            begin_instance(p, STORAGE_MODULE, "_StorageInfo");
            put_key(p, "relative_path");
            tsr_pickler_str(p, item->file);
            put_key(p, "offset");
            tsr_pickler_uint(p, item->byte_offset);
            put_key(p, "length");
            tsr_pickler_uint(p, item->byte_length);
            end_instance(p);
        }
    }
    tsr_pickler_setitems(p);
}

static bool has_mcore_data(const tsr_dcp_new_entry *entries, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (entries[i].in_mcore_data) return true;
    return false;
}

static void put_mcore_data(tsr_pickler *p, const tsr_dcp_new_entry *entries, uint64_t count)
{
    tsr_pickler_empty_dict(p);
    tsr_pickler_mark(p);
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t ndim = entries[i].original_ndim;
        if (!entries[i].in_mcore_data) continue;
        tsr_pickler_str(p, entries[i].fqn);
        tsr_pickler_empty_dict(p);
        if (!entries[i].original_shape) continue;
        tsr_pickler_mark(p);
        put_key(p, "nd_reformulated_orig_global_shape");
        if (ndim > 3) tsr_pickler_mark(p);
        for (uint32_t d = 0; d < ndim; d++) tsr_pickler_uint(p, entries[i].original_shape[d]);
        tsr_pickler_tuple(p, ndim);
        tsr_pickler_setitems(p);
    }
    tsr_pickler_setitems(p);
}

static void put_storage_meta(tsr_pickler *p, tsr_str save_id)
{
    begin_instance(p, METADATA_MODULE, "StorageMeta");
    put_key(p, "checkpoint_id");
    tsr_pickler_none(p);
    put_key(p, "save_id");
    tsr_pickler_str(p, save_id);
    put_key(p, "load_id");
    tsr_pickler_none(p);
    put_key(p, "modules");
    tsr_pickler_empty_list(p);
    end_instance(p);
}

tsr_status tsr_dcp_metadata_write(const tsr_dcp_new_metadata *metadata, const tsr_host *host, tsr_vec *out, tsr_error *err)
{
    const tsr_dcp_new_entry *entries = metadata->entries;
    const uint64_t count = metadata->count;
    tsr_pickler p;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_pickler_open(&p, 4, host->allocator, out, err);
    begin_instance(&p, METADATA_MODULE, "Metadata");
    put_key(&p, "state_dict_metadata");
    put_state_dict_metadata(&p, metadata);
    put_key(&p, "planner_data");
    tsr_status status = put_planner_data(&p, entries, count, arena, err);
    put_key(&p, "storage_data");
    put_storage_data(&p, entries, count);
    if (!metadata->for_torch || metadata->for_torch >= TSR_TORCH_WITH_STORAGE_META) {
        put_key(&p, "storage_meta");
        put_storage_meta(&p, metadata->save_id);
    }
    put_key(&p, "version");
    put_key(&p, "1.0.0");
    if (has_mcore_data(entries, count)) {
        put_key(&p, "mcore_data");
        put_mcore_data(&p, entries, count);
    }
    end_instance(&p);
    if (status == TSR_OK) status = tsr_pickler_finish(&p);
    tsr_pickler_close(&p);
    tsr_arena_free(arena);
    return status == TSR_OK && !metadata->unsummed ? tsr_end_sum_append(out, host, err) : status;
}

static uint32_t note(uint32_t crc, uint64_t number)
{
    uint8_t bytes[8];
    tsr_store_le(bytes, number, sizeof bytes);
    return tsr_crc32(NULL, crc, bytes, sizeof bytes);
}

tsr_str tsr_dcp_save_id(const tsr_dcp_new_entry *entries, uint64_t count, uint32_t content, tsr_arena *arena, tsr_error *err)
{
    uint32_t names = 0, places = 0;
    for (uint64_t e = 0; e < count; e++) {
        names = note(tsr_crc32(NULL, names, entries[e].fqn.data, entries[e].fqn.size), entries[e].fqn.size);
        for (uint64_t i = 0; i < entries[e].item_count; i++)
            places = note(note(places, entries[e].items[i].byte_offset), entries[e].items[i].byte_length);
    }
    const uint32_t mixed = note(note(names, places), content);
    return tsr_arena_format(arena, err, "%08x-%04x-%04x-%04x-%04x%08x", (unsigned)names, (unsigned)(places >> 16),
                            (unsigned)(places & 0xffff), (unsigned)(mixed >> 16), (unsigned)(mixed & 0xffff),
                            (unsigned)content);
}

/* ---- items ---- */

/* Writes what surrounds a tensor's bytes in a DCP item, and whole items of objects. */

static tsr_status plan_tensor(const tsr_dcp_box *box, const tsr_host *host, tsr_arena *arena, tsr_torch_archive *out,
                              tsr_error *err)
{
    uint64_t elements;
    const tsr_entry entry = {.kind = TSR_ENTRY_TENSOR, .dtype = box->dtype, .ndim = box->ndim, .shape = box->sizes};
    const tsr_value root = {.kind = TSR_VALUE_TENSOR, .as.tensor = &entry};
    const tsr_torch_new_tensor tensor = {.entry = &entry, .ndim = box->ndim, .sizes = box->sizes};
    tsr_torch_new_storage storage = {.dtype = box->dtype};
    TSR_FAIL_IF(!tsr_box_volume((tsr_box){box->ndim, NULL, box->sizes}, &elements) ||
                    !tsr_dtype_bytes(box->dtype, elements, &storage.byte_length),
                err, TSR_E_LIMIT, "dcp: a box of %s is too large", tsr_dtype_describe(box->dtype)->name);
    const tsr_torch_tree tree = {&root, &tensor, 1, &storage, 1, NULL, false};
    return tsr_torch_archive_plan(&tree, host, arena, out, err);
}

tsr_status tsr_dcp_item_around(const tsr_dcp_box *box, const tsr_host *host, tsr_vec *head, tsr_vec *tail, tsr_error *err)
{
    uint64_t at;
    tsr_torch_archive archive;
    tsr_arena *passing = tsr_arena_new(host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = plan_tensor(box, host, passing, &archive, err);
    if (status == TSR_OK) archive.members[archive.first_storage].crc32 = box->crc32;
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 0, head, &at, err);
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 1, tail, &at, err);
    tsr_arena_free(passing);
    return status;
}

tsr_status tsr_dcp_item_object(const tsr_value *value, const tsr_host *host, tsr_vec *out, tsr_error *err)
{
    uint64_t at;
    tsr_torch_archive archive;
    const tsr_torch_tree tree = {.root = value};
    tsr_arena *passing = tsr_arena_new(host->allocator, 0, err);
    if (!passing) return TSR_E_NOMEM;
    tsr_status status = tsr_torch_archive_plan(&tree, host, passing, &archive, err);
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 0, out, &at, err);
    tsr_arena_free(passing);
    return status;
}

static tsr_status append_piece(const tsr_dcp_pickled *item, uint32_t at, const tsr_host *host, tsr_arena *passing,
                               tsr_vec *out, tsr_error *err)
{
    uint64_t byte_at;
    tsr_torch_archive archive;
    tsr_torch_new_storage *storages = tsr_arena_array(passing, (size_t)item->storage_count + 1, sizeof *storages, err);
    if (!storages) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < item->storage_count; i++) storages[i].byte_length = item->byte_lengths[i];
    const tsr_torch_tree tree = {.storages = storages, .storage_count = item->storage_count, .unsummed = item->unsummed};
    TSR_TRY(tsr_torch_archive_around(item->pickle, &tree, host, passing, &archive, err));
    for (uint32_t i = 0; i < at; i++) archive.members[archive.first_storage + i].crc32 = item->crcs[i];
    return tsr_torch_archive_piece(&archive, at, out, &byte_at, err);
}

tsr_status tsr_dcp_item_piece(const tsr_dcp_pickled *item, uint32_t at, const tsr_host *host, tsr_vec *out, tsr_error *err)
{
    tsr_arena *passing = tsr_arena_new(host->allocator, 0, err);
    const tsr_status status = passing ? append_piece(item, at, host, passing, out, err) : TSR_E_NOMEM;
    tsr_arena_free(passing);
    return status;
}
