/* Records calls and objects, shows them to the sink, and drops their parts once the sink has made a record. */
#include "codec/pickle_machine.h"

/* ---- stack ---- */

/* The stack, the marks and the memo, and the growth of every pool within the host's limits. */

bool tsr_pickle_grow(machine *m, tsr_vec *vec, size_t extra)
{
    size_t before = vec->capacity;
    if (extra > MAX_ITEMS || vec->count + extra > MAX_ITEMS) {
        fail(m, TSR_E_LIMIT, "pickle: more than %zu nodes of one kind", MAX_ITEMS);
        return false;
    }
    tsr_status status = tsr_vec_reserve(vec, extra, m->err);
    if (status != TSR_OK) {
        m->status = status;
        return false;
    }
    m->pool_bytes += (uint64_t)(vec->capacity - before) * vec->item_size;
    if (m->host->limits.memory_bytes && m->pool_bytes > m->host->limits.memory_bytes) {
        fail(m, TSR_E_LIMIT, "pickle: needs more memory than the limit of %llu bytes (memory_bytes)",
             (unsigned long long)m->host->limits.memory_bytes);
        return false;
    }
    return true;
}

static size_t top_mark(const machine *m)
{
    return m->marks.count ? ((const uint32_t *)m->marks.items)[m->marks.count - 1] : 0;
}

static void pickle_set_floor(machine *m)
{
    tsr_ref *base = m->stack.items;
    const open *opens = m->opens.items;
    size_t mark = top_mark(m), fence = m->opens.count ? opens[m->opens.count - 1].slot + 1 : 0;
    m->mark_floor = base + mark;
    m->floor = base + (fence > mark ? fence : mark);
}

/* Gives up folding objects whose stack slot goes away: they cannot get their state there any more, so they stay ordinary
 * nodes. */
static void close_opens_from(machine *m, size_t slot)
{
    const open *opens = m->opens.items;
    while (m->opens.count && opens[m->opens.count - 1].slot >= slot) m->opens.count--;
    pickle_set_floor(m);
}

bool tsr_pickle_grow_stack(machine *m)
{
    m->stack.count = m->stack.items ? (size_t)(m->sp - (tsr_ref *)m->stack.items) : 0;
    if (!tsr_pickle_grow(m, &m->stack, 64)) return false;
    m->sp = (tsr_ref *)m->stack.items + m->stack.count;
    m->limit = (tsr_ref *)m->stack.items + m->stack.capacity;
    pickle_set_floor(m);
    return true;
}

bool tsr_pickle_settle(machine *m, const tsr_ref *sp, ptrdiff_t count)
{
    if (sp - m->mark_floor < count) {
        fail(m, TSR_E_FORMAT, "pickle: opcode %s needs %d items on the stack, but there are %d", tsr_pickle_opcode(*m->at),
             (int)count, (int)(sp - m->mark_floor));
        return false;
    }
    close_opens_from(m, (size_t)(sp - count - (tsr_ref *)m->stack.items));
    return true;
}

tsr_ref *tsr_pickle_pop_mark(machine *m)
{
    if (!m->marks.count) {
        fail(m, TSR_E_FORMAT, "pickle: opcode %s without a mark on the stack", tsr_pickle_opcode(*m->at));
        return NULL;
    }
    size_t mark = top_mark(m);
    m->marks.count--;
    close_opens_from(m, mark);
    return (tsr_ref *)m->stack.items + mark;
}

static far_slot *find_far(const tsr_vec *far, uint64_t index)
{
    far_slot *table = far->items;
    size_t mask = far->count - 1, at = (size_t)(index * UINT64_C(0x9e3779b97f4a7c15) >> 32) & mask;
    while (table[at].index && table[at].index != index + 1) at = (at + 1) & mask;
    return &table[at];
}

/* Doubles the hash table of far slots, which is at most half full. */
static bool grow_far(machine *m)
{
    tsr_vec wider = tsr_vec_of(m->far.allocator, sizeof(far_slot));
    const far_slot *old = m->far.items;
    size_t wanted = m->far.count ? 2 * m->far.count : 16;
    if (!has_room(m, &wider, wanted)) return false;
    memset(wider.items, 0, wanted * sizeof *old);
    wider.count = wanted;
    for (size_t i = 0; i < m->far.count; i++) {
        if (old[i].index) *find_far(&wider, old[i].index - 1) = old[i];
    }
    tsr_vec_free(&m->far);
    m->far = wider;
    return true;
}

/* Stores a slot that does not continue the memo. It costs the same memory however large its number is. */
static bool put_far(machine *m, uint64_t index, tsr_ref ref)
{
    if (2 * (m->far_count + 1) > m->far.count && !grow_far(m)) return false;
    far_slot *slot = find_far(&m->far, index);
    m->far_count += slot->index == 0;
    if (index > m->pickle->highest_far) m->pickle->highest_far = index;
    *slot = (far_slot){index + 1, ref};
    return true;
}

bool tsr_pickle_put(machine *m, uint64_t index, tsr_ref ref)
{
    bool old = index < m->memo.count;
    /* Dropping needs consecutive slots, and an old slot would outlive dropped nodes. */
    if (m->drop && (!old || m->opens.count)) {
        m->again = true;
        m->status = TSR_E_FORMAT;
        return false;
    }
    if (!old) return put_far(m, index, ref);
    ((tsr_ref *)m->memo.items)[index] = ref;
    return true;
}

bool tsr_pickle_fetch(machine *m, uint64_t index, tsr_ref *out)
{
    const far_slot *far = m->far_count ? find_far(&m->far, index) : NULL;
    *out = index < m->memo.count ? ((const tsr_ref *)m->memo.items)[index] : far && far->index ? far->ref : REF_DROPPED;
    if (tag_of(*out) != TAG_HOLE) return true;
    if (index < m->memo.count) {
        m->again = true;
        m->status = TSR_E_FORMAT;
        return false;
    }
    fail(m, TSR_E_FORMAT, "pickle: opcode %s fetches memo slot %llu, which was never set", tsr_pickle_opcode(*m->at),
         (unsigned long long)index);
    return false;
}

/* ---- fold ---- */

bool tsr_pickle_add_clean(machine *m, size_t from)
{
    if (!has_room(m, &m->clean, 1)) return false;
    ((span *)m->clean.items)[m->clean.count++] = (span){from, m->memo.count};
    return true;
}

/* Turns memo slots from `from` on into holes if their nodes are dropped. Spans in `clean` were processed before and are
 * skipped, so every slot is visited once, however deeply objects nest. */
static bool drop_memo(machine *m, size_t from, tsr_ref object_, tsr_ref record)
{
    const unsigned kept = 1u << TAG_CONST | 1u << TAG_SMALL | 1u << TAG_BIGINT | 1u << TAG_STR | 1u << TAG_BYTES |
                          1u << TAG_GLOBAL | 1u << TAG_FOLDED | 1u << TAG_HOLE;
    tsr_ref *memo = m->memo.items;
    span *spans = m->clean.items;
    size_t to = m->memo.count, first = from;
    for (;;) {
        bool more = m->clean.count && spans[m->clean.count - 1].to > from;
        size_t low = more ? spans[m->clean.count - 1].to : from;
        for (size_t i = low; i < to; i++) {
            if (!(kept >> (memo[i] & 15) & 1)) memo[i] = memo[i] == object_ ? record : REF_DROPPED;
        }
        if (!more) break;
        to = spans[--m->clean.count].from;
        if (to <= from) {
            first = to;
            break;
        }
    }
    return note_clean(m, first);
}

/* Drops the parts of a folded object, unless one of them is an object without a record. Such an object, an enum member for
 * instance, may be fetched again later; then all parts stay. */
static bool drop_parts(machine *m, const open *marks, tsr_ref record)
{
    tsr_pickle *pickle = m->pickle;
    tsr_ref *memo = m->memo.items;
    if (pickle->objects.count != (size_t)marks->object + 1) {
        if (marks->memo < m->memo.count && memo[marks->memo] == REF(TAG_OBJECT, marks->object)) memo[marks->memo] = record;
        return true;
    }
    if (m->memo.count > marks->memo && !drop_memo(m, marks->memo, REF(TAG_OBJECT, marks->object), record)) return false;
    pickle->words.count = marks->words;
    pickle->containers.count = marks->containers;
    pickle->objects.count = marks->object;
    pickle->helds.count = marks->helds;
    pickle->wides.count = marks->wides;
    return true;
}

/* Asks the sink for the record of an object that was just made. */
static bool fold_made(machine *m, uint32_t id, tsr_ref args, tsr_pickle_how how, tsr_ref *record)
{
    int64_t ints[INTS_MAX];
    tsr_pickle_parts parts = {.kind = TSR_PICKLE_TUPLE, .how = how};
    parts.items = tsr_pickle_items(m->pickle, args, &parts.count);
    parts.made_of = parts.count;
    int count = parts.count == 1 ? tsr_pickle_ints(m->pickle, parts.items[0], ints, INTS_MAX) : -1;
    if (count >= 0 && tag_of(parts.items[0]) == TAG_TUPLE) {
        parts.ints = ints;
        parts.int_count = (size_t)count;
    }
    return show_sink(m, &parts, id, record);
}

/* Asks the sink for the record of an object that has just got its state. */
static bool fold_built(machine *m, uint32_t id, const object *made, tsr_ref *record)
{
    tsr_ref state = made->state;
    tsr_pickle_kind kind = tsr_pickle_kind_of(m->pickle, state);
    tsr_pickle_how how = made->position & MADE_BY_NEWOBJ ? TSR_PICKLE_BUILT : TSR_PICKLE_CALLED;
    tsr_pickle_parts parts = {.built = true, .how = how, .kind = kind, .items = &state, .count = 1};
    parts.made_of = tsr_pickle_count(m->pickle, made->args);
    bool many = kind == TSR_PICKLE_DICT || kind == TSR_PICKLE_TUPLE || kind == TSR_PICKLE_LIST || kind == TSR_PICKLE_SET;
    if (many) parts.items = tsr_pickle_items(m->pickle, state, &parts.count);
    return show_sink(m, &parts, id, record);
}

static tsr_ref make_object(machine *m, tsr_ref callee, tsr_ref args, tsr_pickle_how how)
{
    tsr_vec *objects = &m->pickle->objects;
    if (!has_room(m, objects, 1)) return TSR_REF_NONE;
    uint64_t position = (uint64_t)(m->at - m->start) << 2 | (how == TSR_PICKLE_BUILT ? MADE_BY_NEWOBJ : 0);
    ((object *)objects->items)[objects->count] = (object){callee, args, TSR_REF_NONE, 0, position};
    return REF(TAG_OBJECT, objects->count++);
}

static tsr_ref finish_object(machine *m, tsr_ref callee, tsr_ref args, tsr_pickle_how how)
{
    tsr_pickle *pickle = m->pickle;
    if (tag_of(args) != TAG_TUPLE) {
        fail(m, TSR_E_FORMAT, "pickle: opcode %s with arguments that are not a tuple", tsr_pickle_opcode(*m->at));
        return TSR_REF_NONE;
    }
    tsr_ref made = make_object(m, callee, args, how), record;
    if (!made) return TSR_REF_NONE;
    if (tag_of(callee) != TAG_GLOBAL) return tsr_pickle_note_odd(m, TSR_PICKLE_ODD_CALL, callee) ? made : TSR_REF_NONE;
    global *g = (global *)pickle->globals.items + index_of(callee);
    tsr_pickle_use use = how == TSR_PICKLE_BUILT ? TSR_PICKLE_USE_BUILT : TSR_PICKLE_USE_CALLED;
    if (use > g->use) g->use = use;
    if (g->id & TSR_PICKLE_FOLD_MADE && m->sink->fold) {
        if (!fold_made(m, g->id, args, how, &record)) return TSR_REF_NONE;
        if (!record) return made;
        pickle->objects.count--;
        return record;
    }
    return made;
}

tsr_ref tsr_pickle_call_since(machine *m, tsr_ref callee, const tsr_ref *from)
{
    tsr_ref args = tsr_pickle_make_tuple(m, from, (size_t)(m->sp - from));
    return args ? finish_object(m, callee, args, TSR_PICKLE_CALLED) : TSR_REF_NONE;
}

/* Remembers an object that waits for its state in stack slot `slot`, and fences the stack below it. */
static bool open_object(machine *m, size_t slot, tsr_ref made)
{
    const tsr_pickle *pickle = m->pickle;
    if (!has_room(m, &m->opens, 1)) return false;
    ((open *)m->opens.items)[m->opens.count++] = (open){(uint32_t)slot,
                                                        index_of(made),
                                                        (uint32_t)pickle->words.count,
                                                        (uint32_t)pickle->containers.count,
                                                        (uint32_t)pickle->helds.count,
                                                        (uint32_t)pickle->wides.count,
                                                        m->memo.count};
    m->floor = (tsr_ref *)m->stack.items + slot + 1;
    return true;
}

bool tsr_pickle_do_call(machine *m)
{
    if (!needs(m, m->sp, 2)) return false;
    tsr_ref made = finish_object(m, m->sp[-2], m->sp[-1], TSR_PICKLE_CALLED);
    m->sp -= 1;
    m->sp[-1] = made;
    return made != TSR_REF_NONE;
}

bool tsr_pickle_do_newobj(machine *m)
{
    if (!needs(m, m->sp, 2)) return false;
    tsr_ref class_ = m->sp[-2], made = finish_object(m, class_, m->sp[-1], TSR_PICKLE_BUILT);
    m->sp -= 1;
    m->sp[-1] = made;
    if (!made) return false;
    bool waits = m->drop && tag_of(made) == TAG_OBJECT && tag_of(class_) == TAG_GLOBAL &&
                 ((const global *)m->pickle->globals.items)[index_of(class_)].id & TSR_PICKLE_FOLD_BUILT;
    return !waits || open_object(m, (size_t)(m->sp - 1 - (tsr_ref *)m->stack.items), made);
}

bool tsr_pickle_do_build(machine *m)
{
    tsr_pickle *pickle = m->pickle;
    if (!needs(m, m->sp, 1)) return false;
    tsr_ref state = *--m->sp, *slot = m->sp - 1, record;
    if (slot >= m->mark_floor && (tag_of(*slot) == TAG_GLOBAL || tag_of(*slot) == TAG_PERSISTENT))
        return tsr_pickle_note_odd(m, TSR_PICKLE_ODD_BUILD, TSR_REF_NONE);
    if (slot < m->mark_floor || tag_of(*slot) != TAG_OBJECT) {
        fail(m, TSR_E_FORMAT, "pickle: opcode BUILD sets the state of something that is not an object under construction");
        return false;
    }
    open marks = {0};
    const open *inner = m->opens.count ? (const open *)m->opens.items + m->opens.count - 1 : NULL;
    bool opened = inner && (tsr_ref *)m->stack.items + inner->slot == slot && inner->object == index_of(*slot);
    if (opened) {
        marks = *inner;
        m->opens.count--;
        pickle_set_floor(m);
    } else if (inner && index_of(*slot) < inner->object) { /* an older object would refer to dropped nodes */
        m->again = true;
        m->status = TSR_E_FORMAT;
        return false;
    }
    object *o = (object *)pickle->objects.items + index_of(*slot);
    if (o->position & HAS_STATE && !tsr_pickle_note_odd(m, TSR_PICKLE_ODD_AGAIN, TSR_REF_NONE)) return false;
    o->state = state;
    o->position |= HAS_STATE;
    uint32_t id = tag_of(o->callee) == TAG_GLOBAL ? ((const global *)pickle->globals.items)[index_of(o->callee)].id : 0;
    if (!(id & TSR_PICKLE_FOLD_BUILT) || !m->sink->fold) return true;
    if (!fold_built(m, id, o, &record)) return false;
    if (!record) return true;
    *slot = record;
    return !opened || drop_parts(m, &marks, record);
}
