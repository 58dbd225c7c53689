/* What a checkpoint that is not whole may still be used for. */
#include "base/try.h"
#include "formats/name_list.h"
#include "formats/reader.h"

tsr_status tsr_checkpoint_is_incomplete(tsr_checkpoint *checkpoint, tsr_str file, tsr_str message, tsr_error *err)
{
    if (!message.data) return TSR_E_NOMEM;
    if (!checkpoint->incomplete.size) checkpoint->incomplete = message;
    return tsr_find(checkpoint->findings, "parts/incomplete-save", (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, err, "%.*s",
                    TSR_STR_ARG(message));
}

static bool is_selected(const tsr_checkpoint *checkpoint, tsr_str fqn)
{
    const tsr_open_options *options = &checkpoint->options;
    return !options->selects || options->selects(options->selects_ctx, fqn);
}

static tsr_status refuse_per_rank(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_name_list names = {.used = 0};
    for (uint64_t i = 0; i < checkpoint->catalog.entry_count; i++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[i];
        if (entry->per_rank && is_selected(checkpoint, entry->fqn)) tsr_name_list_add(&names, entry->fqn);
    }
    if (names.count == 0) return TSR_OK;
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                     "%llu %s not equal on all ranks: %s%s; joining them takes a map of how the ranks' tensors form one "
                     "(--shards MAP), which this version cannot read yet",
                     (unsigned long long)names.count, names.count == 1 ? "tensor is" : "tensors are", names.text,
                     tsr_name_list_rest(&names));
}

tsr_status tsr_checkpoint_require(const tsr_checkpoint *checkpoint, tsr_purpose purpose, tsr_error *err)
{
    const bool listing = purpose == TSR_FOR_NAMES && !checkpoint->names_unknown;
    if (purpose == TSR_FOR_FINDINGS || (listing && checkpoint->incomplete.size)) return TSR_OK;
    TSR_FAIL_IF(checkpoint->incomplete.size, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "%.*s",
                TSR_STR_ARG(checkpoint->incomplete));
    return purpose == TSR_FOR_VALUES ? refuse_per_rank(checkpoint, err) : TSR_OK;
}
