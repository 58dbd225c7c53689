/* Opens whatever a store contains: recognizes the format, calls its reader, builds the index of names, and does what all
 * formats have in common. */
#include <inttypes.h>

#include "formats/common/incomplete.h"
#include "formats/common/name_index.h"
#include "formats/dcp/dcp_state.h"
#include "formats/folders/folders.h"
#include "formats/megatron/megatron.h"
#include "formats/recognize/recognize.h"
#include "formats/shards/shards_join.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/options.h"
#include "tessera/sys/try.h"

static tsr_str file_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    if (entry->chunk_count == 0 || entry->chunks[0].file == TSR_NO_FILE) return TSR_STR("the metadata");
    return checkpoint->store->files[entry->chunks[0].file].name;
}

static tsr_status index_names(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    uint64_t duplicate;
    TSR_FAIL_IF(catalog->entry_count > checkpoint->host->limits.entries, err, TSR_E_LIMIT,
                "%" PRIu64 " entries; the limit is %" PRIu64, catalog->entry_count, checkpoint->host->limits.entries);
    TSR_TRY(tsr_name_index_new(checkpoint->host->allocator, TSR_NAMED_ITEMS(catalog->entries, catalog->entry_count),
                               &checkpoint->index, &duplicate, err));
    if (duplicate == TSR_NO_NAME) return TSR_OK;
    const tsr_entry *second = &catalog->entries[duplicate];
    const tsr_entry *first = &catalog->entries[tsr_name_index_find(checkpoint->index, second->fqn)];
    return tsr_fail(err, TSR_E_FORMAT, "two entries have the name '%.*s': one in %.*s, one in %.*s",
                    TSR_STR_ARG(second->fqn), TSR_STR_ARG(file_of(checkpoint, first)),
                    TSR_STR_ARG(file_of(checkpoint, second)));
}

/* Copies the file names into the catalog, for modules that name files without reading the store. */
static tsr_status list_files(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    tsr_str *names = tsr_arena_array(checkpoint->arena, store->file_count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < store->file_count; i++) names[i] = store->files[i].name;
    checkpoint->catalog.file_names = names;
    return TSR_OK;
}

static tsr_status choose_reader(tsr_checkpoint *checkpoint, const tsr_form *form, const tsr_reader **reader, tsr_error *err)
{
    if (!form) {
        TSR_TRY(tsr_enter_step(checkpoint, err));
        return tsr_recognize(checkpoint, reader, err);
    }
    *reader = form->reader;
    checkpoint->files = form->files;
    checkpoint->file_count = form->count;
    return TSR_OK;
}

/* Metadata written by Megatron-Core is recognized by its additional attributes, even if the other files of that format are
 * missing. */
static tsr_status refine_dcp(tsr_checkpoint *checkpoint, tsr_error *err)
{
    if (checkpoint->reader != &tsr_reader_dcp || !tsr_dcp_state_of(checkpoint)->is_megatron) return TSR_OK;
    TSR_TRY(tsr_host_load(checkpoint->host, err));
    checkpoint->reader = &tsr_reader_megatron;
    checkpoint->catalog.format = tsr_reader_megatron.format;
    return tsr_megatron_refine(checkpoint, err);
}

/* Without it, a checkpoint of which nothing was read would look like one that was found to be in order. */
static tsr_status report_empty(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    if (checkpoint->catalog.entry_count || checkpoint->catalog.mapping_count || checkpoint->names_unknown ||
        checkpoint->options.part.size)
        return TSR_OK;
    for (size_t i = 0; i < tsr_findings_count(checkpoint->findings); i++)
        if (strcmp(tsr_findings_at(checkpoint->findings, i)->rule->id, "safetensors/no-tensors") == 0) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "container/empty", TSR_NOWHERE, err,
                           "the checkpoint has no entries, so there was nothing to check");
}

static tsr_status read_checkpoint(tsr_checkpoint *checkpoint, const tsr_form *form, tsr_error *err)
{
    const tsr_reader *reader;
    TSR_TRY(choose_reader(checkpoint, form, &reader, err));
    checkpoint->catalog.format = reader->format;
    checkpoint->catalog.store = checkpoint->store;
    TSR_TRY(list_files(checkpoint, err));
    if (reader->is_rare) TSR_TRY(tsr_host_load(checkpoint->host, err));
    TSR_TRY(reader->open(checkpoint, err));
    checkpoint->reader = reader;
    TSR_TRY(refine_dcp(checkpoint, err));
    if (checkpoint->joined_ranks) TSR_TRY(tsr_shards_join(checkpoint, err));
    TSR_TRY(tsr_keep_part(checkpoint, err));
    TSR_TRY(index_names(checkpoint, err));
    TSR_TRY(report_empty(checkpoint, err));
    TSR_TRY(tsr_check_files_complete(checkpoint, err));
    TSR_TRY(tsr_check_lightning(checkpoint, err));
    TSR_TRY(tsr_check_accelerate(checkpoint, err));
    return tsr_checkpoint_require(checkpoint, checkpoint->options.purpose, err);
}

static tsr_status open_as(tsr_store *store, const tsr_host *host, const tsr_open_options *options, const tsr_form *form,
                          tsr_checkpoint **out, tsr_error *err)
{
    tsr_open_options own;
    *out = NULL;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_open_options, err));
    tsr_checkpoint *checkpoint = tsr_alloc(host->allocator, 1, sizeof *checkpoint, err);
    if (!checkpoint) return TSR_E_NOMEM;
    *checkpoint = (tsr_checkpoint){.store = store,
                                   .given = store,
                                   .entered = tsr_vec_of(host->allocator, sizeof(tsr_store *)),
                                   .host = host,
                                   .opens = open_as,
                                   .missing = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .implied = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .expansion = host->limits.expansion};
    checkpoint->options = own;
    size_t bound = host->limits.memory_bytes < SIZE_MAX ? (size_t)host->limits.memory_bytes : SIZE_MAX;
    checkpoint->arena = tsr_arena_new(host->allocator, bound, err);
    checkpoint->findings = checkpoint->arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    tsr_status status = checkpoint->findings ? read_checkpoint(checkpoint, form, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = checkpoint;
    else tsr_checkpoint_close(checkpoint);
    return status;
}

tsr_status tsr_checkpoint_open(tsr_store *store, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                               tsr_error *err)
{
    return open_as(store, host, options, NULL, out, err);
}
