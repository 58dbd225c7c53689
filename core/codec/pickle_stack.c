/* The stack, the marks and the memo, and the growth of every pool within the host's limits. */
#include "codec/pickle_machine.h"

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

void tsr_pickle_set_floor(machine *m)
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
    tsr_pickle_set_floor(m);
}

bool tsr_pickle_grow_stack(machine *m)
{
    m->stack.count = m->stack.items ? (size_t)(m->sp - (tsr_ref *)m->stack.items) : 0;
    if (!tsr_pickle_grow(m, &m->stack, 64)) return false;
    m->sp = (tsr_ref *)m->stack.items + m->stack.count;
    m->limit = (tsr_ref *)m->stack.items + m->stack.capacity;
    tsr_pickle_set_floor(m);
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
