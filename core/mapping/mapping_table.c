/* What becomes of every name, as lines of text. */
#include "base/line.h"
#include "mapping/mapped.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/try.h"

enum { SHOWN_SOURCES = 4, LINE_BYTES = 2048 };

static void put_sources(tsr_line *line, const tsr_mapped_row *row)
{
    for (uint64_t i = 0; i < row->source_count && i < SHOWN_SOURCES; i++) {
        if (i) tsr_line_put(line, ", ", 2);
        tsr_line_put(line, row->sources[i]->fqn.data, row->sources[i]->fqn.size);
    }
    if (row->source_count > SHOWN_SOURCES) tsr_line_format(line, " and %llu more", (unsigned long long)(row->source_count - SHOWN_SOURCES));
    tsr_line_put(line, " -> ", 4);
}

static void put_steps(tsr_line *line, const tsr_mapped_row *row)
{
    for (uint32_t i = 0; row->rule && i < row->rule->step_count; i++)
        tsr_line_format(line, "%s%s", i ? ", " : "", tsr_step_name(row->rule->steps[i].kind));
    if (row->rule && row->rule->step_count) tsr_line_put(line, " -> ", 4);
}

static void put_result(tsr_line *line, const tsr_entry *entry)
{
    tsr_line_put(line, entry->fqn.data, entry->fqn.size);
    if (entry->kind == TSR_ENTRY_TENSOR) {
        tsr_line_format(line, " %s [", tsr_dtype_describe(entry->dtype)->name);
        for (uint32_t d = 0; d < entry->ndim; d++)
            tsr_line_format(line, "%s%llu", d ? ", " : "", (unsigned long long)entry->shape[d]);
        tsr_line_put(line, "]", 1);
    }
}

tsr_status tsr_mapping_write_table(const tsr_checkpoint *mapped, tsr_status (*write)(void *ctx, const char *data, size_t size,
                                   tsr_error *err), void *ctx, tsr_error *err)
{
    const tsr_mapped *m = mapped->state;
    char text[LINE_BYTES];
    for (size_t i = 0; i < m->rows.count; i++) {
        const tsr_mapped_row *row = (const tsr_mapped_row *)m->rows.items + i;
        tsr_line line = tsr_line_on(text, sizeof text - 1);
        put_sources(&line, row);
        put_steps(&line, row);
        put_result(&line, &row->entry);
        const size_t size = strlen(text);
        text[size] = '\n';
        TSR_TRY(write(ctx, text, size + 1, err));
    }
    for (size_t i = 0; i < m->dropped.count; i++) {
        const tsr_entry *entry = ((const tsr_entry *const *)m->dropped.items)[i];
        tsr_line line = tsr_line_on(text, sizeof text - 1);
        tsr_line_put(&line, entry->fqn.data, entry->fqn.size);
        tsr_line_put(&line, " -> (dropped)\n", 14);
        TSR_TRY(write(ctx, text, strlen(text), err));
    }
    return TSR_OK;
}
