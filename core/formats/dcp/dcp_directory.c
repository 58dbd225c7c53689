/* Recognizes a DCP's directory: by .metadata, by the __R.metadata of its ranks, or by data files that have lost theirs. */
#include "formats/common/file_names.h"
#include "tessera/sys/try.h"

#define METADATA ".metadata"
#define DATA     ".distcp"

static bool is_data(tsr_str name)
{
    return tsr_str_ends(name, TSR_STR(DATA)) && !memchr(name.data, '/', name.size);
}

/* Whether the root contains data files, but no metadata file that is not empty. */
static tsr_status lacks_metadata(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    bool data = false;
    (void)err;
    *is = false;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        const bool describes =
            tsr_str_equal(name, TSR_STR(METADATA)) || tsr_number_in(name, TSR_STR("__"), TSR_STR(METADATA)) != TSR_NO_NUMBER;
        if (describes && store->files[f].size) return TSR_OK;
        data = data || is_data(name);
    }
    *is = data;
    return TSR_OK;
}

static tsr_status open_without_metadata(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    tsr_shown_names data = {.used = 0};
    for (uint32_t f = 0; f < store->file_count; f++)
        if (is_data(store->files[f].name)) tsr_shown_names_add(&data, store->files[f].name);
    const bool empty = tsr_has_file(store, METADATA), left = tsr_has_file(store, METADATA ".tmp");
    checkpoint->names_unknown = true;
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err,
        "'.metadata' %s next to DCP data files (%s%s): the save was interrupted, or the file was not copied; "
        "copy it from where the checkpoint was written, or rebuild it with `tessera repair`",
        empty  ? "is empty"
        : left ? "is missing and only '.metadata.tmp' is there"
               : "is missing",
        data.text, tsr_shown_names_rest(&data));
    return tsr_checkpoint_is_incomplete(checkpoint, TSR_STR(METADATA), message, err);
}

static tsr_status has_metadata(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const uint32_t whole = tsr_store_find(store, TSR_STR(METADATA)), *rank = checkpoint->options.metadata_rank;
    tsr_numbered_files files;
    *is = whole != TSR_NO_FILE;
    if (*is) return tsr_choose_files(checkpoint, &(tsr_numbered_file){.file = whole}, 1, err);
    TSR_TRY(tsr_list_numbered(checkpoint, TSR_STR("__"), TSR_STR(METADATA), &files, err));
    uint32_t kept = 0, chosen = 0;
    for (uint32_t i = 0; i < files.count; i++)
        if (store->files[files.items[i].file].size) files.items[kept++] = files.items[i];
    *is = kept > 0;
    if (!*is) return TSR_OK;
    if (!rank) return tsr_choose_files(checkpoint, files.items, kept, err);
    while (chosen < kept && files.items[chosen].number != *rank) chosen++;
    TSR_FAIL_IF(chosen == kept, err, TSR_E_NOT_FOUND,
                "every rank wrote its own metadata, and '__%u.metadata' is not among the %u files", *rank, kept);
    return tsr_choose_files(checkpoint, &files.items[chosen], 1, err);
}

const tsr_reader tsr_reader_dcp_without_metadata = {
    .format = TSR_FORMAT_DCP, .is_rare = true, .is_interrupted = true, .open = open_without_metadata};
const tsr_directory tsr_directory_dcp_without_metadata = {.reader = &tsr_reader_dcp_without_metadata,
                                                          .recognizes = lacks_metadata};
const tsr_directory tsr_directory_dcp = {
    .reader = &tsr_reader_dcp,
    .recognizes = has_metadata,
    .marker = METADATA,
    .data = DATA,
    .data_is = "a data file of a DCP checkpoint; name the directory that contains it and its .metadata"};
