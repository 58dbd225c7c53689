/* Builds outlines. Names are split at their dots, which is suitable for display whatever the nesting of the checkpoint. A
 * hash table of (parent, component) finds the nodes, which are then put into depth-first order. */
#include "request.h"

#include "shim.h"
#include "tessera/glob.h"
#include "tessera/store.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

#include <stdio.h>
#include <stdlib.h>

/* The names of a checkpoint as a tree that can be opened, closed, folded and filtered, for lists of any length.
 *
 *   names: a.w, a.b, l.0.w, l.1.w, l.2.w        nodes in depth-first order; [i + 1, end) are below i
 *                                                 0 (all) 1 a 2 a.w 3 a.b 4 l 5 l.0 6 l.0.w 7 l.1 8 l.1.w 9 l.2 10 l.2.w
 *
 * Three or more adjacent siblings with numbers as names and the same content (names, dtypes, shapes) are a run. Its first
 * member represents all of them until the run is unfolded. */

/* The filter line of the viewer. Terms are separated by spaces, and an entry must satisfy all of them:
 *
 *   text            part of the name, ignoring case; with * ? or [ a glob for the whole name
 *   dtype:bfloat16  or a glob               shape:4096x*   a glob for the sizes       file:__0_0
 *   kind:object     tensor, object, opaque  >1GB  <=64MiB  bytes of the tensor        -term  not */

enum { FILTER_TERMS = 16 };

typedef struct filter_term {
    enum { TERM_NAME, TERM_DTYPE, TERM_SHAPE, TERM_FILE, TERM_KIND, TERM_MORE, TERM_LESS } what;
    bool negated, is_glob, or_equal;
    tsr_str text;
    double bytes;
} filter_term;

typedef struct filter {
    filter_term terms[FILTER_TERMS];
    uint32_t count;
} filter;

#define NO_ENTRY UINT32_MAX

typedef struct node {
    tsr_str name; /* the last component */
    uint32_t parent, end, entry, depth;
    uint32_t entries;      /* in this node and below it */
    uint32_t run, run_end; /* the node number of the run's first member, and the end of the run; 0: not in a run */
    uint32_t run_count;    /* only for the first member */
    uint8_t open, open_filtered, unfolded, level, odd; /* level: 1 + that of the worst finding */
    bool matches;                                      /* the node, or something below it, matches the filter */
    uint64_t elements, bytes, dtypes;                  /* including what is below; dtypes has one bit per tsr_dtype */
    uint64_t form;                                     /* a hash of what is below */
} node;

typedef struct outline {
    const tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    node *nodes;
    uint32_t count;
    uint32_t *node_of; /* by entry; 0: the entry was left out */
    uint32_t *shown;   /* visible nodes, from the top */
    uint32_t shown_count;
    bool filtered;
    bool objects_only; /* tensors are left out */
} outline;

/* ---- building ---- */

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
    if (!table) return tsr_fail(b->err, TSR_E_NOMEM, "out of memory for an outline");
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
        if (!tsr_is_digit(name.data[i])) return false;
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

/* Determines the visible nodes. O(visible). */
static void show(outline *o)
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

/* Opens as many complete levels as fit on a screen. */
static void open_first_levels(outline *o)
{
    enum { SCREEN = 40, DEEPEST = 12 };
    for (uint32_t depth = 0; depth < DEEPEST; depth++) {
        for (uint32_t i = 0; i < o->count; i++) o->nodes[i].open |= o->nodes[i].depth == depth;
        show(o);
        if (o->shown_count <= SCREEN || depth == 0) continue;
        for (uint32_t i = 0; i < o->count; i++) o->nodes[i].open &= o->nodes[i].depth != depth;
        break;
    }
    show(o);
}

/* Builds an outline whose checkpoint, arena and `objects_only` are set. O(names). Errors: TSR_E_NOMEM. */
static tsr_status build(outline *o, tsr_error *err)
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

static uint8_t lower(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
}

static bool contains(tsr_str text, tsr_str part)
{
    for (size_t at = 0; at + part.size <= text.size; at++) {
        size_t n = 0;
        while (n < part.size && lower((uint8_t)text.data[at + n]) == lower((uint8_t)part.data[n])) n++;
        if (n == part.size) return true;
    }
    return false;
}

static bool fits(const filter_term *term, tsr_str text)
{
    return term->is_glob ? tsr_glob_match(term->text, text) : contains(text, term->text);
}

/* ---- parsing ---- */

static bool parse_size(tsr_str text, double *bytes)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},    {"B", 1},   {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"K", 1e3},
                 {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};
    char copy[32] = {0}, *unit;
    if (text.size == 0 || text.size >= sizeof copy) return false;
    for (size_t i = 0; i < text.size; i++)
        copy[i] = text.data[i] >= 'a' && text.data[i] <= 'z' ? (char)(text.data[i] - 32) : text.data[i];
    *bytes = tsr_real_read(copy, &unit);
    if (unit == copy) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].unit) == 0) {
            *bytes *= units[i].factor;
            return true;
        }
    }
    return false;
}

static tsr_status parse_term(tsr_str text, size_t at, filter_term *term, tsr_error *err)
{
    term->negated = text.size > 1 && tsr_str_skip(&text, TSR_STR("-"));
    if (tsr_str_skip(&text, TSR_STR(">"))) term->what = TERM_MORE;
    else if (tsr_str_skip(&text, TSR_STR("<"))) term->what = TERM_LESS;
    else if (tsr_str_skip(&text, TSR_STR("dtype:"))) term->what = TERM_DTYPE;
    else if (tsr_str_skip(&text, TSR_STR("shape:"))) term->what = TERM_SHAPE;
    else if (tsr_str_skip(&text, TSR_STR("file:"))) term->what = TERM_FILE;
    else if (tsr_str_skip(&text, TSR_STR("kind:"))) term->what = TERM_KIND;
    else term->what = TERM_NAME;
    if (term->what == TERM_MORE || term->what == TERM_LESS) {
        term->or_equal = tsr_str_skip(&text, TSR_STR("="));
        if (parse_size(text, &term->bytes)) return TSR_OK;
        return tsr_raise(err, TSR_E_USAGE, at, "filter: '%.*s' is not a size; write it as 500MB or 1.5GiB",
                         TSR_STR_ARG(text));
    }
    term->text = text;
    for (size_t i = 0; i < text.size; i++)
        term->is_glob |= text.data[i] == '*' || text.data[i] == '?' || text.data[i] == '[';
    return TSR_OK;
}

/* Borrows `text`. Errors: TSR_E_USAGE with the byte position. */
static tsr_status parse_filter(tsr_str text, filter *out, tsr_error *err)
{
    *out = (filter){0};
    for (size_t at = 0; at < text.size;) {
        size_t end = at;
        while (end < text.size && text.data[end] != ' ') end++;
        if (end > at) {
            if (out->count == FILTER_TERMS) return tsr_raise(err, TSR_E_USAGE, at, "filter: at most %d terms", FILTER_TERMS);
            tsr_status status = parse_term((tsr_str){text.data + at, end - at}, at, &out->terms[out->count++], err);
            if (status != TSR_OK) return status;
        }
        at = end + 1;
    }
    return TSR_OK;
}

/* ---- matching ---- */

/* Whether `one_fits` is true for a dense tensor of the entry: its own, or that of any rank. */
static bool any_tensor(const filter_term *term, const tsr_entry *entry,
                       bool (*one_fits)(const filter_term *, const tsr_entry *))
{
    if (entry->kind == TSR_ENTRY_TENSOR) return one_fits(term, entry);
    for (uint32_t r = 0; entry->per_rank && r < entry->per_rank->count; r++) {
        const tsr_entry *held = entry->per_rank->tensors[r];
        if (held && held->kind == TSR_ENTRY_TENSOR && one_fits(term, held)) return true;
    }
    return false;
}

static bool fits_dtype(const filter_term *term, const tsr_entry *entry)
{
    return fits(term, tsr_str_from(tsr_dtype_describe(entry->dtype)->name));
}

static bool fits_shape(const filter_term *term, const tsr_entry *entry)
{
    char text[24 * 8 + 8];
    size_t size = 0;
    if (entry->ndim > 8) return false;
    for (uint32_t d = 0; d < entry->ndim; d++) {
        size +=
            (size_t)snprintf(text + size, sizeof text - size, "%s%llu", d ? "x" : "", (unsigned long long)entry->shape[d]);
    }
    return tsr_glob_match(term->text, (tsr_str){text, size});
}

static bool fits_file(const filter_term *term, const tsr_catalog *catalog, const tsr_entry *entry)
{
    uint32_t last = TSR_NO_FILE;
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        const uint32_t file = entry->chunks[c].file;
        if (file == last || file >= catalog->store->file_count) continue;
        if (fits(term, catalog->store->files[file].name)) return true;
        last = file;
    }
    for (uint32_t r = 0; entry->per_rank && r < entry->per_rank->count; r++)
        if (entry->per_rank->tensors[r] && fits_file(term, catalog, entry->per_rank->tensors[r])) return true;
    return false;
}

static bool any(const filter_term *term, const tsr_entry *entry)
{
    (void)term, (void)entry;
    return true;
}

bool tessera_is_tensor(const tsr_entry *entry)
{
    return any_tensor(NULL, entry, any);
}

static bool fits_size(const filter_term *term, const tsr_entry *entry)
{
    uint64_t bytes = 0, held;
    const bool whole = entry->kind == TSR_ENTRY_TENSOR;
    if (whole ? !tsr_entry_bytes(entry, &bytes) : !tessera_is_tensor(entry)) return false;
    for (uint32_t r = 0; !whole && r < entry->per_rank->count; r++) {
        const tsr_entry *on_rank = entry->per_rank->tensors[r];
        if (on_rank && on_rank->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(on_rank, &held)) bytes += held;
    }
    if ((double)bytes == term->bytes) return term->or_equal;
    return ((double)bytes > term->bytes) == (term->what == TERM_MORE);
}

static bool holds(const filter_term *term, const tsr_catalog *catalog, const tsr_entry *entry)
{
    static const char *const kinds[] = {"tensor", "object", "opaque"};
    switch (term->what) {
    case TERM_DTYPE: return any_tensor(term, entry, fits_dtype);
    case TERM_SHAPE: return any_tensor(term, entry, fits_shape);
    case TERM_FILE: return fits_file(term, catalog, entry);
    case TERM_KIND: return fits(term, tsr_str_from(kinds[tessera_is_tensor(entry) ? TSR_ENTRY_TENSOR : entry->kind]));
    case TERM_MORE:
    case TERM_LESS: return fits_size(term, entry);
    default: return fits(term, entry->fqn);
    }
}

static bool keeps_entry(const filter *f, const tsr_catalog *catalog, const tsr_entry *entry)
{
    for (uint32_t i = 0; i < f->count; i++) {
        if (holds(&f->terms[i], catalog, entry) == f->terms[i].negated) return false;
    }
    return true;
}

/* What JavaScript does with an outline: reads visible rows, opens, closes, filters and finds. */

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
        if (item) tsr_fail(err, TSR_E_NOMEM, "out of memory");
        return 0;
    }
    o->checkpoint = item->checkpoint;
    o->objects_only = objects_only != 0;
    o->arena = tsr_arena_new(item->host.allocator, 0, err);
    if (!o->arena || build(o, err) != TSR_OK) {
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
    show(o);
    return o->shown_count;
}

/* Shows only entries that the filter keeps, and their parents; an empty filter shows all. Returns 1 + the number of entries
 * kept. */
TSR_EXPORT(tessera_outline_filter)
uint32_t tessera_outline_filter(uint32_t handle, const char *text, uint32_t size, tsr_error *err)
{
    outline *o = tessera_item_of(handle, HANDLE_OUTLINE, err);
    filter f;
    if (!o || parse_filter((tsr_str){text, size}, &f, err) != TSR_OK) return 0;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(o->checkpoint);
    uint32_t kept = 0;
    o->filtered = f.count > 0;
    for (uint32_t i = o->count; i-- > 0;) {
        node *n = &o->nodes[i];
        const bool keeps = n->entry != NO_ENTRY && keeps_entry(&f, catalog, &catalog->entries[n->entry]);
        bool below = false; /* children have higher numbers, so they were visited before */
        kept += keeps;
        n->open_filtered = 1;
        for (uint32_t c = i + 1; c < n->end && !below; c = o->nodes[c].end) below = o->nodes[c].matches;
        n->matches = keeps || below;
    }
    show(o);
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
    show(o);
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
