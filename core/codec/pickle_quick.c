/* Reads the objects that make up nearly all of a large `.metadata`, each in one call instead of about 25 passes of the main
 * loop:
 *
 *   class ) | NEWOBJ MEMOIZE | EMPTY_DICT MEMOIZE | MARK key value key value … SETITEMS | BUILD
 *
 * Keys and values are memo fetches, ints, short strings, constants, and calls of classes that the sink folds when they are
 * made, with a tuple of ints:
 *
 *   class | int int | TUPLE2 MEMOIZE | TUPLE1 MEMOIZE | REDUCE MEMOIZE
 *
 * Only the sink's record of such an object remains, so no nodes are made, and the memo gets holes in their place. Anything
 * unexpected ends the attempt before the machine has changed, and the main loop reads the object from its beginning. */
#include "codec/pickle_machine.h"

enum {
    QUICK_ITEMS = 16, /* keys and values */
    QUICK_INTS = 8,
    QUICK_BYTES = 16, /* more bytes than any value except a string needs */
    QUICK_MEMO = 2 + 3 * QUICK_ITEMS
};

/* The state while such an object is read: the position in the input, and the memo as it will be. */
typedef struct quick {
    machine *m;
    const uint8_t *p;
    const uint8_t *last; /* the last position from which QUICK_BYTES can be read */
    tsr_ref *memo;
    size_t memo_count;
} quick;

static inline bool takes(quick *q, const char *bytes, size_t size)
{
    if (memcmp(q->p, bytes, size) != 0) return false;
    q->p += size;
    return true;
}

static inline void memoize(quick *q, tsr_ref ref)
{
    q->memo[q->memo_count++] = ref;
}

/* Reads an int that is at least 0, or any int of LONG1. The width is looked up in a table: it varies between objects, so
 * branches would be mispredicted. */
static inline bool take_int(quick *q, int64_t *out)
{
    static const uint8_t widths[256] = {['K'] = 1, ['M'] = 2, ['J'] = 4};
    const uint8_t *p = q->p;
    unsigned width = widths[*p];
    if (width) {
        *out = (int64_t)(load_u64(p + 1) << (64 - 8 * width) >> (64 - 8 * width));
        q->p += 1 + width;
        return *out <= INT32_MAX;
    }
    width = p[1];
    if (*p != 0x8a || width == 0 || width > 8) return false;
    *out = (int64_t)(load_u64(p + 2) << (64 - 8 * width)) >> (64 - 8 * width);
    q->p += 2 + width;
    return true;
}

/* Reads a tuple of ints, which is memoized unless it is empty. */
static inline bool take_ints(quick *q, int64_t *ints, size_t *count)
{
    bool marked = *q->p == '(';
    *count = 0;
    if (*q->p == ')') {
        q->p++;
        return true;
    }
    if (marked) q->p++;
    while (*count < QUICK_INTS && q->p <= q->last && take_int(q, &ints[*count])) ++*count;
    if (*count == 0 || q->p > q->last) return false;
    if (marked ? *q->p != 't' : *count > 3 || *q->p != 0x84 + *count) return false;
    q->p++;
    memoize(q, REF_DROPPED);
    return takes(q, "\x94", 1);
}

static inline bool take_call(quick *q, uint32_t id, tsr_ref *out)
{
    int64_t ints[QUICK_INTS];
    tsr_pickle_parts parts = {.kind = TSR_PICKLE_TUPLE, .made_of = 1, .ints = ints};
    if (!take_ints(q, ints, &parts.int_count) || !takes(q, "\x85\x94R\x94", 4)) return false;
    memoize(q, REF_DROPPED);
    q->m->at = q->p - 2;
    if (!show_sink(q->m, &parts, id, out) || !*out) return false;
    memoize(q, *out);
    return true;
}

/* Reads a memo fetch, and returns false if the next opcode is another one. */
static inline bool take_index(quick *q, size_t *index)
{
    bool wide = *q->p == 'j';
    if (!wide && *q->p != 'h') return false;
    *index = wide ? load_u32(q->p + 1) : q->p[1];
    q->p += wide ? 5 : 2;
    return true;
}

static inline bool take_fetch(quick *q, size_t index, tsr_ref *out)
{
    if (index >= q->memo_count) return false;
    *out = q->memo[index];
    if (tag_of(*out) == TAG_HOLE) return false;
    if (tag_of(*out) != TAG_GLOBAL) return true;
    uint32_t id = ((const global *)q->m->pickle->globals.items)[index_of(*out)].id;
    return !(id & TSR_PICKLE_FOLD_MADE) || take_call(q, id, out);
}

static inline bool take_str(quick *q, tsr_ref *out)
{
    size_t size = q->p[1];
    if (size > (size_t)(q->last - q->p)) return false;
    q->m->at = q->p;
    *out = tsr_pickle_make_str(q->m, q->p + 2, size);
    q->p += 2 + size;
    if (*q->p == 0x94) {
        q->p++;
        memoize(q, *out);
    }
    return *out != TSR_REF_NONE;
}

static inline bool take_value(quick *q, tsr_ref *out)
{
    int64_t value;
    size_t index;
    if (take_index(q, &index)) return take_fetch(q, index, out);
    switch (*q->p) {
    case 0x8c: return take_str(q, out);
    case 'N':
        q->p++;
        *out = TSR_REF_NONE;
        return true;
    case 0x88:
        q->p++;
        *out = REF_TRUE;
        return true;
    case 0x89:
        q->p++;
        *out = REF_FALSE;
        return true;
    default:
        if (!take_int(q, &value)) return false;
        *out = tsr_pickle_make_int(q->m, value);
        return *out != TSR_REF_NONE;
    }
}

/* Reads keys and values up to SETITEMS BUILD. Returns their number, or 0. */
static inline size_t take_items(quick *q, tsr_ref *items)
{
    for (size_t count = 0; q->p <= q->last; count += 2) {
        if (*q->p == 'u') return takes(q, "ub", 2) ? count : 0;
        if (count == QUICK_ITEMS || !take_value(q, &items[count]) || q->p > q->last || !take_value(q, &items[count + 1]))
            return 0;
        if (tag_of(items[count]) == TAG_FOLDED) return 0; /* the main loop checks whether it can be hashed */
    }
    return 0;
}

const uint8_t *tsr_pickle_quick(machine *m, tsr_ref *slot, const uint8_t *p)
{
    tsr_pickle *pickle = m->pickle;
    global *class_ = (global *)pickle->globals.items + index_of(*slot);
    if (m->end - p < 5 + QUICK_BYTES) return NULL;
    if (!(class_->id & TSR_PICKLE_FOLD_BUILT) || !has_room(m, &m->memo, QUICK_MEMO)) return NULL;
    size_t wides = pickle->wides.count, texts = pickle->texts.count, first = m->memo.count;
    quick q = {m, p + 5, m->end - QUICK_BYTES, m->memo.items, first + 2};
    tsr_ref items[QUICK_ITEMS], record = TSR_REF_NONE;
    const uint8_t *at = m->at;
    q.memo[first] = q.memo[first + 1] = REF_DROPPED;
    tsr_pickle_parts parts = {
        .built = true, .how = TSR_PICKLE_BUILT, .kind = TSR_PICKLE_DICT, .items = items, .count = take_items(&q, items)};
    if (parts.count) {
        m->at = q.p - 1;
        show_sink(m, &parts, class_->id, &record);
    }
    pickle->wides.count = wides;
    if (!record) {
        pickle->texts.count = texts;
        if (m->status == TSR_OK) m->at = at;
        return NULL;
    }
    q.memo[first] = *slot = record;
    m->memo.count = q.memo_count;
    if (class_->use < TSR_PICKLE_USE_BUILT) class_->use = TSR_PICKLE_USE_BUILT;
    return note_clean(m, first) ? q.p : NULL;
}
