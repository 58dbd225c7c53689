/* The objects of `inspect`. Optimizers repeat their options for every parameter. Equal values whose names have the same
 * beginning and end are therefore printed as one line, "optim.param_groups.**.lr  ×17". */
#include <stdio.h>
#include <stdlib.h>

#include "cli/text/inspect_view.h"
#include "tessera/sys/document.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/value_walk.h"

typedef struct object_row {
    const tsr_entry *entry; /* the first of the group */
    uint64_t times;
    uint64_t key;
    uint64_t order;
    tsr_str prefix; /* common beginning of all names: whole components, and the dot after them */
} object_row;

static uint64_t hash(tsr_str text, uint64_t seed)
{
    return tsr_hash_bytes(text.data, text.size, seed);
}

static tsr_str first_component(tsr_str name)
{
    const char *dot = name.size ? memchr(name.data, '.', name.size) : NULL;
    return (tsr_str){name.data, dot ? (size_t)(dot - name.data) : name.size};
}

static bool hold_alike(const tsr_entry *a, const tsr_entry *b)
{
    return a && b && a->dtype == b->dtype && tsr_entry_same_shape(a, b);
}

/* Describes what the ranks hold: "bfloat16 [4, 8] on 2 ranks", or "float32 [4], [3], none". */
static void per_rank_text(const tsr_per_rank *ranks, char *out, size_t capacity)
{
    size_t used = 0;
    uint32_t alike = 1;
    tsr_dtype dtype = TSR_DTYPE_NONE;
    while (alike < ranks->count && hold_alike(ranks->tensors[0], ranks->tensors[alike])) alike++;
    for (uint32_t r = 0; r < (alike == ranks->count ? 1 : ranks->count) && used < capacity; r++) {
        const tsr_entry *held = ranks->tensors[r];
        char shape[CLI_CELL] = "none";
        const bool shows_dtype = held && held->dtype != dtype;
        if (held) cli_shape_text(held, shape, sizeof shape);
        if (held) dtype = held->dtype;
        used += (size_t)snprintf(out + used, capacity - used, "%s%s%s%s", r ? ", " : "",
                                 shows_dtype ? tsr_dtype_describe(dtype)->name : "", shows_dtype ? " " : "", shape);
    }
    if (alike == ranks->count && used < capacity) snprintf(out + used, capacity - used, " on %u ranks", ranks->count);
}

static uint64_t key_of(const tsr_entry *entry)
{
    char text[4 * CLI_CELL];
    uint64_t key = hash(entry->type, hash(tsr_last_component(entry->fqn), hash(first_component(entry->fqn), 1)));
    if (entry->per_rank) {
        per_rank_text(entry->per_rank, text, sizeof text);
        return hash(tsr_str_from(text), key);
    }
    return entry->value ? hash(tsr_str_from(tsr_value_text(entry->value, text, sizeof text)), key) : key;
}

static int by_key(const void *a, const void *b)
{
    const object_row *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static int by_order(const void *a, const void *b)
{
    const object_row *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

static tsr_str common_prefix(tsr_str a, tsr_str b)
{
    size_t size = 0, dot = 0;
    while (size < a.size && size < b.size && a.data[size] == b.data[size]) {
        if (a.data[size++] == '.') dot = size;
    }
    return (tsr_str){a.data, dot};
}

static tsr_status collect(const cli_view *v, tsr_vec *rows, tsr_error *err)
{
    const cli_node *nodes = v->listing.nodes.items;
    for (size_t i = 0; i < v->listing.nodes.count; i++) {
        const tsr_entry *entry = nodes[i].entry;
        if (!entry || entry->kind == TSR_ENTRY_TENSOR) continue;
        object_row *row = tsr_vec_push(rows, err);
        if (!row) return TSR_E_NOMEM;
        *row = (object_row){entry, 1, key_of(entry), (uint64_t)(entry - v->session->catalog->entries), entry->fqn};
    }
    return TSR_OK;
}

/* Turns groups of three or more into one row, at the position of their first member. */
static void group(tsr_vec *rows)
{
    object_row *items = rows->items;
    size_t kept = 0;
    qsort(items, rows->count, sizeof *items, by_key);
    for (size_t from = 0, to; from < rows->count; from = to) {
        for (to = from + 1; to < rows->count && items[to].key == items[from].key;) to++;
        if (to - from < 3) {
            for (size_t i = from; i < to; i++) items[kept++] = items[i];
            continue;
        }
        object_row folded = items[from];
        folded.times = to - from;
        for (size_t i = from + 1; i < to; i++) folded.prefix = common_prefix(folded.prefix, items[i].entry->fqn);
        items[kept++] = folded;
    }
    rows->count = kept;
    qsort(items, kept, sizeof *items, by_order);
}

static tsr_str label_of(const object_row *row, char *buffer, size_t capacity)
{
    if (row->times == 1) return row->entry->fqn.size ? row->entry->fqn : TSR_STR("(root)");
    tsr_str last = tsr_last_component(row->entry->fqn);
    snprintf(buffer, capacity, "%.*s**.%.*s", TSR_STR_ARG(row->prefix), TSR_STR_ARG(last));
    return tsr_str_from(buffer);
}

static void put_object(const cli_view *v, const object_row *row)
{
    char text[4 * CLI_CELL], label[4 * CLI_CELL];
    const tsr_entry *entry = row->entry;
    bool opaque = entry->kind == TSR_ENTRY_OPAQUE && !entry->per_rank;
    cli_put_name(v, label_of(row, label, sizeof label), row->times, v->name_width);
    fputs("  ", stdout);
    cli_put_fitted(stdout, entry->type, v->type_width, true);
    fputs("  ", stdout);
    cli_on(v->out, stdout, CLI_YELLOW);
    if (opaque) fputs("opaque ", stdout);
    cli_off(v->out, stdout);
    unsigned used = v->name_width + v->type_width + 4 + (opaque ? 7 : 0);
    unsigned room = v->out->columns > used + 20 ? v->out->columns - used : 20;
    if (entry->per_rank) {
        per_rank_text(entry->per_rank, text, sizeof text);
        cli_put_fitted(stdout, tsr_str_from(text), room, false);
    }
    if (entry->value) cli_put_fitted(stdout, tsr_str_from(tsr_value_text(entry->value, text, sizeof text)), room, false);
    putchar('\n');
}

static void put_rows(cli_view *v, const tsr_vec *rows)
{
    enum { MOST_TYPE = 32, VALUE_WIDTH = 24 };
    const object_row *items = rows->items;
    v->name_width = 6, v->type_width = 4;
    for (size_t i = 0; i < rows->count; i++) {
        char label[4 * CLI_CELL];
        cli_widen(&v->name_width, cli_name_width(label_of(&items[i], label, sizeof label), items[i].times));
        cli_widen(&v->type_width, cli_width(items[i].entry->type));
    }
    if (v->type_width > MOST_TYPE) v->type_width = MOST_TYPE;
    cli_fit_names(v, v->type_width + 4 + VALUE_WIDTH);
    cli_on(v->out, stdout, CLI_BOLD);
    printf("\n%-*s  %-*s  %s\n", (int)v->name_width, "OBJECT", (int)v->type_width, "TYPE", "VALUE");
    cli_off(v->out, stdout);
    for (size_t i = 0; i < rows->count; i++) put_object(v, &items[i]);
}

tsr_status cli_put_objects(cli_view *v, tsr_error *err)
{
    if (cli_view_root(v)->others == 0) return TSR_OK;
    tsr_vec rows = tsr_vec_of(&tsr_allocator_libc, sizeof(object_row));
    tsr_status status = collect(v, &rows, err);
    if (status == TSR_OK) {
        group(&rows);
        put_rows(v, &rows);
    }
    tsr_vec_free(&rows);
    return status;
}
