/* Known functions are harmless only with the arguments that PyTorch gives them: getattr reaches anything, copyreg's
 * _reconstructor calls the __init__ of its second argument, _rebuild_from_type_v2 calls its first, a defaultdict its factory,
 * and _codecs.encode any codec. All objects of the pickle are looked at, not only those that the root holds. */
#include "formats/pickle/torch_fits.h"
#include "formats/torch/torch_file.h"

#include "formats/pickle/torch_names.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

enum { VISITS_PER_BYTE = 64, LEAST_VISITS = 1 << 20 };

typedef struct judge {
    tsr_verdict verdict;
    tsr_ref object;
    uint64_t position;
    uint64_t visits; /* items and characters of arguments that may still be looked at */
} judge;

static bool is_data(const tsr_pickle *pickle, tsr_ref global)
{
    return tsr_torch_dtype(pickle, global) || tsr_torch_storage_dtype(pickle, global);
}

/* getattr(Class, name), which is a value: calling it would be a call of what the pickle does not name. */
static bool is_enum_member(const tsr_pickle *pickle, tsr_ref object)
{
    return tsr_pickle_id(pickle, tsr_torch_arg(pickle, object, 0)) == TSR_TORCH_ENUM &&
           tsr_enum_is_member(pickle, tsr_torch_arg(pickle, object, 1));
}

static bool is_class(const tsr_pickle *pickle, tsr_ref object)
{
    return tsr_pickle_class_id(pickle, object) == TSR_TORCH_GETATTR && !is_enum_member(pickle, object) &&
           tsr_torch_is_attribute(pickle, tsr_torch_arg(pickle, object, 0), tsr_torch_arg(pickle, object, 1));
}

/* The class of ('module', class, source file, source), the persistent id that the legacy form writes in place of the class of
 * an nn.Module; otherwise TSR_REF_NONE. */
static tsr_ref module_class(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref id = tsr_pickle_persistent(pickle, ref), class_ = tsr_pickle_item(pickle, id, 1);
    bool module = tsr_pickle_count(pickle, id) == 4 &&
                  tsr_str_equal(tsr_pickle_text(pickle, tsr_pickle_item(pickle, id, 0)), TSR_STR("module"));
    return module && tsr_pickle_kind_of(pickle, class_) == TSR_PICKLE_GLOBAL ? class_ : TSR_REF_NONE;
}

static bool is_legacy_class(const tsr_pickle *pickle, tsr_ref object)
{
    return is_class(pickle, object) || module_class(pickle, object) != TSR_REF_NONE;
}

static bool is_plain_type(const tsr_pickle *pickle, tsr_ref global)
{
    uint32_t id = tsr_pickle_id(pickle, global);
    return id && id != TSR_TORCH_GETATTR && tsr_str_equal(tsr_pickle_module(pickle, global), TSR_STR("builtins"));
}

/* A class that is not on the list, and of which this call makes an instance. */
static tsr_status judge_built(const judge *j, tsr_ref class_, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    if (tsr_pickle_kind_of(pickle, class_) != TSR_PICKLE_GLOBAL)
        return tsr_verdict_call_of(&j->verdict, j->position, class_, err);
    return tsr_pickle_id(pickle, class_) ? TSR_OK : tsr_verdict_instance_of(&j->verdict, j->position, class_, err);
}

static bool is_changed(const judge *j)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    return tsr_pickle_state(pickle, j->object) || tsr_pickle_appended(pickle, j->object) ||
           tsr_pickle_dict_items(pickle, j->object);
}

/* A method of one of PyTorch's lazy modules, which has it as a hook until its first input comes. */
static bool is_lazy_hook(const tsr_pickle *pickle, tsr_ref object)
{
    tsr_ref module = tsr_torch_arg(pickle, object, 0), class_ = tsr_pickle_class(pickle, module);
    tsr_str name = tsr_pickle_text(pickle, tsr_torch_arg(pickle, object, 1));
    bool hook = tsr_str_equal(name, TSR_STR("_infer_parameters")) || tsr_str_equal(name, TSR_STR("_lazy_load_hook"));
    if (!hook || tsr_pickle_how_of(pickle, module) != TSR_PICKLE_BUILT) return false;
    if (tsr_pickle_kind_of(pickle, class_) == TSR_PICKLE_PERSISTENT) class_ = module_class(pickle, class_);
    return tsr_str_starts(tsr_pickle_module(pickle, class_), TSR_STR("torch.nn.modules.")) &&
           tsr_str_starts(tsr_pickle_name_of(pickle, class_), TSR_STR("Lazy"));
}

/* What getattr gives is a class, a member of an enum or a method: nothing may be changed about it. */
static tsr_status judge_getattr(const judge *j, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    bool known = is_class(pickle, j->object) || is_enum_member(pickle, j->object) || is_lazy_hook(pickle, j->object);
    if (known && !is_changed(j)) return TSR_OK;
    const tsr_ref class_ = tsr_torch_arg(pickle, j->object, 0), name = tsr_torch_arg(pickle, j->object, 1);
    if (tsr_pickle_kind_of(pickle, class_) != TSR_PICKLE_GLOBAL || !tsr_enum_is_member(pickle, name) || is_changed(j))
        return tsr_verdict_call(&j->verdict, j->position, TSR_STR("builtins.getattr"), err);
    TSR_TRY(tsr_host_load(j->verdict.host, err));
    return tsr_verdict_member(&j->verdict, j->position, class_, tsr_pickle_text(pickle, name), err);
}

/* _reconstructor(class, base, state): base.__init__(object, state) is called unless the base is object. */
static tsr_status judge_reconstructor(const judge *j, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    tsr_ref base = tsr_torch_arg(pickle, j->object, 1);
    TSR_TRY(judge_built(j, tsr_torch_arg(pickle, j->object, 0), err));
    return is_plain_type(pickle, base) ? TSR_OK : tsr_verdict_call_of(&j->verdict, j->position, base, err);
}

/* Whether a dtype has gradients; what is not known here may. */
static bool has_gradients(tsr_dtype dtype)
{
    const tsr_dtype_info *info = dtype == TSR_DTYPE_NONE ? NULL : tsr_dtype_describe(dtype);
    return !info || info->kind == TSR_CLASS_FLOAT || info->kind == TSR_CLASS_COMPLEX;
}

/* The dtype of the tensor that a rebuild function makes. */
static tsr_dtype dtype_of(const tsr_pickle *pickle, uint32_t id, tsr_ref args)
{
    if (id == TSR_TORCH_REBUILD_TENSOR_V3) return tsr_torch_dtype(pickle, tsr_pickle_item(pickle, args, 6));
    if (id != TSR_TORCH_REBUILD_TENSOR) return TSR_DTYPE_NONE;
    tsr_ref storage = tsr_pickle_persistent(pickle, tsr_pickle_item(pickle, args, 0));
    return tsr_torch_storage_dtype(pickle, tsr_pickle_item(pickle, storage, 1));
}

/* {'conj': …, 'neg': …}, which is looked at unless bool() gives False for it: keys are str, values what has a truth. */
static bool is_metadata(const tsr_pickle *pickle, tsr_ref metadata)
{
    if (tsr_torch_is_false(pickle, metadata) || tsr_pickle_kind_of(pickle, metadata) == TSR_PICKLE_OBJECT)
        return tsr_torch_is_false(pickle, metadata) || tsr_torch_is_one_of(pickle, metadata, "D");
    for (size_t i = 0; i < tsr_pickle_count(pickle, metadata); i++)
        if (!tsr_torch_is_one_of(pickle, tsr_pickle_key(pickle, metadata, i), "SY") ||
            !tsr_torch_is_one_of(pickle, tsr_pickle_value(pickle, metadata, i), "NBIJFCjekvXawV"))
            return false;
    return tsr_pickle_kind_of(pickle, metadata) == TSR_PICKLE_DICT;
}

/* A tensor of ints has no gradient, and one of real numbers is not conjugated. */
static bool suits_dtype(const tsr_pickle *pickle, uint32_t id, tsr_ref args)
{
    bool v3 = id == TSR_TORCH_REBUILD_TENSOR_V3, found;
    if (id == TSR_TORCH_REBUILD_PARAMETER) {
        tsr_ref data = tsr_pickle_item(pickle, args, 0);
        tsr_dtype dtype = dtype_of(pickle, tsr_pickle_class_id(pickle, data), tsr_pickle_args(pickle, data));
        return !tsr_pickle_bool(pickle, tsr_pickle_item(pickle, args, 1)) || has_gradients(dtype);
    }
    if (id == TSR_TORCH_REBUILD_QUANTIZED) return !tsr_pickle_bool(pickle, tsr_pickle_item(pickle, args, 5));
    if (id != TSR_TORCH_REBUILD_TENSOR && !v3) return true;
    tsr_dtype dtype = dtype_of(pickle, id, args);
    tsr_ref metadata = tsr_pickle_item(pickle, args, v3 ? 7 : 6);
    tsr_pickle_get(pickle, metadata, "conj", &found);
    if (!is_metadata(pickle, metadata)) return false;
    if (v3 && tsr_pickle_bool(pickle, tsr_pickle_item(pickle, args, 4))) return false; /* it is filled in place */
    bool complex = dtype == TSR_DTYPE_NONE || tsr_dtype_describe(dtype)->kind == TSR_CLASS_COMPLEX;
    return (!tsr_pickle_bool(pickle, tsr_pickle_item(pickle, args, 4)) || has_gradients(dtype)) && (!found || complex);
}

/* Whether the state of a class becomes its attributes; a ShardedTensor, and a subclass that is not listed, may read it itself. */
static bool takes_attributes(uint32_t class_id)
{
    return class_id && class_id != TSR_TORCH_SHARDED_TENSOR;
}

/* _rebuild_from_type_v2(function, type, args, state) */
static tsr_status judge_from_type(const judge *j, tsr_error *err)
{
    tsr_ref function = tsr_torch_arg(j->verdict.pickle, j->object, 0);
    uint32_t id = tsr_pickle_id(j->verdict.pickle, function);
    if (id < TSR_TORCH_REBUILD_TENSOR || id >= TSR_TORCH_REBUILD_FROM_TYPE)
        return tsr_verdict_call_of(&j->verdict, j->position, function, err);
    tsr_ref args = tsr_torch_arg(j->verdict.pickle, j->object, 2);
    tsr_ref made = tsr_torch_arg(j->verdict.pickle, j->object, 1), state = tsr_torch_arg(j->verdict.pickle, j->object, 3);
    bool fits =
        tsr_torch_accepts(j->verdict.pickle, function, args) && suits_dtype(j->verdict.pickle, id, args) &&
        (!takes_attributes(tsr_pickle_id(j->verdict.pickle, made)) || tsr_torch_are_attributes(j->verdict.pickle, state));
    return fits ? TSR_OK
                : tsr_verdict_unloadable(&j->verdict, j->position, "a tensor is rebuilt with invalid arguments", err);
}

/* Functions of numpy that make an object of the class, or call the function, that they are given. */
static tsr_status judge_numpy(const judge *j, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    tsr_ref first = tsr_torch_arg(pickle, j->object, 0), second = tsr_torch_arg(pickle, j->object, 1);
    tsr_str name = tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, j->object));
    bool generator = tsr_str_equal(name, TSR_STR("__generator_ctor")) || tsr_str_equal(name, TSR_STR("__randomstate_ctor"));
    if (tsr_torch_type(pickle, first) == 'b') generator = false; /* what follows is not called then */
    bool bits =
        tsr_str_equal(tsr_pickle_name_of(pickle, second), TSR_STR("__bit_generator_ctor")) && tsr_pickle_id(pickle, second);
    if (generator && second != TSR_REF_NONE && !bits) return tsr_verdict_call_of(&j->verdict, j->position, second, err);
    bool calls =
        tsr_str_equal(name, TSR_STR("__bit_generator_ctor")) || tsr_str_equal(name, TSR_STR("__pyx_unpickle_SeedSequence"));
    bool global = tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_GLOBAL;
    if (calls && global && !tsr_pickle_id(pickle, first)) return tsr_verdict_call_of(&j->verdict, j->position, first, err);
    if (!tsr_str_ends(name, TSR_STR("reconstruct"))) return TSR_OK;
    TSR_TRY(judge_built(j, first, err));
    return tsr_str_equal(name, TSR_STR("_mareconstruct")) ? judge_built(j, second, err) : TSR_OK;
}

static tsr_status judge_factory(const judge *j, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    tsr_ref factory = tsr_torch_arg(pickle, j->object, 0);
    uint32_t id = tsr_pickle_id(pickle, factory);
    bool known = id == TSR_TORCH_ORDERED_DICT || id == TSR_TORCH_PLAIN_DICT || id == TSR_TORCH_TENSOR;
    if (factory == TSR_REF_NONE || known || is_plain_type(pickle, factory)) return TSR_OK;
    return tsr_verdict_call_of(&j->verdict, j->position, factory, err);
}

/* A function and its arguments, none of which loading calls. Functions that can do harm are findings wherever they are named. */
static tsr_status judge_partial(const judge *j, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    const tsr_ref args = tsr_pickle_args(pickle, j->object);
    const bool named = tsr_pickle_kind_of(pickle, tsr_pickle_item(pickle, args, 0)) == TSR_PICKLE_GLOBAL;
    if (named && tsr_pickle_count(pickle, args) == 1) return TSR_OK;
    return tsr_verdict_call_of(&j->verdict, j->position, tsr_pickle_class(pickle, j->object), err);
}

/* Text to bytes; other codecs are modules that are looked up by name. */
static tsr_status judge_encode(const judge *j, tsr_error *err)
{
    static const char *const codecs[] = {"latin1", "latin-1", "latin_1", "iso-8859-1", "utf-8", "utf8", "ascii"};
    const tsr_pickle *pickle = j->verdict.pickle;
    tsr_str codec = tsr_pickle_text(pickle, tsr_torch_arg(pickle, j->object, 1));
    if (tsr_pickle_kind_of(pickle, tsr_torch_arg(pickle, j->object, 0)) != TSR_PICKLE_STR)
        return tsr_verdict_unloadable(&j->verdict, j->position, "_codecs.encode is called with something other than text",
                                      err);
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++)
        if (tsr_str_equal(codec, tsr_str_from(codecs[i]))) return TSR_OK;
    if (tsr_pickle_count(pickle, tsr_pickle_args(pickle, j->object)) == 1) return TSR_OK;
    return tsr_verdict_call(&j->verdict, j->position, TSR_STR("_codecs.encode with a codec that PyTorch does not use"), err);
}

static tsr_status judge_layout(const judge *j, tsr_error *err)
{
    static const char *const layouts[] = {"torch.strided",    "torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc",
                                          "torch.sparse_bsr", "torch.sparse_bsc", "torch._mkldnn",    "torch.jagged"};
    tsr_str name = tsr_pickle_text(j->verdict.pickle, tsr_torch_arg(j->verdict.pickle, j->object, 0));
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(layouts[i]))) return TSR_OK;
    return tsr_verdict_unloadable(&j->verdict, j->position, "there is no layout with that name", err);
}

/* Class(value) gives a member. Any other use of an enum class is judged as if it were not listed. */
static tsr_status judge_enum(const judge *j, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    const tsr_ref class_ = tsr_pickle_class(pickle, j->object);
    const bool one = tsr_pickle_count(pickle, tsr_pickle_args(pickle, j->object)) == 1;
    if (tsr_pickle_how_of(pickle, j->object) != TSR_PICKLE_CALLED)
        return tsr_verdict_instance_of(&j->verdict, j->position, class_, err);
    if (one && !is_changed(j) && tsr_enum_is_plain(tsr_pickle_kind_of(pickle, tsr_torch_arg(pickle, j->object, 0))))
        return TSR_OK;
    return tsr_verdict_call_of(&j->verdict, j->position, class_, err);
}

/* Whether an object can get the items that are put into it: a list what is appended, a mapping what is set. */
static bool can_hold(const tsr_pickle *pickle, tsr_ref object)
{
    char type = tsr_torch_type(pickle, object);
    if (type == TSR_TYPE_UNKNOWN) return true;
    bool bytearray = tsr_str_equal(tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, object)), TSR_STR("bytearray"));
    tsr_ref appended = tsr_pickle_appended(pickle, object);
    if (appended && !strchr("LU", type) && !(bytearray && tsr_torch_are_bytes(pickle, appended))) return false;
    return !tsr_pickle_dict_items(pickle, object) || type == 'D';
}

/* Whether `object`, a tensor, may be told by `ref` whether it has a gradient. */
static bool is_gradient_flag(const tsr_pickle *pickle, tsr_ref object, tsr_ref ref)
{
    tsr_dtype dtype = dtype_of(pickle, tsr_pickle_class_id(pickle, object), tsr_pickle_args(pickle, object));
    return tsr_torch_is_one_of(pickle, ref, "B") && (!tsr_pickle_bool(pickle, ref) || has_gradients(dtype));
}

/* (requires_grad, any, hooks), and from before PyTorch 0.4 (storage or tensor, offset, size, stride) and (tensor, any, hooks,
 * requires_grad, any). */
static bool is_tensor_state(const tsr_pickle *pickle, tsr_ref object, tsr_ref state)
{
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, state);
    size_t count = tsr_pickle_count(pickle, state);
    tsr_ref first = tsr_pickle_item(pickle, state, 0);
    if (kind == TSR_PICKLE_DICT) return count == 3 && is_gradient_flag(pickle, object, tsr_pickle_key(pickle, state, 0));
    if (kind == TSR_PICKLE_OBJECT)
        return tsr_torch_is_one_of(pickle, state, "LD") && !tsr_torch_length(pickle, state, &count);
    if (kind != TSR_PICKLE_TUPLE && kind != TSR_PICKLE_LIST) return false;
    if (count == 3) return is_gradient_flag(pickle, object, first);
    if (count == 5)
        return tsr_torch_is_one_of(pickle, first, "X") &&
               is_gradient_flag(pickle, object, tsr_pickle_item(pickle, state, 3));
    return count == 4 && tsr_torch_is_one_of(pickle, first, "PX") &&
           tsr_torch_is_one_of(pickle, tsr_pickle_item(pickle, state, 1), "I");
}

static bool can_change(const tsr_pickle *pickle, uint32_t id, tsr_ref object)
{
    bool tensor = id >= TSR_TORCH_TENSOR && id <= TSR_TORCH_REBUILD_DEVICE && id != TSR_TORCH_REBUILD_JAGGED &&
                  id != TSR_TORCH_REBUILD_WRAPPER;
    tsr_ref state = tsr_pickle_state(pickle, object);
    if (tensor && tsr_pickle_has_state(pickle, object) && !is_tensor_state(pickle, object, state)) return false;
    return can_hold(pickle, object) && tsr_torch_accepts_state(pickle, object);
}

/* Why a call of the id fails; NULL when it does not. */
static const char *why_not_called(const tsr_pickle *pickle, uint32_t id, tsr_ref object)
{
    tsr_ref args = tsr_pickle_args(pickle, object);
    if (!tsr_torch_accepts(pickle, tsr_pickle_class(pickle, object), args))
        return "is called with arguments that it does not accept";
    if (!suits_dtype(pickle, id, args)) return "makes a tensor of a dtype that cannot require a gradient, or be conjugated";
    return NULL;
}

/* Whether __new__ looks at the arguments already; that of containers ignores them. */
static bool makes_when_built(const tsr_pickle *pickle, tsr_ref object)
{
    tsr_str name = tsr_pickle_name_of(pickle, tsr_pickle_class(pickle, object));
    if (strchr("IFCSBHRqQhwzdpvV", tsr_torch_type(pickle, object))) return true;
    return tsr_str_equal(name, TSR_STR("tuple")) || tsr_str_equal(name, TSR_STR("frozenset")) ||
           tsr_str_equal(name, TSR_STR("bytes")) || tsr_str_equal(name, TSR_STR("Size")) ||
           tsr_str_equal(name, TSR_STR("ndarray")) || tsr_str_equal(name, TSR_STR("matrix")) ||
           tsr_str_equal(name, TSR_STR("recarray")) || tsr_str_equal(name, TSR_STR("TensorMeta")) ||
           tsr_str_equal(name, TSR_STR("ShardOrderEntry"));
}

static tsr_status judge_loadable(const judge *j, uint32_t id, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    bool called = tsr_pickle_how_of(pickle, j->object) == TSR_PICKLE_CALLED;
    const char *reason = called || makes_when_built(pickle, j->object) ? why_not_called(pickle, id, j->object) : NULL;
    if (id == TSR_TORCH_QSCHEME || (!called && tsr_torch_is_function(id)))
        reason = "is called or instantiated, but is neither a function nor a class";
    else if (!reason && !can_change(pickle, id, j->object))
        reason = "makes an object and gives it a state or items that it does not accept";
    return reason ? tsr_verdict_unloadable_of(&j->verdict, j->position, tsr_pickle_class(pickle, j->object), reason, err)
                  : TSR_OK;
}

/* Modules are made by NEWOBJ, and none of their classes is on the list. */
static tsr_status judge_module(const judge *j, tsr_ref class_, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    bool built = tsr_pickle_how_of(pickle, j->object) == TSR_PICKLE_BUILT && tsr_pickle_id(pickle, class_) == 0;
    return built ? tsr_verdict_instance_of(&j->verdict, j->position, class_, err)
                 : tsr_verdict_call_of(&j->verdict, j->position, class_, err);
}

/* What the checks of values look at: the items of a container, the characters of text. Objects may share their arguments, so
 * that looking at all of them could take the square of the file's size; Python would take as long. */
static tsr_status charge(judge *j, tsr_ref tuple, tsr_error *err)
{
    const tsr_pickle *pickle = j->verdict.pickle;
    const size_t count = tsr_pickle_count(pickle, tuple);
    uint64_t cost = count;
    for (size_t i = 0; i < count && cost <= j->visits; i++) {
        tsr_ref item = tsr_pickle_item(pickle, tuple, i);
        if (tsr_pickle_class_id(pickle, item) == TSR_TORCH_ENCODE) item = tsr_torch_arg(pickle, item, 0);
        cost += tsr_pickle_count(pickle, item) + tsr_pickle_text(pickle, item).size;
    }
    TSR_FAIL_AT(cost > j->visits, err, TSR_E_LIMIT, j->verdict.pickle_offset + j->position,
                "torch: calls share arguments that are far larger in total than the pickle");
    j->visits -= cost;
    return TSR_OK;
}

static tsr_status judge_object(const judge *j, tsr_error *err)
{
    uint32_t id = tsr_pickle_class_id(j->verdict.pickle, j->object);
    tsr_ref module = module_class(j->verdict.pickle, tsr_pickle_class(j->verdict.pickle, j->object));
    if (module && j->verdict.persistent) return judge_module(j, module, err);
    if (id) TSR_TRY(judge_loadable(j, id, err));
    switch (id) {
    case TSR_TORCH_GETATTR: return judge_getattr(j, err);
    case TSR_TORCH_RECONSTRUCTOR: return judge_reconstructor(j, err);
    case TSR_TORCH_FUNCTION: return judge_numpy(j, err);
    case TSR_TORCH_REBUILD_FROM_TYPE: return judge_from_type(j, err);
    case TSR_TORCH_DEFAULT_DICT: return judge_factory(j, err);
    case TSR_TORCH_ENCODE: return judge_encode(j, err);
    case TSR_TORCH_LAYOUT: return judge_layout(j, err);
    case TSR_TORCH_ENUM: return judge_enum(j, err);
    case TSR_TORCH_PARTIAL_CALL: return judge_partial(j, err);
    default: return TSR_OK;
    }
}

/* ('storage', class, key, location, numel), in the legacy form with a view, or None, behind it. */
static tsr_status judge_storage(const tsr_verdict *v, const tsr_pickle_oddity *odd, size_t items, tsr_error *err)
{
    const tsr_pickle *pickle = v->pickle;
    tsr_ref id = tsr_pickle_persistent(pickle, odd->ref), key = tsr_pickle_item(pickle, id, 2);
    bool named = tsr_pickle_kind_of(pickle, id) == TSR_PICKLE_TUPLE && tsr_pickle_count(pickle, id) == items &&
                 tsr_str_equal(tsr_pickle_text(pickle, tsr_pickle_item(pickle, id, 0)), TSR_STR("storage"));
    if (!named) return tsr_verdict_unloadable(v, odd->position, "a persistent id is not that of a storage", err);
    if (items == 6 && tsr_torch_is_untyped(pickle, tsr_pickle_item(pickle, id, 1)))
        return TSR_OK; /* tsr_torch_note_storages reports it with the name of a tensor */
    if (tsr_pickle_kind_of(pickle, key) == TSR_PICKLE_BYTES)
        return tsr_verdict_unloadable(v, odd->position, "the key of a storage is not a str", err);
    if (!tsr_torch_is_device(pickle, tsr_pickle_item(pickle, id, 3)))
        return tsr_verdict_unloadable(v, odd->position, "a storage belongs on a device that PyTorch does not know", err);
    return TSR_OK;
}

static tsr_status judge_id(const tsr_verdict *v, const tsr_pickle_oddity *odd, tsr_error *err)
{
    return judge_storage(v, odd, 5, err);
}

/* The legacy form has ('module', class, source file, source) too. */
static tsr_status judge_legacy_id(const tsr_verdict *v, const tsr_pickle_oddity *odd, tsr_error *err)
{
    const tsr_pickle *pickle = v->pickle;
    return module_class(pickle, odd->ref) ? TSR_OK : judge_storage(v, odd, 6, err);
}

static tsr_verdict verdict_on(const tsr_torch_build *build, bool resolves)
{
    return (tsr_verdict){.pickle = build->pickle,
                         .host = build->host,
                         .findings = build->findings,
                         .file_name = build->file_name,
                         .pickle_offset = build->pickle_offset,
                         .persistent = !resolves       ? NULL
                                       : build->legacy ? judge_legacy_id
                                                       : judge_id,
                         .named = true,
                         .is_data = is_data,
                         .is_class = resolves && build->legacy ? is_legacy_class : is_class};
}

tsr_status tsr_torch_verdict(const tsr_torch_build *build, bool resolves, tsr_error *err)
{
    judge j = {.verdict = verdict_on(build, resolves),
               .visits = VISITS_PER_BYTE * (uint64_t)build->pickle_bytes.size + LEAST_VISITS};
    if (!build->findings) return TSR_OK;
    TSR_TRY(tsr_verdict_on_pickle(&j.verdict, err));
    size_t count = tsr_pickle_object_count(build->pickle);
    for (size_t i = 0; i < count; i++) {
        j.object = tsr_pickle_object(build->pickle, i);
        j.position = tsr_pickle_position(build->pickle, j.object);
        TSR_TRY(charge(&j, tsr_pickle_args(build->pickle, j.object), err));
        TSR_TRY(charge(&j, tsr_pickle_state(build->pickle, j.object), err));
        TSR_TRY(judge_object(&j, err));
    }
    return TSR_OK;
}

tsr_status tsr_torch_verdict_on_end(const tsr_torch_build *build, uint64_t end, uint64_t size, tsr_error *err)
{
    const tsr_verdict verdict = verdict_on(build, true);
    return build->findings ? tsr_verdict_end(&verdict, end, size, err) : TSR_OK;
}
