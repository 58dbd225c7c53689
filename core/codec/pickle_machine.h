/* Internals of the pickle machine: the layout of nodes, and the state of a parse.
 *
 *   ref         [ index 28 | tag 4 ]     constants and ints of 28 bits are inline, all others index a pool
 *   words       tuples as [count, item, …]; the items of lists, sets and dicts; persistent ids
 *   containers  {start, count, capacity} of a run of words: LIST, SET, DICT (two words per pair)
 *   texts       [ position 40 | size 24 ] in the input, or an index into `foreign` if the size is all ones
 *
 * If the sink folds an object on BUILD, an `open` record stores the size of each pool when the object is made. Everything
 * made after that is above these sizes, and the fold cuts the pools back to them. This is safe because nothing older can
 * refer to nodes above them: the stack below the object is fenced (`floor`), and a change to an older container or memo slot
 * is noticed and stops the dropping (`again`). Memo slots of dropped nodes become holes. */
#ifndef TSR_CODEC_PICKLE_MACHINE_H
#define TSR_CODEC_PICKLE_MACHINE_H

#include "codec/pickle.h"

#include "tessera/sys/containers.h"

typedef enum tag {
    TAG_CONST, /* None, False, True */
    TAG_SMALL, /* an int of 28 bits, two's complement */
    TAG_WIDE,
    TAG_BIGINT,
    TAG_FLOAT,
    TAG_STR,
    TAG_BYTES,
    TAG_LIST,
    TAG_TUPLE,
    TAG_DICT,
    TAG_SET,
    TAG_GLOBAL,
    TAG_OBJECT,
    TAG_PERSISTENT,
    TAG_FOLDED,
    TAG_HOLE /* only in the memo: a slot that was never set, or was dropped */
} tag;

#define REF(tag_, index_) ((tsr_ref)(index_) << 4 | (tsr_ref)(tag_))
#define REF_FALSE         REF(TAG_CONST, 1)
#define REF_TRUE          REF(TAG_CONST, 2)
#define REF_EMPTY_TUPLE   REF(TAG_TUPLE, 0) /* word 0 is its item count */
#define REF_DROPPED       REF(TAG_HOLE, 1)
#define MAX_ITEMS         ((size_t)1 << 27) /* in a pool: indices then fit in 28 bits */
#define TEXT_SIZE_MASK    0xFFFFFFu

static inline tag tag_of(tsr_ref ref)
{
    return (tag)(ref & 15);
}
static inline uint32_t index_of(tsr_ref ref)
{
    return ref >> 4;
}

enum { INTS_MAX = 64 }; /* the most ints in tsr_pickle_parts.ints */

/* Little-endian loads that compilers turn into a single instruction. */
static inline uint32_t load_u16(const uint8_t *p)
{
    return (uint32_t)(p[0] | p[1] << 8);
}
static inline uint32_t load_u32(const uint8_t *p)
{
    return load_u16(p) | load_u16(p + 2) << 16;
}
static inline uint64_t load_u64(const uint8_t *p)
{
    return load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}

typedef struct container {
    uint32_t start, count, capacity; /* in words; the capacity of a frozenset is FROZEN */
} container;

#define FROZEN UINT32_MAX

enum { MADE_BY_NEWOBJ = 1, HAS_STATE = 2 };

typedef struct object {
    tsr_ref callee, args, state;
    uint32_t held;     /* 1 + index of the `held` with the items put into it, or 0 */
    uint64_t position; /* shifted left by 2, with the flags MADE_BY_NEWOBJ and HAS_STATE */
} object;

typedef struct held {
    tsr_ref appended, dict_items;
} held;

typedef struct global {
    tsr_ref module, name;
    uint32_t id; /* with the flags of tsr_pickle_name */
    tsr_pickle_use use;
    uint64_t position;
    uint64_t hash;
} global;

struct tsr_pickle {
    tsr_str data;
    const tsr_allocator *allocator;
    tsr_vec words;      /* uint32_t */
    tsr_vec containers; /* container */
    tsr_vec objects;    /* object */
    tsr_vec helds;      /* held */
    tsr_vec wides;      /* uint64_t: ints and floats that are not inline */
    tsr_vec texts;      /* uint64_t */
    tsr_vec foreign;    /* tsr_str: texts that were decoded, or are too long to pack */
    tsr_vec globals;    /* global */
    tsr_vec slots;      /* uint32_t: hash table of 1 + global; its size is a power of two */
    tsr_vec oddities;   /* tsr_pickle_oddity */
    tsr_vec bytearrays; /* uint32_t: the texts that are bytearrays, in ascending order */
    tsr_arena *decoded; /* holds texts that had escapes; NULL if there are none yet */
    tsr_ref root;
    unsigned protocol;    /* as PROTO states it */
    uint64_t highest_far; /* the highest number of a memo slot that does not continue the sequence; 0: there are none */
};

typedef struct open {
    uint32_t slot, object, words, containers, helds, wides;
    size_t memo;
} open;

/* A memo slot that does not continue the sequence: Python lets a pickle number its slots freely. */
typedef struct far_slot {
    uint64_t index; /* 1 + slot number; 0 if free */
    tsr_ref ref;
} far_slot;

typedef struct span {
    size_t from, to;
} span;

typedef struct machine {
    tsr_pickle *pickle;
    const tsr_host *host;
    const tsr_pickle_sink *sink; /* NULL if nothing is folded */
    tsr_error *err;
    tsr_status status;
    const uint8_t *start, *end;
    const uint8_t *at; /* the current opcode */
    const uint8_t *frame_end;
    tsr_vec stack, marks, memo; /* tsr_ref; stack positions; tsr_ref */
    tsr_vec opens;              /* open */
    tsr_vec clean;              /* span: memo slots in which everything survives dropping */
    /* far_slot: a hash table of the memo slots that do not continue `memo`. Its size is a power of two. */
    tsr_vec far;
    size_t far_count;    /* slots used in `far`; once it is not 0, `memo` does not grow */
    tsr_ref *sp, *limit; /* sp is current only while a function outside the main loop runs */
    tsr_ref *floor;      /* going below it requires tsr_pickle_settle */
    tsr_ref *mark_floor; /* the stack position of the topmost mark */
    uint64_t pool_bytes;
    uint64_t hashed; /* the tuple items examined so far because they are part of keys */
    bool drop;       /* whether parts of folded objects are dropped */
    bool again;      /* something dropped is needed after all: start over without dropping */
} machine;

/* The functions below record an error in the machine. On failure they return NULL, TSR_REF_NONE or false. */
#define fail(machine_, status_, ...) \
    ((machine_)->status = tsr_raise((machine_)->err, (status_), (uint64_t)((machine_)->at - (machine_)->start), __VA_ARGS__))

/* pickle_odd.c: returns the name that Python's pickletools gives an opcode, for messages. */
const char *tsr_pickle_opcode(uint8_t opcode);

/* Makes room for `extra` more items, within the host's limits. */
bool tsr_pickle_grow(machine *m, tsr_vec *vec, size_t extra);
static inline bool has_room(machine *m, tsr_vec *vec, size_t extra)
{
    return extra <= vec->capacity - vec->count || tsr_pickle_grow(m, vec, extra);
}

/* pickle_fold.c: the stack with its marks, and the memo. */
bool tsr_pickle_grow_stack(machine *m);
bool tsr_pickle_settle(machine *m, const tsr_ref *sp, ptrdiff_t count);
tsr_ref *tsr_pickle_pop_mark(machine *m);
bool tsr_pickle_put(machine *m, uint64_t index, tsr_ref ref);
bool tsr_pickle_fetch(machine *m, uint64_t index, tsr_ref *out);

/* pickle_make.c: makes nodes. */
tsr_ref tsr_pickle_make_int(machine *m, int64_t value);
/* Two's complement, little-endian. */
tsr_ref tsr_pickle_make_long(machine *m, const uint8_t *bytes, size_t size);
tsr_ref tsr_pickle_make_float(machine *m, double value);
tsr_ref tsr_pickle_make_text(machine *m, tag tag_, const uint8_t *data, size_t size);
tsr_ref tsr_pickle_make_str(machine *m, const uint8_t *data, size_t size);     /* must be UTF-8 text */
tsr_ref tsr_pickle_make_py2_str(machine *m, const uint8_t *data, size_t size); /* becomes BYTES if it is not UTF-8 */
tsr_ref tsr_pickle_make_tuple(machine *m, const tsr_ref *from, size_t count);
tsr_ref tsr_pickle_make_persistent(machine *m, tsr_ref id);
tsr_ref tsr_pickle_make_container(machine *m, tag tag_, const tsr_ref *from, size_t count);
tsr_ref tsr_pickle_make_global(machine *m, tsr_ref module, tsr_ref name);
bool tsr_pickle_extend(machine *m, tsr_ref target, bool pairs, const tsr_ref *from, size_t count);

/* pickle_odd.c: records unusual operations that the nodes do not show. */
bool tsr_pickle_note_odd(machine *m, tsr_pickle_oddity_kind kind, tsr_ref ref);
/* Records keys that Python cannot hash: the keys of a dict (`pairs`: every second item) or the items of a set. */
bool tsr_pickle_check_keys(machine *m, bool pairs, const tsr_ref *from, size_t count);

/* pickle_fold.c: makes objects and shows them to the sink. The functions work on the stack at m->sp. */
bool tsr_pickle_do_call(machine *m); /* REDUCE: callable, arguments */
bool tsr_pickle_do_newobj(machine *m);
bool tsr_pickle_do_build(machine *m);
/* Makes an object by a call with the arguments [from, m->sp). */
tsr_ref tsr_pickle_call_since(machine *m, tsr_ref callee, const tsr_ref *from);
static inline bool show_sink(machine *m, tsr_pickle_parts *parts, uint32_t id, tsr_ref *record)
{
    parts->class_id = id & 0xFFFF;
    parts->position = (uint64_t)(m->at - m->start);
    *record = TSR_REF_NONE;
    m->status = m->sink->fold(m->sink->ctx, m->pickle, parts, record, m->err);
    return m->status == TSR_OK;
}
bool tsr_pickle_add_clean(machine *m, size_t from);
/* Notes that all memo slots from `from` on survive dropping. No span may contain them yet. */
static inline bool note_clean(machine *m, size_t from)
{
    span *last = m->clean.count ? (span *)m->clean.items + m->clean.count - 1 : NULL;
    if (!last || last->to != from) return tsr_pickle_add_clean(m, from);
    last->to = m->memo.count;
    return true;
}
/* pickle_quick.c: reads an entire object. `p` is after the EMPTY_TUPLE that follows the class in *slot. Puts the object's
 * record in *slot and returns the position after BUILD. If the object has another form, returns NULL and leaves m->status
 * TSR_OK. */
const uint8_t *tsr_pickle_quick(machine *m, tsr_ref *slot, const uint8_t *p);

/* pickle_rare.c: executes opcodes that current picklers seldom write. `p` is the byte after the opcode. Returns the position
 * after its operands, or NULL on failure. */
const uint8_t *tsr_pickle_rare(machine *m, uint8_t opcode, const uint8_t *p);

/* pickle_text.c: executes opcodes with textual operands, protocol 0, in the same way. */
const uint8_t *tsr_pickle_textual(machine *m, uint8_t opcode, const uint8_t *p);

static inline bool needs(machine *m, const tsr_ref *sp, ptrdiff_t count)
{
    return sp - m->floor >= count || tsr_pickle_settle(m, sp, count);
}

/* Whether the stack has an item above the topmost mark. Fails otherwise. */
static inline bool has_top(machine *m, const tsr_ref *sp)
{
    return sp > m->mark_floor || needs(m, sp, 1);
}

static inline tsr_ref *push(machine *m, tsr_ref *sp, tsr_ref ref)
{
    if (sp == m->limit) {
        m->sp = sp;
        if (!tsr_pickle_grow_stack(m)) return NULL;
        sp = m->sp;
    }
    *sp = ref;
    return sp + 1;
}

/* Finishes an opcode outside the main loop: pushes `made`, unless making it failed. Returns `next`, or NULL on failure. */
static inline const uint8_t *then_push(machine *m, tsr_ref made, const uint8_t *next)
{
    if (m->status != TSR_OK) return NULL;
    m->sp = push(m, m->sp, made);
    return m->sp ? next : NULL;
}

#endif
