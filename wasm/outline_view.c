/* What JavaScript does with an outline: reads visible rows, opens, closes, filters and finds. */
#include <stdlib.h>

#include "handles.h"
#include "outline.h"
#include "tessera/sys/checkpoint.h"

static void free_outline(void *pointer)
{
    outline *o = pointer;
    tsr_arena_free(o->arena);
    free(o);
}

/* Makes an outline of all entries, or of those that are not tensors. Returns a handle. */
TSR_EXPORT(tessera_outline) uint32_t tessera_outline(uint32_t handle, uint32_t objects_only, tsr_error *err)
{
    const opened *item = tessera_checkpoint_of(handle, err);
    if (item && tsr_checkpoint_require(item->checkpoint, TSR_FOR_NAMES, err) != TSR_OK) return 0;
    outline *o = item ? calloc(1, sizeof *o) : NULL;
    if (!o) {
        if (item) tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return 0;
    }
    o->checkpoint = item->checkpoint;
    o->objects_only = objects_only != 0;
    o->arena = tsr_arena_new(item->host.allocator, 0, err);
    if (!o->arena || tessera_outline_build(o, err) != TSR_OK) {
        free_outline(o);
        return 0;
    }
    return tessera_add_handle(HANDLE_OUTLINE, o, free_outline, handle, 0, err);
}

/* Returns the number of visible rows. */
TSR_EXPORT(tessera_outline_count) uint32_t tessera_outline_count(uint32_t handle)
{
    const outline *o = tessera_item_of(handle, HANDLE_OUTLINE, NULL);
    return o ? o->shown_count : 0;
}

enum { /* the columns of a page of rows, with `count` numbers each: first those of 32 bits, then those of 64 */
       ROW_NODE,
       ROW_ENTRY,
       ROW_NAME,
       ROW_NAME_SIZE,
       ROW_DEPTH,
       ROW_STATE,
       ROW_ENTRIES,
       ROW_RUN,
       ROW_NDIM,
       ROW_SHAPE,
       ROW_CHUNKS,
       ROW_FQN,
       ROW_FQN_SIZE,
       ROW_NARROW
};
enum { ROW_ELEMENTS, ROW_BYTES, ROW_DTYPES, ROW_WIDE };
enum {
    STATE_GROUP = 1,
    STATE_OPEN = 2,
    STATE_FOLDED = 4,
    STATE_RUN = 8,
    STATE_ODD = 16,
    STATE_KIND = 32 /* times 0 to 2 */,
    STATE_LEVEL = 256 /* times 0 to 3 */
};

static uint32_t pointer_of(const void *pointer)
{
    return (uint32_t)(uintptr_t)pointer;
}

static uint32_t state_of(const outline *o, uint32_t at)
{
    const node *n = &o->nodes[at];
    uint32_t state = n->end > at + 1 ? STATE_GROUP : 0;
    if (o->filtered ? n->open_filtered : n->open) state |= STATE_OPEN;
    if (n->run_count) state |= STATE_RUN | (!o->filtered && !n->unfolded ? STATE_FOLDED : 0);
    return state | (n->odd ? STATE_ODD : 0) | (uint32_t)n->level * STATE_LEVEL;
}

static void put_row(const outline *o, uint32_t at, uint32_t *narrow, uint64_t *wide, uint32_t stride)
{
    const node *n = &o->nodes[at];
    const tsr_entry *entry = n->entry == NO_ENTRY ? NULL : &tsr_checkpoint_catalog(o->checkpoint)->entries[n->entry];
    narrow[ROW_NODE * stride] = at;
    narrow[ROW_ENTRY * stride] = n->entry;
    narrow[ROW_NAME * stride] = pointer_of(n->name.data);
    narrow[ROW_NAME_SIZE * stride] = (uint32_t)n->name.size;
    narrow[ROW_DEPTH * stride] = n->depth;
    narrow[ROW_STATE * stride] = state_of(o, at) | (entry ? (uint32_t)entry->kind * STATE_KIND : 0);
    narrow[ROW_ENTRIES * stride] = n->entries;
    narrow[ROW_RUN * stride] = n->run_count;
    narrow[ROW_NDIM * stride] = entry ? entry->ndim : 0;
    narrow[ROW_SHAPE * stride] = entry ? pointer_of(entry->shape) : 0;
    narrow[ROW_CHUNKS * stride] = entry ? (uint32_t)entry->chunk_count : 0;
    narrow[ROW_FQN * stride] = entry ? pointer_of(entry->fqn.data) : 0;
    narrow[ROW_FQN_SIZE * stride] = entry ? (uint32_t)entry->fqn.size : 0;
    wide[ROW_ELEMENTS * stride] = n->elements;
    wide[ROW_BYTES * stride] = n->bytes;
    wide[ROW_DTYPES * stride] = n->dtypes;
}

/* Writes the visible rows [first, first + count) into columns of `count` numbers: ROW_NARROW columns in `narrow`, ROW_WIDE
 * in `wide`. Returns the number of rows. Names and shapes are borrowed from the checkpoint. */
TSR_EXPORT(tessera_outline_rows)
uint32_t tessera_outline_rows(uint32_t handle, uint32_t first, uint32_t count, uint32_t *narrow, uint64_t *wide)
{
    const outline *o = tessera_item_of(handle, HANDLE_OUTLINE, NULL);
    uint32_t rows = 0;
    for (; o && rows < count && first + rows < o->shown_count; rows++)
        put_row(o, o->shown[first + rows], narrow + rows, wide + rows, count);
    return rows;
}

enum { ACT_CLOSE = 0, ACT_OPEN = 1, ACT_FOLD = 2, ACT_UNFOLD = 3, ACT_OPEN_ALL = 4, ACT_CLOSE_ALL = 5 };

static void set_open(outline *o, uint32_t at, uint8_t open)
{
    if (o->filtered) o->nodes[at].open_filtered = open;
    else o->nodes[at].open = open;
}

/* Acts on a node, or for the last two acts on everything below it. Returns the new number of visible rows. */
TSR_EXPORT(tessera_outline_act) uint32_t tessera_outline_act(uint32_t handle, uint32_t at, uint32_t act)
{
    outline *o = tessera_item_of(handle, HANDLE_OUTLINE, NULL);
    if (!o || at >= o->count) return o ? o->shown_count : 0;
    if (act <= ACT_OPEN) {
        set_open(o, at, (uint8_t)act);
        while (act == ACT_OPEN && o->nodes[at].end > at + 1 && o->nodes[at + 1].end == o->nodes[at].end)
            set_open(o, ++at, 1); /* open chains of only children, too */
    } else if (act <= ACT_UNFOLD) {
        o->nodes[at].unfolded = act == ACT_UNFOLD;
    } else {
        for (uint32_t i = at; i < o->nodes[at].end; i++) set_open(o, i, act == ACT_OPEN_ALL);
    }
    tessera_outline_show(o);
    return o->shown_count;
}

/* Shows only entries that the filter keeps, and their parents; an empty filter shows all. Returns 1 + the number of entries
 * kept. */
TSR_EXPORT(tessera_outline_filter)
uint32_t tessera_outline_filter(uint32_t handle, const char *text, uint32_t size, tsr_error *err)
{
    outline *o = tessera_item_of(handle, HANDLE_OUTLINE, err);
    filter f;
    if (!o || tessera_filter_parse((tsr_str){text, size}, &f, err) != TSR_OK) return 0;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(o->checkpoint);
    uint32_t kept = 0;
    o->filtered = f.count > 0;
    for (uint32_t i = o->count; i-- > 0;) {
        node *n = &o->nodes[i];
        const bool keeps = n->entry != NO_ENTRY && tessera_filter_keeps(&f, catalog, &catalog->entries[n->entry]);
        bool below = false; /* children have higher numbers, so they were visited before */
        kept += keeps;
        n->open_filtered = 1;
        for (uint32_t c = i + 1; c < n->end && !below; c = o->nodes[c].end) below = o->nodes[c].matches;
        n->matches = keeps || below;
    }
    tessera_outline_show(o);
    return kept + 1;
}

/* Opens the parents of an entry. Returns 1 + the number of its row, or 0 if the filter hides it. */
TSR_EXPORT(tessera_outline_reveal) uint32_t tessera_outline_reveal(uint32_t handle, uint32_t entry)
{
    outline *o = tessera_item_of(handle, HANDLE_OUTLINE, NULL);
    if (!o || entry >= tsr_checkpoint_catalog(o->checkpoint)->entry_count) return 0;
    const uint32_t own = o->node_of[entry];
    for (uint32_t at = own; at;) {
        if (o->nodes[at].run && o->nodes[at].run != at) o->nodes[o->nodes[at].run].unfolded = 1;
        at = o->nodes[at].parent;
        set_open(o, at, 1);
    }
    tessera_outline_show(o);
    uint32_t low = 0, high = o->shown_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (o->shown[middle] < own) low = middle + 1;
        else high = middle;
    }
    return low < o->shown_count && o->shown[low] == own ? low + 1 : 0;
}

/* Marks an entry and its parents with the level of a finding, from 1 (note) to 3 (error). */
TSR_EXPORT(tessera_outline_mark) void tessera_outline_mark(uint32_t handle, uint32_t entry, uint32_t level)
{
    outline *o = tessera_item_of(handle, HANDLE_OUTLINE, NULL);
    if (!o || entry >= tsr_checkpoint_catalog(o->checkpoint)->entry_count) return;
    for (uint32_t at = o->node_of[entry];; at = o->nodes[at].parent) {
        if (o->nodes[at].level < level) o->nodes[at].level = (uint8_t)level;
        if (!at) return;
    }
}
