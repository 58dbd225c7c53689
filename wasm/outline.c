/* Builds outlines. Names are split at their dots, which is suitable for display whatever the nesting of the checkpoint. A
 * hash table of (parent, component) finds the nodes, which are then put into depth-first order. */
#include "outline.h"

#include <stdlib.h>

#include "tessera/sys/containers.h"

typedef struct draft {
    tsr_str name;
    uint32_t parent, entry;
    uint32_t first, last, next; /* children and next sibling; 0: none */
} draft;

typedef struct builder {
    outline *o;
    tsr_vec drafts;
    uint32_t *table; /* numbers of drafts; 0: free */
    uint32_t mask;
    tsr_error *err;
} builder;

static uint64_t key_hash(uint32_t parent, tsr_str name)
{
    return tsr_hash_bytes(name.data, name.size, parent * UINT64_C(0x9e3779b97f4a7c15) + 1);
}

static tsr_status grow(builder *b)
{
    const uint32_t size = b->table ? (b->mask + 1) * 2 : 1024;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table) return tsr_raise(b->err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory for an outline");
    const draft *drafts = b->drafts.items;
    for (uint32_t i = 1; i < b->drafts.count; i++) {
        uint32_t at = (uint32_t)key_hash(drafts[i].parent, drafts[i].name) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = i;
    }
    free(b->table);
    b->table = table;
    b->mask = size - 1;
    return TSR_OK;
}

/* Returns the child with this name, and makes it if there is none. Returns 0 on failure. */
static uint32_t child(builder *b, uint32_t parent, tsr_str name)
{
    if (b->drafts.count * 2 > b->mask && grow(b) != TSR_OK) return 0;
    draft *drafts = b->drafts.items;
    uint32_t at = (uint32_t)key_hash(parent, name) & b->mask;
    for (; b->table[at]; at = (at + 1) & b->mask) {
        const draft *d = &drafts[b->table[at]];
        if (d->parent == parent && tsr_str_equal(d->name, name)) return b->table[at];
    }
    draft *made = tsr_vec_push(&b->drafts, b->err);
    if (!made) return 0;
    const uint32_t number = (uint32_t)b->drafts.count - 1;
    *made = (draft){.name = name, .parent = parent, .entry = NO_ENTRY};
    drafts = b->drafts.items;
    if (drafts[parent].last) drafts[drafts[parent].last].next = number;
    else drafts[parent].first = number;
    drafts[parent].last = number;
    b->table[at] = number;
    return number;
}

/* Two entries cannot share a node, because a node determines all components of the name. */
static tsr_status add_entry(builder *b, uint32_t number)
{
    const tsr_str fqn = tsr_checkpoint_catalog(b->o->checkpoint)->entries[number].fqn;
    uint32_t at = 0;
    for (size_t from = 0; from <= fqn.size;) {
        const char *dot = fqn.size > from ? memchr(fqn.data + from, '.', fqn.size - from) : NULL;
        const size_t end = dot ? (size_t)(dot - fqn.data) : fqn.size;
        if (!(at = child(b, at, (tsr_str){fqn.data + from, end - from}))) return TSR_E_NOMEM;
        from = end + 1;
    }
    ((draft *)b->drafts.items)[at].entry = number;
    return TSR_OK;
}

/* ---- depth-first order ---- */

static void place(outline *o, const draft *drafts)
{
    uint32_t at = 0, placed = 0; /* the current draft; the number of nodes so far */
    uint32_t parent = 0;         /* the current node */
    for (;;) {
        const uint32_t own = placed++;
        const uint32_t depth = own ? o->nodes[parent].depth + 1 : 0;
        o->nodes[own] =
            (node){.name = drafts[at].name, .parent = parent, .entry = drafts[at].entry, .depth = depth, .matches = true};
        if (drafts[at].entry != NO_ENTRY) o->node_of[drafts[at].entry] = own;
        if (drafts[at].first) {
            at = drafts[at].first;
            parent = own;
            continue;
        }
        o->nodes[own].end = placed;
        while (at && !drafts[at].next) { /* go up to a node that has another sibling */
            at = drafts[at].parent;
            o->nodes[parent].end = placed;
            parent = o->nodes[parent].parent;
        }
        if (!at) return;
        at = drafts[at].next;
    }
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    a ^= b + UINT64_C(0x9e3779b97f4a7c15) + (a << 6) + (a >> 2);
    a *= UINT64_C(0xff51afd7ed558ccd);
    return a ^ (a >> 32);
}

static void add_tensor(node *n, const tsr_entry *entry)
{
    uint64_t elements = 0, bytes = 0;
    if (entry->kind != TSR_ENTRY_TENSOR) return;
    tsr_entry_elements(entry, &elements);
    tsr_entry_bytes(entry, &bytes);
    n->elements += elements;
    n->bytes += bytes;
    n->dtypes |= (uint64_t)1 << entry->dtype;
    for (uint32_t d = 0; d < entry->ndim; d++) n->form = mix(n->form, entry->shape[d]);
}

/* Counts what differs between ranks once per rank that has it, like the document of inspect. */
static void add_own(node *n, const tsr_entry *entry)
{
    n->entries++;
    n->form = mix(n->form, entry->kind * 64u + entry->dtype);
    add_tensor(n, entry);
    for (uint32_t r = 0; entry->per_rank && r < entry->per_rank->count; r++)
        if (entry->per_rank->tensors[r]) add_tensor(n, entry->per_rank->tensors[r]);
}

static void add_up(outline *o)
{
    const tsr_entry *entries = tsr_checkpoint_catalog(o->checkpoint)->entries;
    for (uint32_t i = o->count; i-- > 0;) {
        node *n = &o->nodes[i];
        if (n->entry != NO_ENTRY) add_own(n, &entries[n->entry]);
        if (i == 0) continue;
        node *up = &o->nodes[n->parent];
        up->entries += n->entries;
        up->elements += n->elements;
        up->bytes += n->bytes;
        up->dtypes |= n->dtypes;
        up->form = mix(up->form, mix(n->form, tsr_hash_bytes(n->name.data, n->name.size, 7)));
    }
}

/* ---- runs of similar siblings ---- */

static bool is_number(tsr_str name)
{
    for (size_t i = 0; i < name.size; i++) {
        if (name.data[i] < '0' || name.data[i] > '9') return false;
    }
    return name.size > 0;
}

static void set_run(outline *o, uint32_t first, uint32_t end, uint32_t members)
{
    if (members < 3) return;
    o->nodes[first].run_count = members;
    for (uint32_t at = first; at < end; at = o->nodes[at].end) {
        o->nodes[at].run = first;
        o->nodes[at].run_end = end;
    }
}

/* Finds runs among the children of `parent`. If there are any, numbered children outside them are marked as odd. */
static void find_runs(outline *o, uint32_t parent)
{
    const uint32_t end = o->nodes[parent].end;
    uint32_t first = 0, members = 0;
    bool any = false;
    for (uint32_t at = parent + 1; at < end; at = o->nodes[at].end) {
        const node *n = &o->nodes[at];
        const bool numbered = is_number(n->name) && n->end > at + 1;
        if (members && numbered && n->form == o->nodes[first].form) {
            members++;
        } else {
            set_run(o, first, at, members);
            any |= members >= 3;
            first = at;
            members = numbered;
        }
    }
    set_run(o, first, end, members);
    any |= members >= 3;
    if (!any) return;
    for (uint32_t at = parent + 1; at < end; at = o->nodes[at].end)
        o->nodes[at].odd = !o->nodes[at].run && is_number(o->nodes[at].name);
}

/* Opens as many complete levels as fit on a screen. */
static void open_first_levels(outline *o)
{
    enum { SCREEN = 40, DEEPEST = 12 };
    for (uint32_t depth = 0; depth < DEEPEST; depth++) {
        for (uint32_t i = 0; i < o->count; i++) o->nodes[i].open |= o->nodes[i].depth == depth;
        tessera_outline_show(o);
        if (o->shown_count <= SCREEN || depth == 0) continue;
        for (uint32_t i = 0; i < o->count; i++) o->nodes[i].open &= o->nodes[i].depth != depth;
        break;
    }
    tessera_outline_show(o);
}

tsr_status tessera_outline_build(outline *o, tsr_error *err)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(o->checkpoint);
    builder b = {o, tsr_vec_of(&tsr_allocator_libc, sizeof(draft)), NULL, 0, err};
    draft *root = tsr_vec_push(&b.drafts, err);
    tsr_status status = root ? grow(&b) : TSR_E_NOMEM;
    if (root) root->entry = NO_ENTRY;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        if (!o->objects_only || !tessera_is_tensor(&catalog->entries[i])) status = add_entry(&b, (uint32_t)i);
    }
    if (status == TSR_OK) {
        o->count = (uint32_t)b.drafts.count;
        o->nodes = tsr_arena_array(o->arena, o->count, sizeof *o->nodes, err);
        o->node_of = tsr_arena_array(o->arena, (size_t)catalog->entry_count, sizeof *o->node_of, err);
        o->shown = tsr_arena_array(o->arena, o->count, sizeof *o->shown, err);
        if (!o->nodes || !o->node_of || !o->shown) status = TSR_E_NOMEM;
    }
    if (status == TSR_OK) {
        place(o, b.drafts.items);
        add_up(o);
        for (uint32_t i = 0; i < o->count; i++) {
            if (o->nodes[i].end > i + 1) find_runs(o, i);
        }
        open_first_levels(o);
    }
    tsr_vec_free(&b.drafts);
    free(b.table);
    return status;
}

void tessera_outline_show(outline *o)
{
    o->shown_count = 0;
    for (uint32_t at = 1; at < o->count;) {
        const node *n = &o->nodes[at];
        if (!n->matches) {
            at = n->end;
        } else if (!o->filtered && n->run && n->run != at && !o->nodes[n->run].unfolded) {
            at = n->run_end;
        } else {
            o->shown[o->shown_count++] = at;
            at = (o->filtered ? n->open_filtered : n->open) ? at + 1 : n->end;
        }
    }
}
