/* See dcp_state.h. */
#include "formats/dcp/dcp_state.h"

#include "formats/common/expansion.h"
#include "formats/pickle/pickle_verdict.h"
#include "formats/pickle/torch_names.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

/* Sets *out to a DICT, to the items of an OrderedDict, or to none. */
static tsr_status take_dict(const tsr_dcp_metadata *metadata, tsr_ref state, const char *name, tsr_ref *out, tsr_error *err)
{
    const tsr_pickle *pickle = metadata->pickle;
    tsr_ref ref = tsr_pickle_get(pickle, state, name, NULL);
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    *out = ref;
    if (kind == TSR_PICKLE_OBJECT && tsr_pickle_class_id(pickle, ref) == TSR_DCP_ID_LISTED)
        *out = tsr_pickle_dict_items(pickle, ref);
    else
        TSR_FAIL_AT(kind != TSR_PICKLE_DICT && kind != TSR_PICKLE_NONE, err, TSR_E_FORMAT, tsr_pickle_position(pickle, ref),
                    "dcp: '%s' is not a dict", name);
    return TSR_OK;
}

static tsr_status take_root(tsr_dcp_metadata *metadata, tsr_error *err)
{
    const tsr_pickle *pickle = metadata->pickle;
    tsr_ref root = tsr_pickle_root(pickle), state = tsr_pickle_state(pickle, root);
    TSR_FAIL_AT(tsr_pickle_class_id(pickle, root) != TSR_DCP_ID_METADATA, err, TSR_E_FORMAT, 0,
                "dcp: the pickle does not contain a torch.distributed.checkpoint Metadata object");
    TSR_FAIL_AT(tsr_pickle_kind_of(pickle, state) != TSR_PICKLE_DICT, err, TSR_E_FORMAT, tsr_pickle_position(pickle, root),
                "dcp: Metadata lacks its state");
    TSR_TRY(take_dict(metadata, state, "state_dict_metadata", &metadata->state_dict, err));
    TSR_TRY(take_dict(metadata, state, "storage_data", &metadata->storage_data, err));
    tsr_ref planner = tsr_pickle_get(pickle, state, "planner_data", NULL);
    if (tsr_pickle_kind_of(pickle, planner) == TSR_PICKLE_DICT)
        metadata->planner_data = planner; /* its contents depend on the planner */
    bool has_data, has_plans;
    tsr_ref mcore = tsr_pickle_get(pickle, state, "mcore_data", &has_data);
    tsr_pickle_get(pickle, state, "all_local_plans", &has_plans);
    metadata->is_megatron = has_data || has_plans;
    if (tsr_pickle_kind_of(pickle, mcore) == TSR_PICKLE_DICT) metadata->mcore_data = mcore;
    return TSR_OK;
}

tsr_status tsr_dcp_metadata_open(tsr_str bytes, const tsr_host *host, tsr_dcp_metadata *out, tsr_error *err)
{
    uint64_t room = host->limits.expansion;
    tsr_expansion_add(&room, bytes.size);
    *out = (tsr_dcp_metadata){.dims = tsr_vec_of(host->allocator, sizeof(uint64_t)),
                              .records = tsr_vec_of(host->allocator, sizeof(uint64_t)),
                              .fqns = tsr_dcp_names_of(host->allocator, room),
                              .paths = tsr_dcp_names_of(host->allocator, room),
                              .odd_getattr = TSR_NO_POSITION,
                              .odd_enum = TSR_NO_POSITION,
                              .unloadable = TSR_NO_POSITION,
                              .misused = TSR_NO_POSITION,
                              .newer = TSR_NO_POSITION};
    tsr_status status = tsr_dcp_fold(bytes, host, out, err);
    if (status == TSR_OK) status = take_root(out, err);
    if (status != TSR_OK) tsr_dcp_metadata_close(out);
    return status;
}

void tsr_dcp_metadata_forget(tsr_dcp_metadata *metadata)
{
    tsr_pickle_free(metadata->pickle);
    metadata->pickle = NULL;
    if (metadata->records.allocator) tsr_vec_free(&metadata->records);
    tsr_dcp_names_free(&metadata->fqns);
    tsr_dcp_names_free(&metadata->paths);
}

void tsr_dcp_metadata_close(tsr_dcp_metadata *metadata)
{
    tsr_dcp_metadata_forget(metadata);
    if (metadata->dims.allocator) tsr_vec_free(&metadata->dims);
}

/* ---- verdict ---- */

/* Judges the objects in a `.metadata` file that were not folded. Those of which a file has millions are folded and judged
 * while it is parsed (dcp_fold.c). Source: torch/distributed/checkpoint/planner.py of PyTorch 2.13, Lib/pathlib.py. */

static bool is_kind(const tsr_pickle *pickle, tsr_ref ref, tsr_pickle_kind kind)
{
    return tsr_pickle_kind_of(pickle, ref) == kind;
}

/* A dict, or an object that may be a dict: an OrderedDict, or an instance of an unknown class. */
static bool is_dict(const tsr_pickle *pickle, tsr_ref ref)
{
    if (!is_kind(pickle, ref, TSR_PICKLE_OBJECT)) return is_kind(pickle, ref, TSR_PICKLE_DICT);
    return !tsr_pickle_class_id(pickle, ref) ||
           tsr_str_equal(tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, ref)), TSR_STR("OrderedDict"));
}

/* Whether Python can set attributes from the state: nothing, a dict, or a pair of these. */
static bool is_plain_state(const tsr_pickle *pickle, tsr_ref state)
{
    if (state == TSR_REF_NONE || !is_kind(pickle, state, TSR_PICKLE_TUPLE))
        return state == TSR_REF_NONE || is_dict(pickle, state);
    tsr_ref first = tsr_pickle_item(pickle, state, 0), second = tsr_pickle_item(pickle, state, 1);
    return tsr_pickle_count(pickle, state) == 2 && (first == TSR_REF_NONE || is_dict(pickle, first)) &&
           (second == TSR_REF_NONE || is_dict(pickle, second));
}

static bool is_path_class(const tsr_pickle *pickle, tsr_ref class_)
{
    return tsr_str_starts(tsr_pickle_module(pickle, class_), TSR_STR("pathlib"));
}

/* Whether the arguments of a path class are all str or paths. */
static bool are_path_parts(const tsr_pickle *pickle, tsr_ref args)
{
    enum { MOST_PARTS = 64 }; /* bounds the time, since many paths may share their arguments */
    for (size_t i = 0; i < tsr_pickle_count(pickle, args) && i < MOST_PARTS; i++) {
        tsr_ref part = tsr_pickle_item(pickle, args, i), class_ = tsr_pickle_class(pickle, part);
        bool path =
            is_kind(pickle, part, TSR_PICKLE_OBJECT) && (!tsr_pickle_id(pickle, class_) || is_path_class(pickle, class_));
        if (!path && !is_kind(pickle, part, TSR_PICKLE_STR)) return false;
    }
    return true;
}

/* Whether a class is called with at least as many arguments as it has fields without a default. */
static bool has_fields(const tsr_pickle *pickle, tsr_ref object)
{
    static const struct {
        const char *name;
        size_t fields;
    } rows[] = {{"Metadata", 1}, {"SavePlan", 1}, {"MCoreSavePlan", 1}, {"WriteItem", 2}, {"TensorWriteData", 3}};
    tsr_str name = tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, object));
    if (tsr_pickle_how_of(pickle, object) != TSR_PICKLE_CALLED) return true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(rows[i].name)))
            return tsr_pickle_count(pickle, tsr_pickle_args(pickle, object)) >= rows[i].fields;
    return true;
}

/* Why an object of a known class cannot be created; NULL if it can. */
static const char *why_not_made(const tsr_pickle *pickle, tsr_ref object)
{
    const tsr_ref class_ = tsr_pickle_class(pickle, object);
    const bool reads_it =
        tsr_str_equal(tsr_pickle_name_of(pickle, class_), TSR_STR("TensorProperties")); /* has a __setstate__ */
    if (!reads_it && !is_plain_state(pickle, tsr_pickle_state(pickle, object))) return "is given a state that is not a dict";
    if (!has_fields(pickle, object)) return "is called without its fields";
    if (!is_path_class(pickle, class_)) return NULL;
    return are_path_parts(pickle, tsr_pickle_args(pickle, object)) ? NULL : "is made of something other than text";
}

/* Reports only the first object that cannot be created: one damaged byte may affect thousands. */
static tsr_status judge_objects(const tsr_verdict *verdict, tsr_error *err)
{
    const tsr_pickle *pickle = verdict->pickle;
    const size_t count = tsr_pickle_object_count(pickle);
    for (size_t i = 0; i < count; i++) {
        tsr_ref object = tsr_pickle_object(pickle, i);
        const char *why = tsr_pickle_class_id(pickle, object) ? why_not_made(pickle, object) : NULL;
        if (!why) continue;
        const uint64_t position = tsr_pickle_position(pickle, object);
        return tsr_verdict_unloadable_of(verdict, position, tsr_pickle_class(pickle, object), why, err);
    }
    return TSR_OK;
}

/* A dtype is a value, not a class with instances. */
static bool is_dtype(const tsr_pickle *pickle, tsr_ref global)
{
    return tsr_torch_dtype(pickle, global) != TSR_DTYPE_NONE;
}

/* Reports what dcp_fold.c found while parsing. */
static tsr_status judge_folded(const tsr_verdict *verdict, const tsr_dcp_metadata *metadata, tsr_error *err)
{
    if (metadata->odd_enum != TSR_NO_POSITION)
        TSR_TRY(tsr_verdict_call(verdict, metadata->odd_enum,
                                 TSR_STR("an enum class is called with something other than one plain value"), err));
    if (metadata->odd_getattr != TSR_NO_POSITION)
        TSR_TRY(tsr_verdict_call(verdict, metadata->odd_getattr, TSR_STR("builtins.getattr"), err));
    if (metadata->unloadable != TSR_NO_POSITION)
        TSR_TRY(tsr_verdict_unloadable(verdict, metadata->unloadable, "no such layout or memory format", err));
    if (metadata->misused != TSR_NO_POSITION)
        TSR_TRY(tsr_verdict_unloadable(verdict, metadata->misused,
                                       "a function is used as a class, or a class is called without its fields", err));
    if (metadata->newer == TSR_NO_POSITION) return TSR_OK;
    const tsr_place place = {verdict->file_name, metadata->newer, {NULL, 0}};
    return tsr_finding_add(verdict->findings, "dcp/newer", place, err,
                           "TensorProperties has more than five items: only PyTorch 2.15 and newer can load this metadata");
}

tsr_status tsr_dcp_judge_pickle(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err)
{
    const tsr_dcp_metadata *metadata = &source->metadata;
    const tsr_store_file *file = &checkpoint->store->files[source->file];
    tsr_verdict verdict = {.pickle = metadata->pickle,
                           .host = checkpoint->host,
                           .findings = checkpoint->findings,
                           .file_name = file->name,
                           .is_data = is_dtype};
    if (!TSR_IS_SMALL) verdict.listed = tsr_dcp_listed(&verdict.listed_count);
    TSR_TRY(tsr_verdict_on_pickle(&verdict, err));
    TSR_TRY(judge_folded(&verdict, metadata, err));
    TSR_TRY(judge_objects(&verdict, err));
    return metadata->has_end_sum ? TSR_OK : tsr_verdict_end(&verdict, metadata->pickle_end, file->size, err);
}

/* ---- originals ---- */

/* The original shapes that Megatron-Core up to 0.14 records for tensors stored as flat ranges of fragments:
 *
 *   Metadata.mcore_data = {FQN: {"nd_reformulated_orig_global_shape": (20, 8)}, FQN: {}, …}      {}: stored in its shape
 *
 * Source: megatron/core/dist_checkpointing/strategies/torch.py of Megatron-Core 0.14. */

/* The sizes in a tuple or a torch.Size, and their number; -1 for any other value. */
static int sizes_of(const tsr_dcp_metadata *metadata, tsr_ref ref, uint64_t sizes[TSR_DCP_MAX_NDIM])
{
    int64_t ints[TSR_DCP_MAX_NDIM];
    uint32_t ndim;
    const uint32_t folded =
        tsr_pickle_kind_of(metadata->pickle, ref) == TSR_PICKLE_FOLDED ? tsr_pickle_folded_index(ref) : 0;
    if (folded & TSR_DCP_DIMS_FLAG) {
        const uint64_t *dims = tsr_dcp_dims(metadata, folded & ~TSR_DCP_DIMS_FLAG, &ndim);
        for (uint32_t d = 0; d < ndim; d++) sizes[d] = dims[d];
        return (int)ndim;
    }
    const int count = tsr_pickle_ints(metadata->pickle, ref, ints, TSR_DCP_MAX_NDIM);
    for (int d = 0; d < count; d++) {
        if (ints[d] < 0) return -1;
        sizes[d] = (uint64_t)ints[d];
    }
    return count;
}

static tsr_status keep_one(tsr_checkpoint *checkpoint, const tsr_dcp_metadata *metadata, tsr_str fqn, tsr_ref facts,
                           tsr_dcp_original *out, tsr_error *err)
{
    uint64_t sizes[TSR_DCP_MAX_NDIM];
    const int ndim =
        sizes_of(metadata, tsr_pickle_get(metadata->pickle, facts, "nd_reformulated_orig_global_shape", NULL), sizes);
    TSR_FAIL_IF(ndim < 0, err, TSR_E_FORMAT, "dcp: mcore_data has no valid shape for '%.*s'", TSR_STR_ARG(fqn));
    TSR_TRY(tsr_expansion_take(&checkpoint->expansion, (uint64_t)ndim * sizeof *sizes, checkpoint->host, err));
    uint64_t *shape = tsr_arena_array(checkpoint->arena, (size_t)ndim, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    if (ndim) memcpy(shape, sizes, (size_t)ndim * sizeof *shape);
    out->shape = shape;
    out->ndim = (uint32_t)ndim;
    return TSR_OK;
}

tsr_status tsr_dcp_keep_originals(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err)
{
    tsr_dcp_state *state = tsr_dcp_state_of(checkpoint);
    const tsr_dcp_metadata *metadata = &source->metadata;
    size_t count;
    const tsr_ref *pairs = tsr_pickle_items(metadata->pickle, metadata->mcore_data, &count);
    state->is_megatron = metadata->is_megatron && state->source_count == 1;
    state->has_mcore_data = state->is_megatron && metadata->mcore_data != TSR_REF_NONE;
    if (!state->is_megatron || count == 0) return TSR_OK;
    tsr_dcp_original *originals = tsr_arena_array(checkpoint->arena, count / 2, sizeof *originals, err);
    if (!originals) return TSR_E_NOMEM;
    for (size_t i = 0; i + 1 < count; i += 2) {
        const tsr_str fqn = tsr_pickle_text(metadata->pickle, pairs[i]);
        const uint32_t entry = tsr_map_get(state->names, fqn, TSR_DCP_NO_ENTRY);
        bool reshaped;
        tsr_pickle_get(metadata->pickle, pairs[i + 1], "nd_reformulated_orig_global_shape", &reshaped);
        if (entry == TSR_DCP_NO_ENTRY || !reshaped) continue;
        tsr_dcp_original *out = &originals[state->original_count];
        TSR_TRY(keep_one(checkpoint, metadata, fqn, pairs[i + 1], out, err));
        out->entry = entry;
        state->original_count++;
    }
    state->originals = originals;
    return TSR_OK;
}
