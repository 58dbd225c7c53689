/* See listing.h. Looks for a node on the previous entry's path first: names with the same prefix are mostly adjacent, so the
 * map of prefixes is rarely needed. */
#include "cli/text/listing.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

typedef struct builder {
    cli_listing *listing;
    tsr_map *prefixes; /* whole prefix → node */
    tsr_error *err;
    uint32_t path[CLI_MAX_DEPTH + 1]; /* nodes on the path of the previous entry */
    unsigned depth;
} builder;

static cli_node *listing_node_at(const cli_listing *listing, uint32_t index)
{
    return (cli_node *)listing->nodes.items + index;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

/* ---- building ---- */

static uint32_t add_node(builder *b, uint32_t parent, tsr_str name)
{
    uint32_t index = (uint32_t)b->listing->nodes.count;
    cli_node *node = tsr_vec_push(&b->listing->nodes, b->err);
    if (!node) return CLI_NO_NODE;
    *node = (cli_node){.name = name,
                       .parent = parent,
                       .first = CLI_NO_NODE,
                       .last = CLI_NO_NODE,
                       .next = CLI_NO_NODE,
                       .folded = 1,
                       .fold_next = CLI_NO_NODE};
    if (parent == CLI_NO_NODE) return index;
    cli_node *above = listing_node_at(b->listing, parent);
    if (above->last == CLI_NO_NODE) above->first = index;
    else listing_node_at(b->listing, above->last)->next = index;
    above->last = index;
    return index;
}

/* The child of `parent` for the component `name`; `prefix` is everything up to its end. */
static uint32_t child_of(builder *b, uint32_t parent, tsr_str name, tsr_str prefix, unsigned depth)
{
    if (b->depth > depth && listing_node_at(b->listing, b->path[depth])->parent == parent &&
        tsr_str_equal(listing_node_at(b->listing, b->path[depth])->name, name)) {
        return b->path[depth];
    }
    b->depth = depth;
    uint32_t *known;
    bool is_new;
    if (tsr_map_put(b->prefixes, prefix, (uint32_t)b->listing->nodes.count, &known, &is_new, b->err) != TSR_OK)
        return CLI_NO_NODE;
    return is_new ? add_node(b, parent, name) : *known;
}

static tsr_status add_entry(builder *b, const tsr_entry *entry)
{
    tsr_str fqn = entry->fqn;
    uint32_t at = 0;
    unsigned depth = 0;
    for (size_t start = 0;; depth++) {
        const char *dot =
            depth + 1 < CLI_MAX_DEPTH && start < fqn.size ? memchr(fqn.data + start, '.', fqn.size - start) : NULL;
        size_t end = dot ? (size_t)(dot - fqn.data) : fqn.size;
        at = child_of(b, at, (tsr_str){fqn.data + start, end - start}, (tsr_str){fqn.data, end}, depth);
        if (at == CLI_NO_NODE) return TSR_E_NOMEM;
        b->path[depth] = at;
        if (b->depth <= depth) b->depth = depth + 1;
        if (!dot) break;
        start = end + 1;
    }
    b->depth = depth + 1;
    listing_node_at(b->listing, at)->entry = entry;
    return TSR_OK;
}

/* ---- totals and signatures ---- */

static uint64_t hash_text(const char *text)
{
    return tsr_hash_bytes(text, strlen(text), 7);
}

static uint64_t hash_numbers(const tsr_entry *entry, const uint64_t *numbers)
{
    return tsr_hash_bytes(numbers, entry->ndim * sizeof *numbers, 5);
}

static void take_entry(cli_node *node)
{
    const tsr_entry *entry = node->entry;
    char text[160];
    uint64_t elements = 0, bytes = 0;
    node->signature = mix(node->signature, (uint64_t)entry->kind + 1);
    if (entry->kind != TSR_ENTRY_TENSOR) {
        node->others++;
        if (entry->value) node->signature = mix(node->signature, hash_text(tsr_value_text(entry->value, text, sizeof text)));
        node->signature = mix(node->signature, tsr_hash_bytes(entry->type.data, entry->type.size, 3));
        return;
    }
    tsr_entry_elements(entry, &elements);
    tsr_entry_bytes(entry, &bytes);
    node->tensors++;
    node->elements += elements;
    node->bytes += bytes;
    if (node->dtype == TSR_DTYPE_NONE) node->dtype = entry->dtype;
    else if (node->dtype != entry->dtype) node->mixed = true;
    node->signature = mix(mix(node->signature, (uint64_t)entry->dtype), hash_numbers(entry, entry->shape));
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        node->signature += mix(hash_numbers(entry, entry->chunks[c].offsets), hash_numbers(entry, entry->chunks[c].sizes));
    }
}

/* Children have higher indices than their parents, so one pass from the end adds up totals bottom-up. */
static void add_up(cli_listing *listing)
{
    for (size_t i = listing->nodes.count; i-- > 0;) {
        cli_node *node = listing_node_at(listing, (uint32_t)i);
        if (node->entry) take_entry(node);
        if (node->parent == CLI_NO_NODE) continue;
        cli_node *above = listing_node_at(listing, node->parent);
        above->tensors += node->tensors;
        above->others += node->others;
        above->elements += node->elements;
        above->bytes += node->bytes;
        above->mixed |=
            node->mixed || (above->dtype != TSR_DTYPE_NONE && node->dtype != TSR_DTYPE_NONE && above->dtype != node->dtype);
        if (above->dtype == TSR_DTYPE_NONE) above->dtype = node->dtype;
        /* A sum, so the order of children does not matter. */
        above->signature += mix(tsr_hash_bytes(node->name.data, node->name.size, 1), node->signature);
    }
}

/* ---- folding ---- */

typedef struct numbered {
    uint64_t signature;
    uint64_t number;
    uint32_t node;
} numbered;

static int numbered_order(const void *a, const void *b)
{
    const numbered *x = a, *y = b;
    if (x->signature != y->signature) return x->signature < y->signature ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

static void fold_group(cli_listing *listing, const numbered *items, size_t count)
{
    cli_node *head = listing_node_at(listing, items[0].node);
    head->folded = (uint32_t)count;
    for (size_t i = 1; i < count; i++) {
        listing_node_at(listing, items[i].node)->folded = 0;
        listing_node_at(listing, items[i - 1].node)->fold_next = items[i].node;
    }
}

static void fold_children(cli_listing *listing, tsr_vec *numbers)
{
    numbered *items = numbers->items;
    size_t largest = 0;
    qsort(items, numbers->count, sizeof *items, numbered_order);
    for (size_t from = 0, to; from < numbers->count; from = to) {
        for (to = from + 1; to < numbers->count && items[to].signature == items[from].signature;) to++;
        fold_group(listing, items + from, to - from);
        if (to - from > largest) largest = to - from;
    }
    if (largest < 3 || largest * 2 < numbers->count) return;
    for (size_t i = 0; i < numbers->count; i++) {
        cli_node *node = listing_node_at(listing, items[i].node);
        node->odd = node->folded == 1;
    }
}

static tsr_status fold(cli_listing *listing, tsr_error *err)
{
    tsr_vec numbers = tsr_vec_of(&tsr_allocator_libc, sizeof(numbered));
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < listing->nodes.count && status == TSR_OK; i++) {
        numbers.count = 0;
        for (uint32_t c = listing_node_at(listing, i)->first; c != CLI_NO_NODE; c = listing_node_at(listing, c)->next) {
            uint64_t number;
            if (!tsr_component_number(listing_node_at(listing, c)->name, &number)) continue;
            numbered *item = tsr_vec_push(&numbers, err);
            if (!item) status = TSR_E_NOMEM;
            else *item = (numbered){listing_node_at(listing, c)->signature, number, c};
        }
        if (status == TSR_OK && numbers.count > 1) fold_children(listing, &numbers);
    }
    tsr_vec_free(&numbers);
    return status;
}

tsr_status cli_listing_build(const tsr_catalog *catalog, const tsr_name_globs *selection, cli_listing *out, tsr_error *err)
{
    *out = (cli_listing){tsr_vec_of(&tsr_allocator_libc, sizeof(cli_node))};
    builder b = {
        .listing = out, .err = err, .prefixes = tsr_map_new(&tsr_allocator_libc, (size_t)catalog->entry_count, err)};
    tsr_status status = b.prefixes && add_node(&b, CLI_NO_NODE, TSR_STR("")) == 0 ? TSR_OK : TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        if (tsr_globs_select(selection, catalog->entries[i].fqn)) status = add_entry(&b, &catalog->entries[i]);
    }
    if (status == TSR_OK) {
        add_up(out);
        status = fold(out, err);
    }
    tsr_map_free(b.prefixes);
    return status;
}

void cli_listing_free(cli_listing *listing)
{
    tsr_vec_free(&listing->nodes);
}

/* ---- listing rows ---- */

/* Produces the rows of a listing, and the texts of their cells. */

typedef struct walker {
    const cli_listing *listing;
    bool tree;
    void (*each)(void *ctx, const cli_row *row);
    void *ctx;
    tsr_vec label; /* of char */
    tsr_error *err;
    bool failed;
} walker;

static const cli_node *node_at(const cli_listing *listing, uint32_t index)
{
    return (const cli_node *)listing->nodes.items + index;
}

static void append(walker *w, const char *data, size_t size)
{
    if (size == 0) return;
    if (w->failed || tsr_vec_reserve(&w->label, size, w->err) != TSR_OK) {
        w->failed = true;
        return;
    }
    memcpy((char *)w->label.items + w->label.count, data, size);
    w->label.count += size;
}

static bool follows(tsr_str a, tsr_str b)
{
    uint64_t x, y;
    return tsr_component_number(a, &x) && tsr_component_number(b, &y) && y == x + 1;
}

/* Appends "name", or "{0-4,6-31}". After a few ranges, "…" replaces the rest. */
static void append_label(walker *w, const cli_node *node)
{
    enum { MAX_RANGES = 6 };
    if (node->folded < 2) {
        append(w, node->name.data, node->name.size);
        return;
    }
    append(w, "{", 1);
    unsigned ranges = 0;
    for (const cli_node *from = node; from;) {
        const cli_node *to = from;
        while (to->fold_next != CLI_NO_NODE && follows(to->name, node_at(w->listing, to->fold_next)->name))
            to = node_at(w->listing, to->fold_next);
        if (ranges++) append(w, ",", 1);
        if (ranges > MAX_RANGES) {
            append(w, "…", sizeof "…" - 1);
            break;
        }
        append(w, from->name.data, from->name.size);
        if (to != from) append(w, follows(from->name, to->name) ? "," : "-", 1);
        if (to != from) append(w, to->name.data, to->name.size);
        from = to->fold_next == CLI_NO_NODE ? NULL : node_at(w->listing, to->fold_next);
    }
    append(w, "}", 1);
}

static const cli_node *shown(const walker *w, uint32_t index)
{
    while (index != CLI_NO_NODE && node_at(w->listing, index)->folded == 0) index = node_at(w->listing, index)->next;
    return index == CLI_NO_NODE ? NULL : node_at(w->listing, index);
}

/* Recursive; the depth is limited to CLI_MAX_DEPTH. */
static void walk(walker *w, const cli_node *parent, unsigned depth, uint64_t times, uint64_t last_at)
{
    size_t start = w->label.count;
    for (const cli_node *node = shown(w, parent->first); node && !w->failed;) {
        const cli_node *next = shown(w, node->next);
        bool odd = node->odd;
        uint64_t count = times * node->folded, last = next ? last_at : last_at | (uint64_t)1 << depth;
        if (w->tree) w->label.count = 0;
        else if (start) append(w, ".", 1);
        append_label(w, node);
        while (w->tree && !node->entry && node->tensors) { /* a chain of single children is one line */
            const cli_node *child = shown(w, node->first);
            if (shown(w, child->next)) break;
            count *= child->folded;
            odd |= child->odd;
            append(w, ".", 1);
            append_label(w, child);
            node = child;
        }
        cli_row row = {{w->label.items, w->label.count}, node, count, depth, last, odd};
        if (!w->failed && (w->tree || node->entry)) w->each(w->ctx, &row);
        if (!w->tree || node->tensors) walk(w, node, depth + 1, count, last);
        w->label.count = start;
        node = next;
    }
}

tsr_status cli_listing_rows(const cli_listing *listing, bool tree, void (*each)(void *ctx, const cli_row *row), void *ctx,
                            tsr_error *err)
{
    walker w = {listing, tree, each, ctx, tsr_vec_of(&tsr_allocator_libc, 1), err, false};
    walk(&w, node_at(listing, 0), 0, 1, 0);
    tsr_vec_free(&w.label);
    return w.failed ? TSR_E_NOMEM : TSR_OK;
}

void cli_shape_text(const tsr_entry *entry, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "[");
    for (uint32_t d = 0; d < entry->ndim && used < capacity; d++) {
        used += (size_t)snprintf(out + used, capacity - used, "%s%" PRIu64, d ? ", " : "", entry->shape[d]);
    }
    if (used < capacity) used += (size_t)snprintf(out + used, capacity - used, "]");
    if (used >= capacity) snprintf(out, capacity, "[%u dims]", entry->ndim);
}

/* The number of chunks along one dim if the chunks form a grid: those whose other offsets are all 0. */
static uint64_t cuts_along(const tsr_entry *entry, uint32_t dim)
{
    uint64_t count = 0;
    for (uint64_t c = 0; c < entry->chunk_count; c++) {
        bool on_edge = true;
        for (uint32_t d = 0; d < entry->ndim && on_edge; d++) on_edge = d == dim || entry->chunks[c].offsets[d] == 0;
        count += on_edge;
    }
    return count;
}

static bool grid_text(const tsr_entry *entry, char *out, size_t capacity)
{
    uint64_t product = 1;
    size_t used = 0;
    for (uint32_t d = 0; d < entry->ndim && used < capacity; d++) {
        uint64_t cuts = cuts_along(entry, d);
        if (cuts == 0 || cuts > entry->chunk_count / product) return false;
        product *= cuts;
        if (cuts > 1)
            used += (size_t)snprintf(out + used, capacity - used, "%s%" PRIu64 " on dim %u", used ? ", " : "", cuts, d);
    }
    return product == entry->chunk_count && used < capacity;
}

static bool is_whole(const tsr_entry *entry)
{
    for (uint32_t d = 0; d < entry->ndim; d++) {
        if (entry->chunks[0].sizes[d] != entry->shape[d]) return false;
    }
    return true;
}

void cli_layout_text(const tsr_entry *entry, char *out, size_t capacity)
{
    const tsr_distribution *known = entry->distribution;
    if (known && known->placements.size) {
        snprintf(out, capacity, "%.*s%s%.*s", TSR_STR_ARG(known->placements), known->mesh.size ? " over " : "",
                 TSR_STR_ARG(known->mesh));
    } else if (entry->chunk_count == 1) {
        snprintf(out, capacity, "%s", is_whole(entry) ? "whole" : "1 chunk, not the whole tensor");
    } else if (entry->chunk_count == 0) {
        snprintf(out, capacity, "no chunks");
    } else if (entry->chunk_count > 4096 || !grid_text(entry, out, capacity)) {
        snprintf(out, capacity, "%" PRIu64 " chunks", entry->chunk_count);
    }
}
