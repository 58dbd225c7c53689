/* A restricted pickle machine (protocols 0–5): bytes → tagged data. It never imports, resolves or calls anything: a
 * class or function is a GLOBAL node that carries two names, and REDUCE, NEWOBJ, OBJ, INST and BUILD make OBJECT nodes
 * that record what a Python unpickler would have been asked to do. Readers recognize the names they know.
 *
 * Nodes are 4-byte refs into pools that belong to the tsr_pickle. A pickle may share nodes and may hold cycles: walk with
 * a budget. The parse is iterative and linear in the input; memory is bounded by a small multiple of the input; nothing
 * is allocated from a declared length or memo index before it is compared with the bytes there are.
 *
 * Source of the behaviour: CPython's pickletools and Lib/pickle.py (opcode meanings), torch/_weights_only_unpickler.py. */
#ifndef TSR_CODEC_PICKLE_H
#define TSR_CODEC_PICKLE_H

#include "tessera/host.h"

typedef uint32_t tsr_ref;
#define TSR_REF_NONE 0u /* Python's None; also "absent" */

typedef enum tsr_pickle_kind {
    TSR_PICKLE_NONE = 0,
    TSR_PICKLE_BOOL,
    TSR_PICKLE_INT,
    TSR_PICKLE_BIGINT, /* beyond int64: bytes as LONG1/LONG4 have them */
    TSR_PICKLE_FLOAT,
    TSR_PICKLE_STR,
    TSR_PICKLE_BYTES, /* BINBYTES…, BYTEARRAY8 */
    TSR_PICKLE_LIST,
    TSR_PICKLE_TUPLE,
    TSR_PICKLE_DICT,
    TSR_PICKLE_SET, /* set and frozenset */
    TSR_PICKLE_GLOBAL,
    TSR_PICKLE_OBJECT,
    TSR_PICKLE_PERSISTENT, /* persistent id: one item */
    TSR_PICKLE_FOLDED      /* a record of the sink's own */
} tsr_pickle_kind;

typedef enum tsr_pickle_how {
    TSR_PICKLE_CALLED /* REDUCE, OBJ, INST */,
    TSR_PICKLE_BUILT /* NEWOBJ, NEWOBJ_EX */
} tsr_pickle_how;

typedef struct tsr_pickle tsr_pickle;

/* A name a reader knows, and the number it gives it (1 … 0xffff). Matched exactly, after Python 2 → 3 renaming of
 * "__builtin__" to "builtins" and "copy_reg" to "copyreg", and of built-in types ("long" to "int"), which Python does up to
 * protocol 2. A sink that folds adds one of the flags to the number:
 * fold when the object is made (REDUCE, OBJ, INST, NEWOBJ), or when it gets its state (BUILD). */
typedef struct tsr_pickle_name {
    const char *module;
    const char *name;
    uint32_t id;
} tsr_pickle_name;
#define TSR_PICKLE_FOLD_MADE  0x10000u
#define TSR_PICKLE_FOLD_BUILT 0x20000u
/* Also a flag: Python refuses instances as keys of a dict and as items of a set. */
#define TSR_PICKLE_UNHASHABLE 0x40000u

/* What a sink sees of an object: its arguments when it was made, its state when it was built. */
typedef struct tsr_pickle_parts {
    uint32_t class_id;
    bool built; /* `items` are of the state; else of the argument tuple */
    tsr_pickle_how how;  /* how the object was made */
    size_t made_of;      /* from how many arguments */
    tsr_pickle_kind
        kind; /* DICT: keys and values in turn; TUPLE, LIST: items; any other: the state itself is the one item */
    const tsr_ref *items;
    size_t count;
    const int64_t *ints; /* made with one tuple of at most 64 ints: its values; otherwise NULL. `items` may then be empty */
    size_t int_count;
    uint64_t position;   /* of the opcode that gave these parts */
} tsr_pickle_parts;

/* Lets a format turn known objects into compact records while they are parsed. `fold` is called for objects of classes
 * with a fold flag; it may return a TSR_PICKLE_FOLDED ref made by tsr_pickle_folded(), or TSR_REF_NONE to keep the object
 * as it is (it is then asked again when the parse starts over). After a BUILD the parts of the object are dropped: all
 * nodes made since the object, but strings, bytes, GLOBALs, small ints and other records (a later memo fetch of a dropped
 * part makes tsr_pickle_parse start over and drop nothing). So a record holds no ref but those. NULL sink or fold:
 * generic trees only. */
typedef struct tsr_pickle_sink {
    const tsr_pickle_name *names; /* `count` of them */
    size_t count;
    uint32_t (*other)(tsr_str module, tsr_str name); /* the number of a name that is not in `names`, or 0; may be NULL */
    tsr_status (*fold)(void *ctx, const tsr_pickle *pickle, const tsr_pickle_parts *parts, tsr_ref *out, tsr_error *err);
    void (*restart)(void *ctx); /* forget all records: parsing starts over */
    bool (*is_hashable)(void *ctx, tsr_ref record); /* whether Python can hash what was folded into it; may be NULL: all of it */
    void *ctx;
} tsr_pickle_sink;

/* Parses one pickle at the beginning of `data`; `*consumed` (may be NULL) is its length. Strings borrow `data`. Errors:
 * TSR_E_FORMAT with the byte position and the opcode, TSR_E_UNSUPPORTED (extension codes, out-of-band buffers, protocol
 * 6), TSR_E_LIMIT, TSR_E_NOMEM. Bounded by limits.metadata_bytes and limits.memory_bytes of the host. */
tsr_status tsr_pickle_parse(tsr_str data, const tsr_host *host, const tsr_pickle_sink *sink, tsr_pickle **out,
                            size_t *consumed, tsr_error *err);
void tsr_pickle_free(tsr_pickle *pickle); /* takes NULL */

tsr_ref tsr_pickle_root(const tsr_pickle *pickle);
unsigned tsr_pickle_protocol(const tsr_pickle *pickle); /* as PROTO states it; 0 without one */
tsr_pickle_kind tsr_pickle_kind_of(const tsr_pickle *pickle, tsr_ref ref);
/* The accessors below give 0, "" or TSR_REF_NONE for a ref of another kind. */
bool tsr_pickle_bool(const tsr_pickle *pickle, tsr_ref ref);
int64_t tsr_pickle_int(const tsr_pickle *pickle, tsr_ref ref); /* INT (BOOL gives 0 or 1) */
double tsr_pickle_float(const tsr_pickle *pickle, tsr_ref ref);
tsr_str tsr_pickle_text(const tsr_pickle *pickle, tsr_ref ref); /* STR, BYTES, BIGINT */
/* LIST, TUPLE, SET: items; DICT: pairs as they were set, a repeated key included; others 0. */
size_t tsr_pickle_count(const tsr_pickle *pickle, tsr_ref ref);
tsr_ref tsr_pickle_item(const tsr_pickle *pickle, tsr_ref ref, size_t index);
tsr_ref tsr_pickle_key(const tsr_pickle *pickle, tsr_ref dict, size_t index);
tsr_ref tsr_pickle_value(const tsr_pickle *pickle, tsr_ref dict, size_t index);
/* The same as one borrowed run: items of a LIST, TUPLE or SET; keys and values in turn (2 × count) of a DICT. Valid until
 * the parse goes on or the pickle is freed. */
const tsr_ref *tsr_pickle_items(const tsr_pickle *pickle, tsr_ref ref, size_t *count);
/* The ints of a TUPLE or LIST: how many there are, or -1 when `ref` is no such thing, holds anything else, or more than
 * `max`. */
int tsr_pickle_ints(const tsr_pickle *pickle, tsr_ref ref, int64_t *out, int max);
/* The value under a string key (the last one set), or TSR_REF_NONE; `found` may be NULL. Linear. */
tsr_ref tsr_pickle_get(const tsr_pickle *pickle, tsr_ref dict, const char *key, bool *found);

/* Whether Python can hash the node: false for lists, dicts, sets, bytearrays and objects of unhashable classes. The items of
 * a TUPLE are not looked at. */
bool tsr_pickle_is_hashable(const tsr_pickle *pickle, tsr_ref ref);

/* GLOBAL: names as written (after the renaming above); id of the sink's table (without flags) or 0. */
tsr_str tsr_pickle_module(const tsr_pickle *pickle, tsr_ref global);
tsr_str tsr_pickle_name_of(const tsr_pickle *pickle, tsr_ref global);
uint32_t tsr_pickle_id(const tsr_pickle *pickle, tsr_ref global);

/* OBJECT: class (a GLOBAL, or any node in odd input), arguments (a TUPLE, or none; NEWOBJ_EX: a TUPLE whose last two items
 * are the positional TUPLE and the keyword DICT), state of BUILD (none when absent), and what APPENDS or ADDITEMS (a LIST)
 * and SETITEMS (a DICT) put into it, each TSR_REF_NONE when nothing did. Several BUILDs keep the last state. */
tsr_pickle_how tsr_pickle_how_of(const tsr_pickle *pickle, tsr_ref object);
bool tsr_pickle_has_keywords(const tsr_pickle *pickle, tsr_ref object); /* made by NEWOBJ_EX */
tsr_ref tsr_pickle_class(const tsr_pickle *pickle, tsr_ref object);
uint32_t tsr_pickle_class_id(const tsr_pickle *pickle, tsr_ref object); /* id of the class when it is a known GLOBAL */
tsr_ref tsr_pickle_args(const tsr_pickle *pickle, tsr_ref object);
tsr_ref tsr_pickle_state(const tsr_pickle *pickle, tsr_ref object);
bool tsr_pickle_has_state(const tsr_pickle *pickle, tsr_ref object); /* also where BUILD gave it None */
tsr_ref tsr_pickle_appended(const tsr_pickle *pickle, tsr_ref object);
tsr_ref tsr_pickle_dict_items(const tsr_pickle *pickle, tsr_ref object);
/* Byte position of the opcode that made an OBJECT or GLOBAL; TSR_NO_POSITION for others. */
uint64_t tsr_pickle_position(const tsr_pickle *pickle, tsr_ref ref);
tsr_ref tsr_pickle_persistent(const tsr_pickle *pickle, tsr_ref ref); /* the persistent id */

/* Every OBJECT, also those that the root does not hold: a pickle may call something and pop the result. After folding,
 * only those that are left. */
size_t tsr_pickle_object_count(const tsr_pickle *pickle);
tsr_ref tsr_pickle_object(const tsr_pickle *pickle, size_t index);

/* What a pickle asks for beside making objects of GLOBALs, in its order, whether or not the root holds the result. */
typedef enum tsr_pickle_oddity_kind {
    TSR_PICKLE_ODD_CALL,       /* REDUCE, OBJ, NEWOBJ, NEWOBJ_EX of something that is not a GLOBAL */
    TSR_PICKLE_ODD_BUILD,      /* BUILD gives a state to something that the pickle did not make; the state is dropped */
    TSR_PICKLE_ODD_ITEMS,      /* items are put into something that the pickle did not make; they are dropped */
    TSR_PICKLE_ODD_KEY,        /* a dict key or a set item of a type that Python cannot hash */
    TSR_PICKLE_ODD_STRING,     /* a str of Python 2 that is not UTF-8: read as bytes */
    TSR_PICKLE_ODD_PERSISTENT, /* a persistent id is resolved */
} tsr_pickle_oddity_kind;
typedef struct tsr_pickle_oddity {
    tsr_pickle_oddity_kind kind;
    tsr_ref ref; /* ODD_CALL: what is called when it is an OBJECT or a PERSISTENT; ODD_PERSISTENT: the node; otherwise
                  * TSR_REF_NONE */
    uint64_t position;
} tsr_pickle_oddity;
/* Borrowed; `*count` of them. */
const tsr_pickle_oddity *tsr_pickle_oddities(const tsr_pickle *pickle, size_t *count);

/* For sinks: a ref that stands for record `index` (< 2^28) of the sink's own; and back. */
tsr_ref tsr_pickle_folded(uint32_t index);
uint32_t tsr_pickle_folded_index(tsr_ref ref);

/* All GLOBALs without an id, each once, for findings: calls f(ctx, global, use) where `use` says whether a call of
 * it was asked for (REDUCE, OBJ, INST), or only NEWOBJ, or a mere mention. */
typedef enum tsr_pickle_use { TSR_PICKLE_NAMED, TSR_PICKLE_USE_BUILT, TSR_PICKLE_USE_CALLED } tsr_pickle_use;
void tsr_pickle_unknown(const tsr_pickle *pickle, void (*each)(void *ctx, tsr_ref global, tsr_pickle_use use), void *ctx);

#endif
