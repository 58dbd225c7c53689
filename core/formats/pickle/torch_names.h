/* The classes and functions that torch.save files name and that Tessera knows. What is not here is never interpreted: it
 * stays an object whose class is shown. dtypes and typed storages are recognized through model/dtype (torch_names.c). */
#ifndef TSR_FORMATS_PICKLE_TORCH_NAMES_H
#define TSR_FORMATS_PICKLE_TORCH_NAMES_H

#include "codec/pickle.h"
#include "tessera/dtype.h"
#include "tessera/value.h"

enum tsr_torch_name {
    TSR_TORCH_LISTED = 1, /* known, kept as an object */
    TSR_TORCH_GETATTR,
    TSR_TORCH_ORDERED_DICT,
    TSR_TORCH_PLAIN_DICT, /* dict, Counter */
    TSR_TORCH_SET,
    TSR_TORCH_COMPLEX,
    TSR_TORCH_BYTES, /* bytes, bytearray */
    TSR_TORCH_ENCODE,
    TSR_TORCH_SIZE,
    TSR_TORCH_DEVICE,
    TSR_TORCH_LAYOUT,
    TSR_TORCH_TENSOR,
    TSR_TORCH_PARAMETER,
    TSR_TORCH_REBUILD_TENSOR,
    TSR_TORCH_REBUILD_TENSOR_V3,
    TSR_TORCH_REBUILD_PARAMETER,
    TSR_TORCH_REBUILD_QUANTIZED,
    TSR_TORCH_REBUILD_SPARSE,
    TSR_TORCH_REBUILD_NESTED,
    TSR_TORCH_REBUILD_JAGGED,
    TSR_TORCH_REBUILD_META,
    TSR_TORCH_REBUILD_WRAPPER,
    TSR_TORCH_REBUILD_DEVICE,
    TSR_TORCH_REBUILD_FROM_TYPE,
    TSR_TORCH_DTENSOR,
    TSR_TORCH_SHARDED_TENSOR,
    TSR_TORCH_SHARD,
    TSR_TORCH_STRIDED_SHARD,
    TSR_TORCH_REPLICATE,
    TSR_TORCH_PARTIAL,
    TSR_TORCH_DEFAULT_DICT,  /* its first argument is called for keys that are not there */
    TSR_TORCH_RECONSTRUCTOR, /* copyreg._reconstructor: calls its second argument's __init__ */
    TSR_TORCH_FUNCTION,      /* known, its result kept as an object; has no instances */
    TSR_TORCH_QSCHEME,       /* a value: neither called nor built */
    TSR_TORCH_ENUM,          /* a listed enum class */
    TSR_TORCH_PARTIAL_CALL,  /* functools.partial: a function with arguments, which loading does not call */
    TSR_TORCH_RETURN_TYPE    /* what torch.max and the like return: a tuple with names */
};

/* A time zone is pickled as a call of this method. */
#define TSR_TORCH_ZONE "zoneinfo.ZoneInfo._unpickle"

/* The table for tsr_pickle_parse: no folding. */
extern const tsr_pickle_sink tsr_torch_names;

/* Whether PyTorch writes getattr(class_, name): what else it is asked for could be anything. */
bool tsr_torch_is_attribute(const tsr_pickle *pickle, tsr_ref class_, tsr_ref name);

/* How many items the tuple torch.return_types.NAME has; 0 for other names. */
size_t tsr_torch_return_size(tsr_str name);

/* The dtype that a GLOBAL such as "torch float32" names, or TSR_DTYPE_NONE. */
tsr_dtype tsr_torch_dtype(const tsr_pickle *pickle, tsr_ref global);
/* The element type of a storage class such as "torch FloatStorage"; uint8 for untyped storages; else TSR_DTYPE_NONE. */
tsr_dtype tsr_torch_storage_dtype(const tsr_pickle *pickle, tsr_ref global);
bool tsr_torch_is_untyped(const tsr_pickle *pickle, tsr_ref global); /* a class of untyped storages */

/* Enum classes of training frameworks. Their members are data: Python pickles one as `Class(value)` (up to 3.10, and from
 * 3.12) or as `getattr(Class, name)` (3.11), which looks like a call, but only picks one of a few constants.
 *
 * The list is exact: a class that is not on it, and any other use of one that is, stays a call that nobody vouched for.
 * Source: the frameworks themselves (tests/golden/make_enum_names.py). */

bool tsr_enum_is_listed(tsr_str module, tsr_str name);

/* The class of a listed enum in the text "module.Class"; false for any other text. */
bool tsr_enum_is_class(tsr_str dotted);

/* Whether a pickled value can be the name of a member: an identifier, but none of the attributes that every class has
 * (`__globals__`) or every enum (`_member_map_`). */
bool tsr_enum_is_member(const tsr_pickle *pickle, tsr_ref name);

/* Whether a pickled value can be that of a member: None, a bool, a number or a string. */
bool tsr_enum_is_plain(tsr_pickle_kind kind);

/* For a value that was read as `Class(value)` with a listed class, that plain value; for any other NULL. */
const tsr_value *tsr_enum_value(const tsr_value *value);

/* For a value that was read as `getattr(Class, name)` with a listed class, the text "module.Class"; for any other, empty. */
tsr_str tsr_enum_named(const tsr_value *value);

/* For a value that was read as the call `getattr(Class, name)` with a class that is not listed, and that can pick nothing but a
 * member of a user's own enum, the text "module.Class"; for any other, empty. */
tsr_str tsr_enum_picked(const tsr_value *object);

#endif
