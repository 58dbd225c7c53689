#include "formats/pickle/pickle_verdict.h"

#include "formats/pickle/known_names.h"
#include "tessera/sys/try.h"

#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"

static tsr_place place_of(const tsr_verdict *v, uint64_t position)
{
    return (tsr_place){
        v->file_name, position == TSR_NO_POSITION ? v->pickle_offset : v->pickle_offset + position, {NULL, 0}};
}

tsr_status tsr_verdict_call(const tsr_verdict *v, uint64_t position, tsr_str name, tsr_error *err)
{
    return tsr_finding_add(v->findings, "pickle/unlisted-call", place_of(v, position), err,
                           "loading this file with pickle would call %.*s", TSR_STR_ARG(name));
}

tsr_status tsr_verdict_call_of(const tsr_verdict *v, uint64_t position, tsr_ref callee, tsr_error *err)
{
    if (tsr_pickle_kind_of(v->pickle, callee) != TSR_PICKLE_GLOBAL)
        return tsr_verdict_call(v, position, TSR_STR("something that the pickle does not name as a global"), err);
    return tsr_finding_add(v->findings, "pickle/unlisted-call", place_of(v, position), err,
                           "loading this file with pickle would call %.*s.%.*s",
                           TSR_STR_ARG(tsr_pickle_module(v->pickle, callee)),
                           TSR_STR_ARG(tsr_pickle_name_of(v->pickle, callee)));
}

static tsr_status find_missing(const tsr_verdict *v, uint64_t position, tsr_str module, tsr_str name, tsr_error *err)
{
    return tsr_finding_add(v->findings, "pickle/unloadable", place_of(v, position), err,
                           "loading this file with pickle fails: there is no '%.*s' in the module %.*s", TSR_STR_ARG(name),
                           TSR_STR_ARG(module));
}

/* dtypes, which every .metadata names: the list of names, which may be loaded on demand, is not needed for them. */
static bool is_usual(tsr_str module, tsr_str name)
{
    static const char *const dtypes[] = {"float32",   "bfloat16",   "float16",       "float64",    "int64",
                                         "int32",     "int16",      "int8",          "uint8",      "bool",
                                         "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"};
    if (!tsr_str_equal(module, TSR_STR("torch"))) return false;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(dtypes[i]))) return true;
    return false;
}

static tsr_status find_class(const tsr_verdict *v, uint64_t position, tsr_ref global, tsr_pickle_use use, tsr_error *err)
{
    const tsr_str module = tsr_pickle_module(v->pickle, global), name = tsr_pickle_name_of(v->pickle, global);
    const bool dangerous = tsr_pickle_is_dangerous(v->pickle, global), built = use == TSR_PICKLE_USE_BUILT;
    const bool nested =
        name.size && memchr(name.data, '.', name.size) && tsr_pickle_protocol(v->pickle) < 4; /* one name then */
    const bool usual = !built && !v->named && is_usual(module, name);
    if (!nested && !usual) TSR_TRY(tsr_host_load(v->host, err));
    const tsr_name_state state = nested ? TSR_NAME_MISSING : usual ? TSR_NAME_EXISTS : tsr_name_state_of(module, name);
    if (state == TSR_NAME_MISSING && !dangerous) return find_missing(v, position, module, name, err);
    const bool unchecked = state == TSR_NAME_UNCHECKED;
    tsr_level level = dangerous ? TSR_ERROR : built || unchecked ? TSR_WARNING : TSR_NOTE;
    if (!dangerous && !built && !v->named) return TSR_OK;
    return tsr_finding_add_at(v->findings, (tsr_rated_rule){"pickle/unlisted-class", level}, place_of(v, position), err,
                              "%s %.*s.%.*s, which %s%s", built ? "contains objects of" : "names", TSR_STR_ARG(module),
                              TSR_STR_ARG(name), dangerous ? "can do harm in any use" : "is not known to be harmless data",
                              unchecked && !dangerous ? "; whether it exists was not checked" : "");
}

tsr_status tsr_verdict_instance_of(const tsr_verdict *v, uint64_t position, tsr_ref global, tsr_error *err)
{
    return find_class(v, position, global, TSR_PICKLE_USE_BUILT, err);
}

tsr_status tsr_verdict_unloadable(const tsr_verdict *v, uint64_t position, const char *reason, tsr_error *err)
{
    return tsr_finding_add(v->findings, "pickle/unloadable", place_of(v, position), err,
                           "loading this file with pickle fails: %s", reason);
}

tsr_status tsr_verdict_unloadable_of(const tsr_verdict *v, uint64_t position, tsr_ref global, const char *reason,
                                     tsr_error *err)
{
    return tsr_finding_add(
        v->findings, "pickle/unloadable", place_of(v, position), err, "loading this file with pickle fails: %.*s.%.*s %s",
        TSR_STR_ARG(tsr_pickle_module(v->pickle, global)), TSR_STR_ARG(tsr_pickle_name_of(v->pickle, global)), reason);
}

tsr_status tsr_verdict_end(const tsr_verdict *v, uint64_t end, uint64_t size, tsr_error *err)
{
    if (end >= size) return TSR_OK;
    return tsr_finding_add(v->findings, "pickle/trailing-bytes", place_of(v, end), err,
                           "%llu bytes follow the last byte that PyTorch reads", (unsigned long long)(size - end));
}

typedef struct walk {
    const tsr_verdict *verdict;
    tsr_error *err;
    tsr_status status;
} walk;

static void judge_global(void *ctx, tsr_ref global, tsr_pickle_use use)
{
    walk *w = ctx;
    const tsr_verdict *v = w->verdict;
    uint64_t position = tsr_pickle_position(v->pickle, global);
    if (w->status != TSR_OK) return;
    bool data = use != TSR_PICKLE_USE_CALLED && v->is_data && v->is_data(v->pickle, global);
    if (data && use == TSR_PICKLE_USE_BUILT)
        w->status = tsr_verdict_unloadable(v, position, "something that is not a class has instances", w->err);
    if (data) return;
    w->status = use == TSR_PICKLE_USE_CALLED ? tsr_verdict_call_of(v, position, global, w->err)
                                             : find_class(v, position, global, use, w->err);
}

static tsr_status judge_oddity(const tsr_verdict *v, const tsr_pickle_oddity *odd, tsr_error *err)
{
    switch (odd->kind) {
    case TSR_PICKLE_ODD_CALL:
        if (odd->ref && v->is_class && v->is_class(v->pickle, odd->ref)) return TSR_OK;
        return tsr_verdict_call_of(v, odd->position, odd->ref, err);
    case TSR_PICKLE_ODD_BUILD:
        return tsr_verdict_call(v, odd->position,
                                TSR_STR("__setstate__, or set attributes, of an object that the pickle did not make"), err);
    case TSR_PICKLE_ODD_ITEMS:
        return tsr_verdict_call(v, odd->position, TSR_STR("__setitem__ or append of an object that the pickle did not make"),
                                err);
    case TSR_PICKLE_ODD_AGAIN:
        return tsr_verdict_call(v, odd->position,
                                TSR_STR("__setstate__, append, extend or add of an object whose state may have replaced it"),
                                err);
    case TSR_PICKLE_ODD_KEY:
        return tsr_verdict_unloadable(v, odd->position, "a key of a dict, or an item of a set, cannot be hashed", err);
    case TSR_PICKLE_ODD_STRING:
        return tsr_verdict_unloadable(v, odd->position,
                                      "a string of Python 2 is not UTF-8 (torch.load needs encoding='latin1')", err);
    default:
        if (v->persistent) return v->persistent(v, odd, err);
        return tsr_verdict_unloadable(v, odd->position, "it has a persistent id, which cannot be resolved", err);
    }
}

tsr_status tsr_verdict_on_pickle(const tsr_verdict *v, tsr_error *err)
{
    walk w = {v, err, TSR_OK};
    tsr_pickle_unknown(v->pickle, judge_global, &w);
    size_t count;
    const tsr_pickle_oddity *odd = tsr_pickle_oddities(v->pickle, &count);
    for (size_t i = 0; i < count && w.status == TSR_OK; i++) w.status = judge_oddity(v, &odd[i], err);
    return w.status;
}
