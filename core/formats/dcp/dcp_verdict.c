/* Judges the objects in a `.metadata` file that were not folded. Those of which a file has millions are folded and judged
 * while it is parsed (dcp_fold.c). Source: torch/distributed/checkpoint/planner.py of PyTorch 2.13, Lib/pathlib.py. */
#include "formats/dcp/dcp_verdict.h"

#include "formats/pickle/pickle_verdict.h"
#include "formats/pickle/torch_names.h"
#include "tessera/sys/try.h"

#include "tessera/sys/finding_add.h"

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
    const tsr_verdict verdict = {.pickle = metadata->pickle,
                                 .host = checkpoint->host,
                                 .findings = checkpoint->findings,
                                 .file_name = file->name,
                                 .is_data = is_dtype};
    TSR_TRY(tsr_verdict_on_pickle(&verdict, err));
    TSR_TRY(judge_folded(&verdict, metadata, err));
    TSR_TRY(judge_objects(&verdict, err));
    return tsr_verdict_end(&verdict, metadata->pickle_end, file->size, err);
}
