/* The main loop of the pickle machine: a switch over the opcodes that current picklers write; tsr_pickle_rare handles all
 * others. The position and the stack top are local variables, and are stored in the machine only for functions that need
 * them there. */
#include "codec/pickle_machine.h"

#include "tessera/sys/try.h"

#include "tessera/sys/containers.h"

enum { OPERAND_MAX = 8 }; /* bytes of the longest operand with a fixed size */

/* The operand sizes of opcodes, if they are fixed. */
static const uint8_t operand_size[256] = {
    ['K'] = 1,  ['h'] = 1,  ['q'] = 1,  ['U'] = 1, ['C'] = 1,  [0x80] = 1, [0x82] = 1, [0x8a] = 1,
    [0x8c] = 1, ['M'] = 2,  [0x83] = 2, ['J'] = 4, ['T'] = 4,  ['X'] = 4,  ['B'] = 4,  ['j'] = 4,
    ['r'] = 4,  [0x84] = 4, [0x8b] = 4, ['G'] = 8, [0x8d] = 8, [0x8e] = 8, [0x95] = 8, [0x96] = 8,
};

/* Near the end of the input: fails and returns true unless an opcode with its whole operand remains. */
static bool cut_short(machine *m, const uint8_t *p)
{
    size_t left = (size_t)(m->end - p);
    m->at = p;
    if (left && left > operand_size[*p]) return false;
    if (left) {
        fail(m, TSR_E_FORMAT, "pickle: ends inside the operand of opcode %s", tsr_pickle_opcode(*p));
    } else {
        fail(m, TSR_E_FORMAT, "pickle: ends without STOP");
    }
    return true;
}

/* Pushes a str of `size` bytes at `p`. */
static tsr_ref *push_str(machine *m, tsr_ref *sp, const uint8_t *p, uint64_t size)
{
    if (size > (uint64_t)(m->end - p)) {
        fail(m, TSR_E_FORMAT, "pickle: opcode %s announces %llu bytes, but only %llu remain", tsr_pickle_opcode(*m->at),
             (unsigned long long)size, (unsigned long long)(m->end - p));
        return NULL;
    }
    tsr_ref text = tsr_pickle_make_str(m, p, (size_t)size);
    return text ? push(m, sp, text) : NULL;
}

static inline tsr_ref *push_memo(machine *m, tsr_ref *sp, uint32_t index)
{
    tsr_ref ref = index < m->memo.count ? ((const tsr_ref *)m->memo.items)[index] : REF_DROPPED;
    if ((ref & 15) == TAG_HOLE && !tsr_pickle_fetch(m, index, &ref)) return NULL;
    return push(m, sp, ref);
}

static inline tsr_ref *put(machine *m, tsr_ref *sp, uint64_t index)
{
    if (!has_top(m, sp)) return NULL;
    if (index != m->memo.count || m->far_count) return tsr_pickle_put(m, index, sp[-1]) ? sp : NULL;
    if (!has_room(m, &m->memo, 1)) return NULL;
    ((tsr_ref *)m->memo.items)[m->memo.count++] = sp[-1];
    return sp;
}

/* Uses the number of slots so far as the slot number. */
static inline tsr_ref *memoize(machine *m, tsr_ref *sp)
{
    return put(m, sp, m->memo.count + m->far_count);
}

static inline tsr_ref *push_mark(machine *m, tsr_ref *sp)
{
    if (!has_room(m, &m->marks, 1)) return NULL;
    ((uint32_t *)m->marks.items)[m->marks.count++] = (uint32_t)(sp - (tsr_ref *)m->stack.items);
    m->floor = m->mark_floor = sp;
    return sp;
}

/* Makes one tuple of the items [from, sp). */
static inline tsr_ref *tuple(machine *m, tsr_ref *sp, tsr_ref *from)
{
    tsr_vec *words = &m->pickle->words;
    size_t count = (size_t)(sp - from);
    if (count == 0) return push(m, sp, REF_EMPTY_TUPLE);
    if (!has_room(m, words, count + 1)) return NULL;
    uint32_t *out = (uint32_t *)words->items + words->count;
    *out++ = (uint32_t)count;
    for (size_t i = 0; i < count; i++) out[i] = from[i];
    *from = REF(TAG_TUPLE, words->count);
    words->count += count + 1;
    return from + 1;
}

static tsr_ref *tuple_from_mark(machine *m, tsr_ref *sp)
{
    tsr_ref *from = tsr_pickle_pop_mark(m);
    return from ? tuple(m, sp, from) : NULL;
}

/* Whether an object in the form of tsr_pickle_quick may begin: after a class and EMPTY_TUPLE come NEWOBJ MEMOIZE, EMPTY_DICT
 * MEMOIZE, MARK. */
static inline bool starts_quick(const machine *m, const tsr_ref *sp, const uint8_t *p)
{
    return m->drop && !m->far_count && m->end - p > 5 && memcmp(p, "\x81\x94}\x94(", 5) == 0 && sp > m->floor &&
           tag_of(sp[-1]) == TAG_GLOBAL;
}

static inline tsr_ref *push_container(machine *m, tsr_ref *sp, tag kind)
{
    tsr_ref made = tsr_pickle_make_container(m, kind, NULL, 0);
    return made ? push(m, sp, made) : NULL;
}

/* APPEND, SETITEM: adds the topmost `count` items to the node below them. */
static tsr_ref *put_into(machine *m, tsr_ref *sp, bool pairs, ptrdiff_t count)
{
    if (!needs(m, sp, count) || (sp - count <= m->mark_floor && !needs(m, sp, count + 1))) return NULL;
    return tsr_pickle_extend(m, sp[-count - 1], pairs, sp - count, (size_t)count) ? sp - count : NULL;
}

/* APPENDS, SETITEMS, ADDITEMS: adds everything above the mark to the node below it. */
static tsr_ref *put_all_into(machine *m, tsr_ref *sp, bool pairs)
{
    tsr_ref *from = tsr_pickle_pop_mark(m);
    if (!from || !has_top(m, from)) return NULL;
    if (pairs && (sp - from) % 2) {
        fail(m, TSR_E_FORMAT, "pickle: opcode %s with a key that has no value", tsr_pickle_opcode(*m->at));
        return NULL;
    }
    return tsr_pickle_extend(m, from[-1], pairs, from, (size_t)(sp - from)) ? from : NULL;
}

static tsr_ref *stack_global(machine *m, tsr_ref *sp)
{
    if (!needs(m, sp, 2)) return NULL;
    tsr_ref made = tsr_pickle_make_global(m, sp[-2], sp[-1]);
    sp[-2] = made;
    return made ? sp - 1 : NULL;
}

static inline tsr_ref *through(machine *m, tsr_ref *sp, bool (*step)(machine *m))
{
    m->sp = sp;
    return step(m) ? m->sp : NULL;
}

/* Runs until STOP, and sets *end to the byte after it. */
static tsr_status run(machine *m, const uint8_t **end)
{
    const uint8_t *p = m->start;
    tsr_ref *sp = m->sp;
    while (sp) {
        if (m->end - p <= OPERAND_MAX && cut_short(m, p)) return m->status;
        m->at = p++;
        // clang-format off: one opcode per line
        switch (*m->at) {
        case 'K':
            sp = push(m, sp, REF(TAG_SMALL, *p));
            p += 1;
            break;
        case 'M':
            sp = push(m, sp, REF(TAG_SMALL, load_u16(p)));
            p += 2;
            break;
        case 'J': {
            tsr_ref made = tsr_pickle_make_int(m, (int32_t)load_u32(p));
            sp = made ? push(m, sp, made) : NULL;
            p += 4;
            break;
        }
        case 'h':
            sp = push_memo(m, sp, *p);
            p += 1;
            break;
        case 'j':
            sp = push_memo(m, sp, load_u32(p));
            p += 4;
            break;
        case 'q':
            sp = put(m, sp, *p);
            p += 1;
            break;
        case 'r':
            sp = put(m, sp, load_u32(p));
            p += 4;
            break;
        case 0x94: sp = memoize(m, sp); break;
        case 0x8c:
            sp = push_str(m, sp, p + 1, *p);
            if (sp) p += 1 + *p;
            break;
        case 'X':
            sp = push_str(m, sp, p + 4, load_u32(p));
            if (sp) p += 4 + load_u32(p);
            break;
        case '(': sp = push_mark(m, sp); break;
        case ')': {
            const uint8_t *next = starts_quick(m, sp, p) ? tsr_pickle_quick(m, sp - 1, p) : NULL;
            if (next) {
                p = next;
            } else {
                sp = m->status == TSR_OK ? push(m, sp, REF_EMPTY_TUPLE) : NULL;
            }
            break;
        }
        case 0x85: sp = needs(m, sp, 1) ? tuple(m, sp, sp - 1) : NULL; break;
        case 0x86: sp = needs(m, sp, 2) ? tuple(m, sp, sp - 2) : NULL; break;
        case 0x87: sp = needs(m, sp, 3) ? tuple(m, sp, sp - 3) : NULL; break;
        case 't': sp = tuple_from_mark(m, sp); break;
        case ']': sp = push_container(m, sp, TAG_LIST); break;
        case '}': sp = push_container(m, sp, TAG_DICT); break;
        case 'a': sp = put_into(m, sp, false, 1); break;
        case 's': sp = put_into(m, sp, true, 2); break;
        case 'e': sp = put_all_into(m, sp, false); break;
        case 'u': sp = put_all_into(m, sp, true); break;
        case 'N': sp = push(m, sp, TSR_REF_NONE); break;
        case 0x88: sp = push(m, sp, REF_TRUE); break;
        case 0x89: sp = push(m, sp, REF_FALSE); break;
        case 0x93: sp = stack_global(m, sp); break;
        case 0x81: sp = through(m, sp, tsr_pickle_do_newobj); break;
        case 'R': sp = through(m, sp, tsr_pickle_do_call); break;
        case 'b': sp = through(m, sp, tsr_pickle_do_build); break;
        case '.':
            *end = p;
            m->sp = sp;
            return TSR_OK;
        default:
            m->sp = sp;
            p = tsr_pickle_rare(m, *m->at, p);
            if (!p) return m->status;
            sp = m->sp;
        }
        // clang-format on
    }
    return m->status;
}

static tsr_status stop(machine *m)
{
    const tsr_ref *base = m->stack.items;
    ptrdiff_t left = m->sp - base;
    if (m->marks.count || left != 1) {
        return fail(m, TSR_E_FORMAT, "pickle: STOP with %d items and %d marks on the stack; expected a single item",
                    (int)left, (int)m->marks.count);
    }
    m->pickle->root = base[0];
    return TSR_OK;
}

static void free_work(machine *m)
{
    tsr_vec_free(&m->stack);
    tsr_vec_free(&m->marks);
    tsr_vec_free(&m->memo);
    tsr_vec_free(&m->opens);
    tsr_vec_free(&m->clean);
    tsr_vec_free(&m->far);
}

/* Parses the whole pickle once. `m` has the pickle, host, sink and error, and whether objects may be dropped. */
static tsr_status parse_once(machine *m, const uint8_t **end)
{
    const tsr_allocator *a = m->host->allocator;
    tsr_pickle *pickle = m->pickle;
    m->start = m->at = m->frame_end = (const uint8_t *)pickle->data.data;
    m->end = m->start + pickle->data.size;
    m->stack = m->memo = tsr_vec_of(a, sizeof(tsr_ref));
    m->marks = tsr_vec_of(a, sizeof(uint32_t));
    m->opens = tsr_vec_of(a, sizeof(open));
    m->clean = tsr_vec_of(a, sizeof(span));
    m->far = tsr_vec_of(a, sizeof(far_slot));
    if (tsr_pickle_grow_stack(m) && has_room(m, &pickle->words, 1)) {
        ((uint32_t *)pickle->words.items)[pickle->words.count++] = 0; /* the item count of REF_EMPTY_TUPLE */
        m->status = run(m, end);
        if (m->status == TSR_OK) m->status = stop(m);
    }
    free_work(m);
    return m->status;
}

static void empty(tsr_pickle *pickle)
{
    const tsr_allocator *a = pickle->allocator;
    tsr_vec *const vecs[] = {&pickle->words, &pickle->containers, &pickle->objects,   &pickle->helds,
                             &pickle->wides, &pickle->texts,      &pickle->foreign,   &pickle->globals,
                             &pickle->slots, &pickle->oddities,   &pickle->bytearrays};
    const size_t sizes[] = {sizeof(uint32_t), sizeof(container),         sizeof(object),  sizeof(held),
                            sizeof(uint64_t), sizeof(uint64_t),          sizeof(tsr_str), sizeof(global),
                            sizeof(uint32_t), sizeof(tsr_pickle_oddity), sizeof(uint32_t)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (vecs[i]->allocator) tsr_vec_free(vecs[i]);
        *vecs[i] = tsr_vec_of(a, sizes[i]);
    }
    tsr_arena_free(pickle->decoded);
    pickle->decoded = NULL;
}

tsr_status tsr_pickle_parse(tsr_str data, const tsr_host *host, const tsr_pickle_sink *sink, tsr_pickle **out,
                            size_t *consumed, tsr_error *err)
{
    *out = NULL;
    TSR_FAIL_AT(data.size > host->limits.metadata_bytes || data.size > PTRDIFF_MAX, err, TSR_E_LIMIT, 0,
                "pickle: %llu bytes exceed the limit of %llu (metadata_bytes)", (unsigned long long)data.size,
                (unsigned long long)host->limits.metadata_bytes);
    TSR_FAIL_AT(data.size == 0, err, TSR_E_FORMAT, 0, "pickle: the input is empty");
    tsr_pickle *pickle = tsr_alloc(host->allocator, 1, sizeof *pickle, err);
    if (!pickle) return TSR_E_NOMEM;
    *pickle = (tsr_pickle){.data = data, .allocator = host->allocator};
    const uint8_t *end = NULL;
    empty(pickle);
    machine first = {.pickle = pickle, .host = host, .sink = sink, .err = err, .drop = sink && sink->fold};
    tsr_status status = parse_once(&first, &end);
    if (first.again) {
        empty(pickle);
        if (sink->restart) sink->restart(sink->ctx);
        status = parse_once(&(machine){.pickle = pickle, .host = host, .sink = sink, .err = err}, &end);
    }
    if (status != TSR_OK) {
        tsr_pickle_free(pickle);
        return status;
    }
    if (consumed) *consumed = (size_t)(end - (const uint8_t *)data.data);
    *out = pickle;
    return TSR_OK;
}

void tsr_pickle_free(tsr_pickle *pickle)
{
    if (!pickle) return;
    empty(pickle);
    tsr_free(pickle->allocator, pickle, 1, sizeof *pickle);
}
