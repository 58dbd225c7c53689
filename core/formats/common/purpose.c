/* Decides what an incomplete checkpoint may still be used for. */
#include "formats/common/file_names.h"
#include "formats/common/reader.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

tsr_status tsr_checkpoint_implies(tsr_checkpoint *checkpoint, tsr_str file, tsr_error *err)
{
    if (!checkpoint->implied.allocator || !file.size || tsr_store_find(checkpoint->store, file) != TSR_NO_FILE)
        return TSR_OK;
    tsr_str *implied = tsr_vec_push(&checkpoint->implied, err);
    if (!implied) return TSR_E_NOMEM;
    *implied = tsr_arena_str(checkpoint->arena, file, err);
    return implied->data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_checkpoint_is_incomplete(tsr_checkpoint *checkpoint, tsr_str file, tsr_str message, tsr_error *err)
{
    if (!message.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_checkpoint_implies(checkpoint, file, err));
    if (!checkpoint->incomplete.size) checkpoint->incomplete = message;
    return tsr_finding_add(checkpoint->findings, "parts/incomplete-save", (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, err,
                           "%.*s", TSR_STR_ARG(message));
}

static bool is_selected(const tsr_checkpoint *checkpoint, tsr_str fqn)
{
    const tsr_open_options *options = &checkpoint->options;
    return !options->selects || options->selects(options->selects_ctx, fqn);
}

static tsr_status refuse_per_rank(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    for (uint64_t i = 0; i < checkpoint->catalog.entry_count; i++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[i];
        if (entry->per_rank && is_selected(checkpoint, entry->fqn)) tsr_shown_names_add(&names, entry->fqn);
    }
    if (names.count == 0) return TSR_OK;
    const bool one = names.count == 1;
    TSR_FAIL_IF(checkpoint->joined_ranks, err, TSR_E_UNSUPPORTED,
                "%llu %s no rule in the --shards map: %s%s; add a rule, or leave %s out with --exclude (convert, reshard, "
                "plan, layout, manifest)",
                (unsigned long long)names.count, one ? "tensor has" : "tensors have", names.text,
                tsr_shown_names_rest(&names), one ? "it" : "them");
    TSR_FAIL_IF(
        checkpoint->catalog.format == TSR_FORMAT_DEEPSPEED, err, TSR_E_UNSUPPORTED,
        "%llu %s between the ranks of DeepSpeed, which cannot be joined (--shards only joins files of plain tensors): %s%s; leave "
        "%s out with --exclude (convert, reshard, plan, layout, manifest)",
        (unsigned long long)names.count, one ? "tensor differs" : "tensors differ", names.text, tsr_shown_names_rest(&names),
        one ? "it" : "them");
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "%llu %s between ranks: %s%s; pass --shards MAP to join %s (a tessera.shards/1 file, or meta-llama, "
                    "megatron-gpt or vllm), or leave %s out with --exclude (convert, reshard, plan, layout, manifest)",
                    (unsigned long long)names.count, one ? "tensor differs" : "tensors differ", names.text,
                    tsr_shown_names_rest(&names), one ? "it" : "them", one ? "it" : "them");
}

/* Rejects selected entries that are named in an index but are in no file: nothing but their names is known. */
static tsr_status refuse_missing(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_str first = {NULL, 0};
    tsr_shown_names others = {.used = 0}, files = {.used = 0};
    const tsr_str *missing = checkpoint->missing.items;
    for (uint64_t i = 0; i < checkpoint->catalog.entry_count; i++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[i];
        const bool lost = entry->kind == TSR_ENTRY_OPAQUE && !entry->value && tsr_str_equal(entry->type, TSR_STR("missing"));
        if (!lost || !is_selected(checkpoint, entry->fqn)) continue;
        if (first.data) tsr_shown_names_add(&others, entry->fqn);
        else first = entry->fqn;
    }
    if (!first.data) return TSR_OK;
    for (size_t i = 0; i < checkpoint->missing.count; i++) tsr_shown_names_add(&files, missing[i]);
    return tsr_fail(err, TSR_E_UNSUPPORTED, "'%.*s' is not in any of the files%s%s%s%s%s%s", TSR_STR_ARG(first),
                    others.count ? "; nor are " : "", others.text, tsr_shown_names_rest(&others),
                    files.count ? "; missing: " : "", files.text, tsr_shown_names_rest(&files));
}

tsr_status tsr_checkpoint_require(const tsr_checkpoint *checkpoint, tsr_purpose purpose, tsr_error *err)
{
    const bool listing = purpose == TSR_FOR_NAMES && !checkpoint->names_unknown;
    if (purpose == TSR_FOR_FINDINGS || (listing && checkpoint->incomplete.size)) return TSR_OK;
    TSR_FAIL_IF(checkpoint->incomplete.size, err, TSR_E_UNSUPPORTED, "%.*s", TSR_STR_ARG(checkpoint->incomplete));
    if (purpose == TSR_FOR_NAMES || purpose == TSR_FOR_ALL_NAMES) return TSR_OK;
    TSR_TRY(refuse_missing(checkpoint, err));
    return refuse_per_rank(checkpoint, err);
}

tsr_status tsr_checkpoint_require_entry(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err)
{
    const tsr_entry *entry = tsr_checkpoint_entry(checkpoint, fqn);
    tsr_checkpoint alone = *checkpoint;
    alone.options.selects = NULL;
    alone.catalog.entries = entry;
    alone.catalog.entry_count = entry != NULL;
    return tsr_checkpoint_require(&alone, TSR_FOR_VALUES, err);
}
