/* A value tree: the contents of a checkpoint other than dense tensors, as data. Nodes live in an arena and may be shared (a
 * pickle's memo makes DAGs, even cycles): walk them with a budget (tsr_limits.depth and .expansion).
 *
 * Example:
 *
 *     const tsr_value *options = tsr_value_dict(arena, 2, "lr", tsr_value_float(arena, 0.1, &err), "nesterov",
 *                                               tsr_value_bool(arena, false, &err));
 *     if (options) printf("%g\n", tsr_value_get(options, TSR_STR("lr"))->as.real); */
#ifndef TESSERA_VALUE_H
#define TESSERA_VALUE_H

#include "tessera/dtype.h"
#include "tessera/memory.h"

TSR_API_BEGIN

struct tsr_entry;

typedef enum tsr_value_kind {
    TSR_VALUE_NONE = 0,
    TSR_VALUE_BOOL,
    TSR_VALUE_INT,    /* fits int64 */
    TSR_VALUE_BIGINT, /* two's complement, little-endian, in `text` */
    TSR_VALUE_FLOAT,
    TSR_VALUE_COMPLEX,
    TSR_VALUE_STR, /* UTF-8 in `text` (may hold surrogates as Python's surrogatepass writes them) */
    TSR_VALUE_BYTES,
    TSR_VALUE_LIST,
    TSR_VALUE_TUPLE,
    TSR_VALUE_SET,
    TSR_VALUE_DICT, /* keys and values alternate in `items` */
    TSR_VALUE_SIZE, /* torch.Size: items are ints */
    TSR_VALUE_DTYPE,
    TSR_VALUE_DEVICE, /* "cuda:0" in `text` */
    TSR_VALUE_TENSOR, /* a dense tensor inside an object; `tensor` */
    TSR_VALUE_GLOBAL, /* a class or function that is only named; "module.name" in `text` */
    TSR_VALUE_OBJECT  /* an instance of a class we do not interpret: class in `text`, items = {args, state, …} */
} tsr_value_kind;

/* Python types that share a kind with a more common one. */
typedef enum tsr_value_variant {
    TSR_VARIANT_NONE = 0,
    TSR_VARIANT_FROZENSET,   /* SET */
    TSR_VARIANT_BYTEARRAY,   /* BYTES */
    TSR_VARIANT_COUNTER,     /* DICT: collections.Counter */
    TSR_VARIANT_DEFAULTDICT, /* DICT: collections.defaultdict; `text` names its factory ("builtins.list"), empty for None */
    TSR_VARIANT_SUBCLASS,    /* LIST, DICT: of a subclass, which `text` names; written as list or dict */
    TSR_VARIANT_STATE_DICT   /* DICT: of an object that is not a dict, whose class `text` names; only in a tsr_mapping */
} tsr_value_variant;

typedef struct tsr_value tsr_value;
struct tsr_value {
    tsr_value_kind kind;
    tsr_value_variant variant;
    bool ordered_dict; /* DICT: collections.OrderedDict */
    bool called;       /* OBJECT: the class was called with the arguments; otherwise only built by its __new__ */
    bool foreign;      /* with `expanded`: it or something inside is not what torch.load(weights_only=True) takes */
    bool loses_class;  /* with `expanded`: it or something inside is a TSR_VARIANT_SUBCLASS */
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct {
            double re, im;
        } complex;
        tsr_dtype dtype;
        const struct tsr_entry *tensor;     /* its fqn is the path inside the object; OBJECT: the entry of a DTensor whose
                                               local tensor is a tensor subclass, or NULL */
        const struct tsr_value *attributes; /* DICT: what its __dict__ holds (a state dict's _metadata), or NULL */
    } as;
    tsr_str text;
    const tsr_value *const *items;
    size_t count;      /* of items: a DICT of n pairs has 2n */
    uint64_t expanded; /* bytes, about, as a tree in which shared parts are written wherever they occur; 0: not counted */
};

/* `expanded` of a value that holds itself, or that expands beyond what its file may ask for: it is never written out. */
#define TSR_VALUE_ENDLESS UINT64_MAX

/* Number of pairs of a DICT. */
static inline size_t tsr_value_pairs(const tsr_value *dict)
{
    return dict->count / 2;
}
/* The value under a string key, or NULL. Linear. */
const tsr_value *tsr_value_get(const tsr_value *dict, tsr_str key);
/* Constructors into an arena; NULL and TSR_E_NOMEM on failure. `items` and `text` are borrowed, not copied. */
tsr_value *tsr_value_none(tsr_arena *arena, tsr_error *err);
tsr_value *tsr_value_bool(tsr_arena *arena, bool boolean, tsr_error *err);
tsr_value *tsr_value_int(tsr_arena *arena, int64_t integer, tsr_error *err);
tsr_value *tsr_value_float(tsr_arena *arena, double real, tsr_error *err);
tsr_value *tsr_value_str(tsr_arena *arena, tsr_str text, tsr_error *err);
/* A DICT of `pairs` pairs, each a `const char *` key and a `const tsr_value *`, and a LIST or TUPLE of `count` values:
 *
 *     tsr_value_dict(arena, 2, "lr", tsr_value_float(arena, 0.1, err), "amsgrad", tsr_value_bool(arena, true, err))
 *
 * NULL when memory is short or one of the values is NULL: values made in the call need no check of their own. Keys are
 * borrowed. */
tsr_value *tsr_value_dict(tsr_arena *arena, size_t pairs, ...);
tsr_value *tsr_value_list(tsr_arena *arena, tsr_value_kind kind, size_t count, ...);

TSR_API_END

#endif
