/* Parts and texts of single nodes of a torch.save pickle. */
#include "formats/torch/torch_walk.h"

enum { ATTRIBUTES_MAX = 4096 }; /* the objects that are searched have only a few attributes */

tsr_ref tsr_torch_attribute(const tsr_pickle *pickle, tsr_ref holder, const char *name)
{
    if (tsr_pickle_kind_of(pickle, holder) == TSR_PICKLE_OBJECT) holder = tsr_pickle_state(pickle, holder);
    bool pair = tsr_pickle_kind_of(pickle, holder) == TSR_PICKLE_TUPLE;
    tsr_ref dicts[] = {pair ? tsr_pickle_item(pickle, holder, 1) : holder,
                       pair ? tsr_pickle_item(pickle, holder, 0) : TSR_REF_NONE};
    for (size_t i = 0; i < 2; i++) {
        bool found;
        if (tsr_pickle_count(pickle, dicts[i]) > ATTRIBUTES_MAX) continue;
        tsr_ref value = tsr_pickle_get(pickle, dicts[i], name, &found);
        if (found) return value;
    }
    return TSR_REF_NONE;
}

/* Text that may outlive the pickle: text that the parser had to decode is copied. */
tsr_status tsr_torch_keep_text(tsr_torch_build *build, tsr_ref ref, tsr_str *out, tsr_error *err)
{
    tsr_str bytes = build->pickle_bytes, text = tsr_pickle_text(build->pickle, ref);
    uintptr_t from = (uintptr_t)bytes.data, at = (uintptr_t)text.data;
    *out = text;
    if (text.size == 0 || (at >= from && at < from + bytes.size)) return TSR_OK;
    *out = tsr_arena_str(build->arena, text, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* "module.name" of a class, a function, or a node that stands for one. */
tsr_str tsr_torch_class_text(tsr_torch_build *build, tsr_ref ref, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_str attribute = {NULL, 0};
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_PERSISTENT)
        ref = tsr_pickle_item(pickle, tsr_pickle_persistent(pickle, ref), 1); /* ('module', class, file, source) */
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_OBJECT && tsr_pickle_class_id(pickle, ref) == TSR_TORCH_GETATTR) {
        attribute = tsr_pickle_text(pickle, tsr_torch_arg(pickle, ref, 1));
        ref = tsr_torch_arg(pickle, ref, 0);
    }
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_GLOBAL) return TSR_STR("(not a class)");
    return tsr_arena_format(build->arena, err, "%.*s.%.*s%s%.*s", TSR_STR_ARG(tsr_pickle_module(pickle, ref)),
                            TSR_STR_ARG(tsr_pickle_name_of(pickle, ref)), attribute.size ? "." : "", TSR_STR_ARG(attribute));
}
