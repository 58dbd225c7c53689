/* Finds the files that belong to a checkpoint, for programs that replace or remove one. A file counts only if it is listed
 * somewhere: a name or an ending that is typical of checkpoints may belong to another program's file. */
#include "formats/common/weight_map.h"
#include "formats/dcp/dcp_state.h"
#include "formats/recognize/recognize.h"
#include "tessera/sys/try.h"

#include "tessera/sys/checkpoint_files.h"

static void own_chosen(const tsr_checkpoint *checkpoint, bool *owned)
{
    for (uint32_t i = 0; i < checkpoint->file_count; i++) owned[checkpoint->files[i]] = true;
}

/* Marks the index and the files named in its weight_map. */
static tsr_status own_mapped(tsr_checkpoint *checkpoint, bool *owned, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_weight_map map;
    tsr_checkpoint again = *checkpoint; /* separate findings: those of the index were already added when it was opened */
    again.missing = tsr_vec_of(allocator, sizeof(tsr_str));
    again.findings = tsr_findings_new(allocator, 0, err);
    const tsr_status status = again.findings ? tsr_weight_map_read(&again, &map, err) : TSR_E_NOMEM;
    if (status == TSR_OK) own_chosen(checkpoint, owned);
    for (uint32_t i = 0; status == TSR_OK && i < map.file_count; i++) owned[map.files[i]] = true;
    tsr_findings_free(again.findings);
    tsr_vec_free(&again.missing);
    return status;
}

tsr_status tsr_checkpoint_own_files(tsr_checkpoint *checkpoint, bool *owned, tsr_error *err)
{
    const uint32_t count = checkpoint->store->file_count;
    for (uint32_t f = 0; f < count; f++) owned[f] = false;
    switch (checkpoint->catalog.format) {
    case TSR_FORMAT_DCP:
    case TSR_FORMAT_MEGATRON_DIST:
        for (uint32_t f = 0; f < count; f++) owned[f] = tsr_dcp_state_of(checkpoint)->file_uses[f] != TSR_DCP_UNUSED;
        return TSR_OK;
    case TSR_FORMAT_SAFETENSORS_INDEX:
    case TSR_FORMAT_TORCH_INDEX: return own_mapped(checkpoint, owned, err);
    case TSR_FORMAT_DCP_SAFETENSORS:
    case TSR_FORMAT_SHARDS:
    case TSR_FORMAT_TORCH_RANKS: own_chosen(checkpoint, owned); return TSR_OK;
    default: return TSR_OK;
    }
}

tsr_status tsr_store_file_role(tsr_store *store, uint32_t file, tsr_file_role *role, tsr_error *err)
{
    const tsr_str name = store->files[file].name;
    tsr_content content;
    const char *foreign;
    *role = TSR_ROLE_NONE;
    if (memchr(name.data, '/', name.size)) return TSR_OK;
    if (tsr_str_ends(name, TSR_STR(".metadata")) || tsr_str_ends(name, TSR_STR(".index.json"))) {
        *role = TSR_ROLE_MARKER;
        return TSR_OK;
    }
    if (tsr_str_ends(name, TSR_STR(".distcp"))) {
        if (store->files[file].size) *role = TSR_ROLE_TENSORS; /* an empty file is from a rank that had nothing to write */
        return TSR_OK;
    }
    TSR_TRY(tsr_content_of(store, file, &content, &foreign, err));
    const bool named = content == TSR_CONTENT_UNKNOWN && tsr_str_ends(name, TSR_STR(".safetensors"));
    if (named || content == TSR_CONTENT_SAFETENSORS || content == TSR_CONTENT_TORCH_ZIP ||
        content == TSR_CONTENT_TORCH_LEGACY)
        *role = TSR_ROLE_TENSORS;
    return TSR_OK;
}
