/* Reads pickles (protocols 0 to 5) as data, on a restricted stack machine. It never imports, resolves or calls anything: a
 * class or function becomes a GLOBAL node with its two names, and REDUCE, NEWOBJ, OBJ, INST and BUILD make OBJECT nodes that
 * record what Python's unpickler would have done. Readers then recognize the names that they know.
 *
 * Nodes are 4-byte refs into pools that belong to the tsr_pickle. Nodes may be shared and may form cycles, so walk them with
 * a budget. Parsing does not recurse and takes linear time; memory is bounded by a small multiple of the input. A stated
 * length is compared with the remaining bytes before memory is allocated for it, and a large memo index costs no more than a
 * small one.
 *
 * Source of the behavior: CPython's pickletools and Lib/pickle.py (the meaning of opcodes),
 * torch/_weights_only_unpickler.py. */
#ifndef TSR_CODEC_PICKLE_H
#define TSR_CODEC_PICKLE_H

#include "tessera/host.h"
#include "tessera/sys/containers.h"

typedef uint32_t tsr_ref;
#define TSR_REF_NONE 0u /* Python's None; also means "absent" */

typedef enum tsr_pickle_kind {
    TSR_PICKLE_NONE = 0,
    TSR_PICKLE_BOOL,
    TSR_PICKLE_INT,
    TSR_PICKLE_BIGINT, /* an int that does not fit in int64: its bytes as in LONG1 and LONG4 */
    TSR_PICKLE_FLOAT,
    TSR_PICKLE_STR,
    TSR_PICKLE_BYTES, /* BINBYTES…, BYTEARRAY8 */
    TSR_PICKLE_LIST,
    TSR_PICKLE_TUPLE,
    TSR_PICKLE_DICT,
    TSR_PICKLE_SET, /* a set or a frozenset */
    TSR_PICKLE_GLOBAL,
    TSR_PICKLE_OBJECT,
    TSR_PICKLE_PERSISTENT, /* a persistent id, which is its only item */
    TSR_PICKLE_FOLDED      /* a record that the sink made */
} tsr_pickle_kind;

typedef enum tsr_pickle_how {
    TSR_PICKLE_CALLED /* REDUCE, OBJ, INST */,
    TSR_PICKLE_BUILT /* NEWOBJ, NEWOBJ_EX */
} tsr_pickle_how;

typedef struct tsr_pickle tsr_pickle;

/* A name that a reader knows, and the number (1 to 0xffff) that it gives the name. Names must match exactly, after Python's
 * renaming: up to protocol 2, "__builtin__" is "builtins", "copy_reg" is "copyreg", and built-in types have their Python 3
 * names ("long" is "int"). A sink that folds adds one of the flags to the number: fold an object when it is made (REDUCE,
 * OBJ, INST, NEWOBJ), or when it gets its state (BUILD). */
typedef struct tsr_pickle_name {
    const char *module;
    const char *name;
    uint32_t id;
} tsr_pickle_name;
#define TSR_PICKLE_FOLD_MADE  0x10000u
#define TSR_PICKLE_FOLD_BUILT 0x20000u
/* Another flag: Python refuses instances as keys of a dict and as items of a set. */
#define TSR_PICKLE_UNHASHABLE 0x40000u

/* The parts of an object that a sink sees: its arguments when it is made, its state when it is built. */
typedef struct tsr_pickle_parts {
    uint32_t class_id;
    bool built;           /* `items` come from the state; otherwise from the argument tuple */
    tsr_pickle_how how;   /* how the object was made */
    size_t made_of;       /* the number of arguments that it was made with */
    tsr_pickle_kind kind; /* DICT: alternating keys and values; TUPLE, LIST: items; any other: one item, the state itself */
    const tsr_ref *items;
    size_t count;
    const int64_t *ints; /* the values, if it was made with one tuple of at most 64 ints, or NULL; with them, `items` may be
                          * empty */
    size_t int_count;
    uint64_t position; /* of the opcode that provided these parts */
} tsr_pickle_parts;

/* Lets a format turn known objects into compact records during parsing. `fold` is called for objects of classes with a fold
 * flag. It returns a TSR_PICKLE_FOLDED ref made by tsr_pickle_folded, or TSR_REF_NONE to keep the object as it is; it is
 * asked again if parsing starts over.
 *
 * After a BUILD, the parts of a folded object are dropped: all nodes made since the object, except strings, bytes, GLOBALs,
 * small ints and other records. A record must therefore hold no other refs. If the pickle later fetches a dropped part from
 * the memo, tsr_pickle_parse starts over and drops nothing. Without a sink or without `fold`, nodes are never folded. */
typedef struct tsr_pickle_sink {
    const tsr_pickle_name *names; /* `count` of them */
    size_t count;
    uint32_t (*other)(tsr_str module, tsr_str name); /* the number of a name that is not in `names`, or 0; may be NULL */
    tsr_status (*fold)(void *ctx, const tsr_pickle *pickle, const tsr_pickle_parts *parts, tsr_ref *out, tsr_error *err);
    void (*restart)(void *ctx); /* forget all records, because parsing starts over */
    /* Whether Python can hash the object that was folded into the record. May be NULL: all can be hashed. */
    bool (*is_hashable)(void *ctx, tsr_ref record);
    void *ctx;
} tsr_pickle_sink;

/* Parses the pickle at the beginning of `data` and sets *consumed to its length, unless `consumed` is NULL. Strings borrow
 * `data`. Free *out with tsr_pickle_free. Errors: TSR_E_FORMAT with the byte position and the opcode; TSR_E_UNSUPPORTED for
 * extension codes, out-of-band buffers and protocol 6; TSR_E_LIMIT for limits.metadata_bytes and limits.memory_bytes of the
 * host; TSR_E_NOMEM. */
tsr_status tsr_pickle_parse(tsr_str data, const tsr_host *host, const tsr_pickle_sink *sink, tsr_pickle **out,
                            size_t *consumed, tsr_error *err);
void tsr_pickle_free(tsr_pickle *pickle); /* accepts NULL */

tsr_ref tsr_pickle_root(const tsr_pickle *pickle);
unsigned tsr_pickle_protocol(const tsr_pickle *pickle); /* as PROTO states it; 0 without PROTO */
/* The highest number of a memo slot that does not continue the sequence of slots; 0 if every slot does. */
uint64_t tsr_pickle_highest_far(const tsr_pickle *pickle);
tsr_pickle_kind tsr_pickle_kind_of(const tsr_pickle *pickle, tsr_ref ref);
/* For a ref of another kind, the accessors below return 0, "" or TSR_REF_NONE. */
bool tsr_pickle_bool(const tsr_pickle *pickle, tsr_ref ref);
int64_t tsr_pickle_int(const tsr_pickle *pickle, tsr_ref ref); /* of an INT; 0 or 1 for a BOOL */
double tsr_pickle_float(const tsr_pickle *pickle, tsr_ref ref);
tsr_str tsr_pickle_text(const tsr_pickle *pickle, tsr_ref ref); /* of a STR, BYTES or BIGINT */
/* The number of items of a LIST, TUPLE or SET, or of pairs of a DICT. Pairs are in the order in which they were set, and a
 * key that was set repeatedly has several. 0 for other nodes. */
size_t tsr_pickle_count(const tsr_pickle *pickle, tsr_ref ref);
tsr_ref tsr_pickle_item(const tsr_pickle *pickle, tsr_ref ref, size_t index);
tsr_ref tsr_pickle_key(const tsr_pickle *pickle, tsr_ref dict, size_t index);
tsr_ref tsr_pickle_value(const tsr_pickle *pickle, tsr_ref dict, size_t index);
/* The items of a LIST, TUPLE or SET, or alternating keys and values of a DICT (2 × count), as one array. It is borrowed and
 * valid until parsing continues or the pickle is freed. */
const tsr_ref *tsr_pickle_items(const tsr_pickle *pickle, tsr_ref ref, size_t *count);
/* Stores the ints of a TUPLE or LIST in `out` and returns their number. Returns -1 if `ref` is another node, has more than
 * `max` items, or has an item that is not an int. */
int tsr_pickle_ints(const tsr_pickle *pickle, tsr_ref ref, int64_t *out, int max);
/* The value under a string key, or TSR_REF_NONE; the last one counts if the key was set repeatedly. *found states whether
 * the key exists; `found` may be NULL. Searches linearly. */
tsr_ref tsr_pickle_get(const tsr_pickle *pickle, tsr_ref dict, const char *key, bool *found);

/* Whether Python can hash the node: false for lists, dicts, sets, bytearrays and objects of unhashable classes. The items of
 * a TUPLE are not examined. */
bool tsr_pickle_is_hashable(const tsr_pickle *pickle, tsr_ref ref);

/* The names of a GLOBAL as written, after the renaming above, and its number in the sink's table without flags, or 0. */
tsr_str tsr_pickle_module(const tsr_pickle *pickle, tsr_ref global);
tsr_str tsr_pickle_name_of(const tsr_pickle *pickle, tsr_ref global);
uint32_t tsr_pickle_id(const tsr_pickle *pickle, tsr_ref global);

/* The parts of an OBJECT: its class (a GLOBAL, or any node in unusual input), its arguments (a TUPLE or none), and the state
 * that BUILD gave it. Then what was put into it: by APPENDS or ADDITEMS as a LIST, and by SETITEMS as a DICT. A part that
 * does not exist is TSR_REF_NONE; the last of several states counts. If NEWOBJ_EX had keyword arguments, the arguments are a
 * TUPLE of the positional TUPLE and the keyword DICT. */
tsr_pickle_how tsr_pickle_how_of(const tsr_pickle *pickle, tsr_ref object);
bool tsr_pickle_has_keywords(const tsr_pickle *pickle, tsr_ref object);
tsr_ref tsr_pickle_class(const tsr_pickle *pickle, tsr_ref object);
uint32_t tsr_pickle_class_id(const tsr_pickle *pickle, tsr_ref object); /* the number of its class if that is a known
                                                                         * GLOBAL */
tsr_ref tsr_pickle_args(const tsr_pickle *pickle, tsr_ref object);
tsr_ref tsr_pickle_state(const tsr_pickle *pickle, tsr_ref object);
bool tsr_pickle_has_state(const tsr_pickle *pickle, tsr_ref object); /* true even if BUILD gave it None */
tsr_ref tsr_pickle_appended(const tsr_pickle *pickle, tsr_ref object);
tsr_ref tsr_pickle_dict_items(const tsr_pickle *pickle, tsr_ref object);
/* The byte position of the opcode that made an OBJECT or GLOBAL; TSR_NO_POSITION for other nodes. */
uint64_t tsr_pickle_position(const tsr_pickle *pickle, tsr_ref ref);
tsr_ref tsr_pickle_persistent(const tsr_pickle *pickle, tsr_ref ref); /* the persistent id */

/* Every OBJECT, including those that are not reachable from the root, because a pickle may call something and pop the
 * result. Folded objects are not included. */
size_t tsr_pickle_object_count(const tsr_pickle *pickle);
tsr_ref tsr_pickle_object(const tsr_pickle *pickle, size_t index);

/* Unusual operations of a pickle, beyond making objects of GLOBALs. They are listed in order, whether or not the root holds
 * their results. */
typedef enum tsr_pickle_oddity_kind {
    TSR_PICKLE_ODD_CALL,   /* REDUCE, OBJ, NEWOBJ or NEWOBJ_EX with something that is not a GLOBAL */
    TSR_PICKLE_ODD_BUILD,  /* BUILD of something that the pickle did not make; the state is dropped */
    TSR_PICKLE_ODD_ITEMS,  /* items for something that the pickle did not make; they are dropped */
    TSR_PICKLE_ODD_AGAIN,  /* a second state, or appended items, of an object that has a state; a state replaces the first */
    TSR_PICKLE_ODD_KEY,    /* a dict key or set item of a type that Python cannot hash */
    TSR_PICKLE_ODD_STRING, /* a Python 2 str that is not UTF-8, which is read as bytes */
    TSR_PICKLE_ODD_PERSISTENT, /* a persistent id */
} tsr_pickle_oddity_kind;
typedef struct tsr_pickle_oddity {
    tsr_pickle_oddity_kind kind;
    tsr_ref ref; /* ODD_CALL: the callee, if it is an OBJECT or a PERSISTENT; ODD_PERSISTENT: the node; otherwise
                  * TSR_REF_NONE */
    uint64_t position;
} tsr_pickle_oddity;
/* All of them, `*count` in number; borrowed. */
const tsr_pickle_oddity *tsr_pickle_oddities(const tsr_pickle *pickle, size_t *count);

/* For sinks: make a ref for the sink's record with number `index` (below 2^28), and get the number back. */
tsr_ref tsr_pickle_folded(uint32_t index);
uint32_t tsr_pickle_folded_index(tsr_ref ref);

/* Calls `each` once for every GLOBAL that has no number, for findings. `use` is the strongest use that the pickle makes of
 * it: a call (REDUCE, OBJ, INST), NEWOBJ, or just its name. */
typedef enum tsr_pickle_use { TSR_PICKLE_NAMED, TSR_PICKLE_USE_BUILT, TSR_PICKLE_USE_CALLED } tsr_pickle_use;
void tsr_pickle_unknown(const tsr_pickle *pickle, void (*each)(void *ctx, tsr_ref global, tsr_pickle_use use), void *ctx);

/* Writes pickles: the opcodes that Python's pickler writes for the data in checkpoints, in protocol 2 (torch.save) or 4
 * (.metadata). Equal strings and equal globals are written once and then fetched from the memo, as Python does for interned
 * strings.
 *
 * Calls append to a vec of bytes in the postfix order of pickles: write the parts of a value, then the opcode that combines
 * them. The first failure is kept and makes later calls do nothing, so check it once, with tsr_pickler_finish. Source:
 * CPython's pickletools and Lib/pickle.py. */

typedef struct tsr_pickler {
    unsigned protocol;
    tsr_vec *out;
    tsr_map *strings; /* text → memo slot */
    tsr_map *globals; /* "module\nname" → memo slot */
    tsr_arena *keys;
    tsr_vec key; /* the last one that was looked for in `globals` */
    uint32_t memo_count;
    tsr_status status;
    tsr_error *err;
} tsr_pickler;

/* Starts a pickle at the end of `out`; `protocol` is 2 or 4. Call tsr_pickler_close afterwards, even after a failure. */
void tsr_pickler_open(tsr_pickler *pickler, unsigned protocol, const tsr_allocator *allocator, tsr_vec *out, tsr_error *err);
/* Writes STOP. Returns the first failure, or TSR_OK. */
tsr_status tsr_pickler_finish(tsr_pickler *pickler);
void tsr_pickler_close(tsr_pickler *pickler);

void tsr_pickler_none(tsr_pickler *pickler);
void tsr_pickler_bool(tsr_pickler *pickler, bool value);
void tsr_pickler_int(tsr_pickler *pickler, int64_t value);
void tsr_pickler_uint(tsr_pickler *pickler, uint64_t value);
/* Writes an int that is given as two's complement bytes, little-endian. */
void tsr_pickler_bigint(tsr_pickler *pickler, tsr_str bytes);
void tsr_pickler_float(tsr_pickler *pickler, double value);
void tsr_pickler_str(tsr_pickler *pickler, tsr_str text); /* UTF-8; lone surrogates as in Python's surrogatepass */
void tsr_pickler_bytes(tsr_pickler *pickler, tsr_str bytes);
/* Writes a class or function. Fails with TSR_E_UNSUPPORTED if a name contains a line break or NUL. */
void tsr_pickler_global(tsr_pickler *pickler, tsr_str module, tsr_str name);

void tsr_pickler_mark(tsr_pickler *pickler);
/* Combines the `count` topmost values into a tuple. If there are more than 3, write a mark before them. */
void tsr_pickler_tuple(tsr_pickler *pickler, size_t count);
void tsr_pickler_empty_list(tsr_pickler *pickler);
void tsr_pickler_empty_dict(tsr_pickler *pickler);
void tsr_pickler_appends(tsr_pickler *pickler);  /* after a list, a mark and the items */
void tsr_pickler_setitems(tsr_pickler *pickler); /* after a dict, a mark, and alternating keys and values */
void tsr_pickler_reduce(tsr_pickler *pickler);   /* after a callable and its arguments */
void tsr_pickler_newobj(tsr_pickler *pickler);   /* after a class and its arguments */
void tsr_pickler_build(tsr_pickler *pickler);    /* after an object and its state */
void tsr_pickler_persistent(tsr_pickler *pickler);
/* Store the topmost value in the memo, which returns its slot, and push the value of a slot again. */
uint32_t tsr_pickler_memoize(tsr_pickler *pickler);
void tsr_pickler_get(tsr_pickler *pickler, uint32_t memo);

#endif
