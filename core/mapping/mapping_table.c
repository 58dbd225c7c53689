/* Lists what becomes of every name of the source, as text and as JSON. If several mapped checkpoints are opened over each
 * other, names are traced through all of them. */
#include "base/line.h"
#include "mapping/mapped.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* Returns the row that made an entry of a mapped checkpoint. Returns NULL for an entry of the first source, and for a part
 * of one of its objects. */
static const tsr_mapped_row *row_below(const tsr_mapped *m, const tsr_entry *entry)
{
    const tsr_mapped *below = tsr_mapped_state(m->source);
    if (!below || tsr_checkpoint_entry(m->source, entry->fqn) != entry) return NULL;
    return (const tsr_mapped_row *)below->rows.items + (entry - m->source->catalog.entries);
}

/* Calls `each` for every name of the first source that the entries are made from. */
typedef void visit_source(void *ctx, const tsr_entry *source);

static void each_source(const tsr_mapped *m, const tsr_entry *const *entries, uint64_t count, visit_source *each, void *ctx)
{
    for (uint64_t i = 0; i < count; i++) {
        const tsr_mapped_row *row = row_below(m, entries[i]);
        if (row) each_source(tsr_mapped_state(m->source), row->sources, row->source_count, each, ctx);
        else each(ctx, entries[i]);
    }
}

/* Calls `each` for every step from the first source to the row, and returns whether there were any. Rows from which one
 * tensor is made have the same steps, or none. */
typedef void visit_step(void *ctx, const char *name);

static bool each_step(const tsr_mapped *m, const tsr_mapped_row *row, visit_step *each, void *ctx)
{
    bool any = false;
    for (uint64_t i = 0; i < row->source_count && !any; i++) {
        const tsr_mapped_row *below = row_below(m, row->sources[i]);
        if (below) any = each_step(tsr_mapped_state(m->source), below, each, ctx);
    }
    for (uint32_t i = 0; row->rule && i < row->rule->step_count; i++) each(ctx, tsr_step_name(row->rule->steps[i].kind));
    if (row->step) each(ctx, row->step);
    return any || row->step || (row->rule && row->rule->step_count);
}

/* ---- text ---- */

enum { SOURCES_PER_LINE = 4, COLUMNS = 120 };

/* Text that is being written. Names are escaped, because they could control the terminal. */
typedef struct table_text {
    tsr_write_fn *write;
    void *ctx;
    tsr_error *err;
    tsr_status status; /* the first failure */
    bool wraps;        /* there are too many sources for one line */
    size_t column;     /* the position in the line */
    uint64_t put;      /* sources or steps written so far */
    size_t used;
    char buffer[4096];
} table_text;

static void flush(table_text *t)
{
    if (t->status == TSR_OK && t->used) t->status = t->write(t->ctx, t->buffer, t->used, t->err);
    t->used = 0;
}

static void put(table_text *t, tsr_str text)
{
    for (size_t at = 0; at < text.size;) {
        if (t->used == sizeof t->buffer) flush(t);
        const size_t room = sizeof t->buffer - t->used, left = text.size - at, size = left < room ? left : room;
        memcpy(t->buffer + t->used, text.data + at, size);
        t->used += size;
        at += size;
    }
    t->column += text.size;
}

static void put_name(table_text *t, tsr_str name)
{
    char escape[TSR_ESCAPE_SIZE];
    tsr_str shown;
    while (name.size) {
        const size_t step = tsr_str_step(name, escape, &shown);
        put(t, shown);
        name = tsr_str_after(name, step);
    }
}

static void put_source(void *ctx, const tsr_entry *source)
{
    table_text *t = ctx;
    const bool wrap = t->wraps && t->put && t->column + source->fqn.size > COLUMNS;
    if (wrap) t->column = 0;
    if (t->put++) put(t, wrap ? TSR_STR(",\n    ") : TSR_STR(", "));
    put_name(t, source->fqn);
}

static void put_step(void *ctx, const char *name)
{
    table_text *t = ctx;
    if (t->put++) put(t, TSR_STR(", "));
    put(t, tsr_str_from(name));
}

static void count_source(void *ctx, const tsr_entry *source)
{
    (void)source;
    ++*(uint64_t *)ctx;
}

static void put_sources(table_text *t, const tsr_mapped *m, const tsr_entry *const *entries, uint64_t count)
{
    uint64_t sources = 0;
    each_source(m, entries, count, count_source, &sources);
    t->wraps = sources > SOURCES_PER_LINE;
    t->put = t->column = 0;
    each_source(m, entries, count, put_source, t);
    put(t, TSR_STR(" -> "));
}

static void put_result(table_text *t, const tsr_entry *entry)
{
    char text[32 * TSR_MAX_NDIM + 64];
    tsr_line line = tsr_line_on(text, sizeof text);
    put_name(t, entry->fqn);
    if (entry->kind != TSR_ENTRY_TENSOR) return;
    tsr_line_format(&line, " %s [", tsr_dtype_describe(entry->dtype)->name);
    for (uint32_t d = 0; d < entry->ndim; d++)
        tsr_line_format(&line, "%s%llu", d ? ", " : "", (unsigned long long)entry->shape[d]);
    tsr_line_put(&line, "]", 1);
    put(t, (tsr_str){text, line.used});
}

static void put_row(table_text *t, const tsr_mapped *m, const tsr_mapped_row *row)
{
    put_sources(t, m, row->sources, row->source_count);
    t->put = 0;
    if (each_step(m, row, put_step, t)) put(t, TSR_STR(" -> "));
    put_result(t, &row->entry);
    if (row->other.size) {
        put(t, TSR_STR(" (or "));
        put_name(t, row->other);
        put(t, TSR_STR(")"));
    }
    put(t, TSR_STR("\n"));
}

tsr_status tsr_mapping_write_table(const tsr_checkpoint *mapped, tsr_write_fn *write, void *ctx, tsr_error *err)
{
    table_text t = {.write = write, .ctx = ctx, .err = err};
    const tsr_mapped *m = mapped->state;
    for (size_t i = 0; i < m->rows.count && t.status == TSR_OK; i++)
        put_row(&t, m, (const tsr_mapped_row *)m->rows.items + i);
    for (; m; m = tsr_mapped_state(m->source)) {
        for (size_t i = 0; i < m->dropped.count && t.status == TSR_OK; i++) {
            put_sources(&t, m, (const tsr_entry *const *)m->dropped.items + i, 1);
            put(&t, TSR_STR("(dropped)\n"));
        }
    }
    flush(&t);
    return t.status;
}

/* ---- JSON ---- */

/* Adds the members that describe an entry. */
static void put_entry(tsr_json *json, const tsr_entry *entry)
{
    tsr_json_put_str(json, "fqn", entry->fqn);
    if (entry->kind != TSR_ENTRY_TENSOR) return;
    tsr_json_put_text(json, "dtype", tsr_dtype_describe(entry->dtype)->name);
    tsr_json_put_u64s(json, "shape", entry->shape, entry->ndim);
}

static void put_json_source(void *ctx, const tsr_entry *source)
{
    tsr_json_object(ctx);
    put_entry(ctx, source);
    tsr_json_object_end(ctx);
}

static void put_json_step(void *ctx, const char *name)
{
    tsr_json_text(ctx, name);
}

static void put_json_row(tsr_json *json, const tsr_mapped *m, const tsr_mapped_row *row)
{
    tsr_json_object(json);
    put_entry(json, &row->entry);
    tsr_json_put_array(json, "from");
    each_source(m, row->sources, row->source_count, put_json_source, json);
    tsr_json_array_end(json);
    tsr_json_put_array(json, "steps");
    each_step(m, row, put_json_step, json);
    tsr_json_array_end(json);
    if (row->other.size) tsr_json_put_str(json, "or", row->other);
    tsr_json_object_end(json);
}

void tsr_mapping_put_table(const tsr_checkpoint *mapped, tsr_json *json)
{
    const tsr_mapped *m = mapped->state;
    tsr_json_put_array(json, "map");
    for (size_t i = 0; i < m->rows.count; i++) put_json_row(json, m, (const tsr_mapped_row *)m->rows.items + i);
    tsr_json_array_end(json);
    tsr_json_put_array(json, "dropped");
    for (; m; m = tsr_mapped_state(m->source)) each_source(m, m->dropped.items, m->dropped.count, put_json_source, json);
    tsr_json_array_end(json);
}
