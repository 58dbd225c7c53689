/* Data files of a DCP checkpoint that are safetensors files ("images"): SerializationFormat.SAFETENSORS of FileSystemWriter.
 *
 *   [blobs of byte items] [u64 | header | data]     every tensor's record has the beginning of the image as its offset
 *
 * Only the header says where each tensor is, so it is read when the checkpoint is opened, and the chunks get their views. */
#include "formats/dcp/dcp_state.h"
#include "formats/safetensors/safetensors.h"
#include "tessera/sys/try.h"

#include "tessera/sys/catalog.h"

typedef struct images {
    tsr_checkpoint *checkpoint;
    tsr_arena *scratch;
    tsr_safetensors *opened; /* one per file of the store */
    bool *tried;
} images;

/* The header counts the single elements of a float4 tensor, the metadata pairs of them. */
static bool same_tensor(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_safetensors_tensor *tensor)
{
    uint32_t ndim = tensor->ndim;
    uint64_t last = ndim ? tensor->shape[ndim - 1] : 1;
    tsr_dtype dtype = tensor->dtype;
    if (ndim != entry->ndim || !tsr_dtype_pack(&dtype, &last) || dtype != entry->dtype) return false;
    for (uint32_t d = 0; d < ndim; d++) {
        if ((d + 1 == ndim ? last : tensor->shape[d]) != chunk->sizes[d]) return false;
    }
    return true;
}

static tsr_status find_bad_item(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_chunk *chunk, tsr_error *err,
                                const char *why)
{
    tsr_place place = {checkpoint->store->files[chunk->file].name, chunk->byte_offset, entry->fqn};
    chunk->file = TSR_NO_FILE;
    return tsr_finding_add(checkpoint->findings, "dcp/item", place, err, "'%.*s': %s", TSR_STR_ARG(entry->fqn), why);
}

/* Opens the header of the image that contains a chunk. If it cannot be read, its data is NULL and one finding is added. */
static tsr_status image_of(images *im, const tsr_chunk *chunk, const tsr_safetensors **out, tsr_error *err)
{
    tsr_checkpoint *checkpoint = im->checkpoint;
    const tsr_store_file *file = &checkpoint->store->files[chunk->file];
    tsr_error why = {0};
    *out = &im->opened[chunk->file];
    if (im->tried[chunk->file]) return TSR_OK;
    im->tried[chunk->file] = true;
    tsr_status status = tsr_safetensors_open(
        (tsr_range){checkpoint->store, chunk->file, chunk->byte_offset, file->size - chunk->byte_offset}, checkpoint->host,
        im->scratch, checkpoint->findings, &im->opened[chunk->file], &why);
    if (status == TSR_OK) return TSR_OK;
    im->opened[chunk->file] = (tsr_safetensors){0};
    return tsr_finding_add_failure(checkpoint->findings, "dcp/item", (tsr_place){file->name, why.byte_position, {NULL, 0}},
                                   &why, err);
}

static tsr_status view_in_image(images *im, const tsr_entry *entry, tsr_chunk *chunk, tsr_error *err)
{
    const tsr_safetensors *image;
    TSR_TRY(image_of(im, chunk, &image, err));
    if (!image->tensors) {
        chunk->file = TSR_NO_FILE;
        return TSR_OK;
    }
    const tsr_safetensors_tensor *tensor = tsr_safetensors_find(image, entry->fqn);
    if (!tensor)
        return find_bad_item(im->checkpoint, entry, chunk, err, "the safetensors header of its file does not list it");
    if (!same_tensor(entry, chunk, tensor)) {
        return find_bad_item(im->checkpoint, entry, chunk, err,
                             "the safetensors header of its file has a different dtype or shape than the metadata");
    }
    if (tensor->end > image->data_size)
        return find_bad_item(im->checkpoint, entry, chunk, err, "its bytes reach beyond the end of the file");
    tsr_view *view = TSR_ARENA_NEW(im->checkpoint->arena, tsr_view, err);
    if (!view) return TSR_E_NOMEM;
    *view = (tsr_view){.file = chunk->file, .byte_offset = image->data_offset + tensor->begin};
    chunk->view = view;
    return TSR_OK;
}

static tsr_status view_chunks(images *im, const tsr_entry *entry, const tsr_chunk *chunks, uint64_t count, tsr_error *err)
{
    const tsr_dcp_state *state = tsr_dcp_state_of(im->checkpoint);
    for (uint64_t i = 0; i < count; i++) {
        tsr_chunk *chunk = (tsr_chunk *)&chunks[i];
        if (chunk->file == TSR_NO_FILE || state->file_uses[chunk->file] != TSR_DCP_SAFETENSORS ||
            tsr_dcp_transform_of(state, chunk) != TSR_DCP_PLAIN)
            continue;
        TSR_TRY(view_in_image(im, entry, chunk, err));
    }
    return TSR_OK;
}

static tsr_status view_all(images *im, tsr_error *err)
{
    const tsr_catalog *catalog = &im->checkpoint->catalog;
    uint32_t files = im->checkpoint->store->file_count;
    im->opened = tsr_arena_array(im->scratch, files, sizeof *im->opened, err);
    im->tried = tsr_arena_array(im->scratch, files, sizeof *im->tried, err);
    if (!im->opened || !im->tried) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        status = view_chunks(im, entry, entry->chunks, entry->chunk_count, err);
        if (status == TSR_OK) status = view_chunks(im, entry, entry->replicas, entry->replica_count, err);
    }
    for (uint32_t f = 0; f < files; f++) tsr_safetensors_close(&im->opened[f]);
    return status;
}

tsr_status tsr_dcp_place_safetensors(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    bool any = false;
    for (uint32_t f = 0; f < checkpoint->store->file_count; f++) any |= state->file_uses[f] == TSR_DCP_SAFETENSORS;
    if (!any) return TSR_OK;
    images im = {.checkpoint = checkpoint, .scratch = tsr_arena_new(checkpoint->host->allocator, 0, err)};
    tsr_status status = im.scratch ? view_all(&im, err) : TSR_E_NOMEM;
    tsr_arena_free(im.scratch);
    return status;
}
