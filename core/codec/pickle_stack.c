/* The pickle machine's stack, marks and memo, and the growth of every pool within the host's limits. */
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
        fail(m, TSR_E_LIMIT, "pickle: needs more memory than the limit memory_bytes (%llu)",
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

/* An object whose stack slot goes away will not get its state there: it stays generic. */
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
        fail(m, TSR_E_FORMAT, "pickle: opcode %s needs %d items on the stack, %d are there", tsr_pickle_opcode(*m->at),
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

bool tsr_pickle_put(machine *m, uint64_t index, tsr_ref ref)
{
    if (index > (uint64_t)(m->at - m->start)) {
        fail(m, TSR_E_LIMIT, "pickle: opcode %s names memo slot %llu, more than the input can have filled",
             tsr_pickle_opcode(*m->at), (unsigned long long)index);
        return false;
    }
    size_t wanted = (size_t)index + 1, count = m->memo.count;
    tsr_ref *slots;
    if (wanted > count) {
        if (!has_room(m, &m->memo, wanted - count)) return false;
        slots = m->memo.items;
        while (count < wanted) slots[count++] = REF_UNSET;
        m->memo.count = wanted;
    } else if (m->opens.count) { /* an old slot would outlive what is dropped */
        m->again = true;
        m->status = TSR_E_FORMAT;
        return false;
    }
    slots = m->memo.items;
    slots[index] = ref;
    return true;
}

tsr_ref tsr_pickle_fetch_failed(machine *m, uint64_t index)
{
    const tsr_ref *slots = m->memo.items;
    if (index < m->memo.count && slots[index] == REF_DROPPED) {
        m->again = true;
        m->status = TSR_E_FORMAT;
        return TSR_REF_NONE;
    }
    fail(m, TSR_E_FORMAT, "pickle: opcode %s fetches memo slot %llu, which was never set", tsr_pickle_opcode(*m->at),
         (unsigned long long)index);
    return TSR_REF_NONE;
}
