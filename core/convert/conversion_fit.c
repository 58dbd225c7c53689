/* Checks whether what a conversion would write is what is expected (tessera/validate.h). */
#include <inttypes.h>

#include "base/line.h"
#include "tessera/convert.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/try.h"

enum { MOST_SHOWN = 5, SHOWN_BYTES = 600 };

static tsr_entry entry_at_destination(const tsr_converted *row)
{
    tsr_entry entry = *row->entry;
    entry.fqn = row->name;
    if (entry.kind == TSR_ENTRY_TENSOR) entry.dtype = row->dtype;
    entry.chunks = entry.replicas = NULL;
    entry.chunk_count = entry.replica_count = 0;
    return entry;
}

static tsr_status list_written(const tsr_conversion *conversion, tsr_arena *arena, tsr_catalog *out, tsr_error *err)
{
    *out = (tsr_catalog){0};
    tsr_entry *entries = tsr_arena_array(arena, (size_t)conversion->row_count, sizeof *entries, err);
    if (!entries) return TSR_E_NOMEM;
    out->entries = entries;
    for (uint64_t i = 0; i < conversion->row_count; i++)
        if (conversion->rows[i].written) entries[out->entry_count++] = entry_at_destination(&conversion->rows[i]);
    return TSR_OK;
}

/* Fails with one error that has the first findings and the number of the others. */
static tsr_status refuse(const tsr_findings *findings, tsr_error *err)
{
    char shown[SHOWN_BYTES];
    tsr_line line = tsr_line_on(shown, sizeof shown);
    uint64_t left = tsr_findings_total(findings, TSR_ERROR);
    tsr_str hint = TSR_STR("");
    for (size_t i = 0, count = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *finding = tsr_findings_at(findings, i);
        if (strcmp(finding->rule->id, "layout/prefix") == 0) hint = finding->message;
        if (finding->level != TSR_ERROR || count == MOST_SHOWN || line.used + finding->message.size + 4 > sizeof shown)
            continue;
        if (count++) tsr_line_put(&line, "; ", 2);
        tsr_line_put(&line, finding->message.data, finding->message.size);
        left--;
    }
    const char *before_hint = hint.size ? "; " : "";
    if (!left)
        return tsr_fail(err, TSR_E_FORMAT, "the result would not load: %.*s%s%.*s", (int)line.used, shown, before_hint,
                        TSR_STR_ARG(hint));
    return tsr_fail(err, TSR_E_FORMAT, "the result would not load: %.*s%s%" PRIu64 " more%s%.*s", (int)line.used, shown,
                    line.used ? "; and " : "", left, before_hint, TSR_STR_ARG(hint));
}

tsr_status tsr_conversion_check(const tsr_conversion *conversion, const tsr_contract *expected, const tsr_host *host,
                                tsr_error *err)
{
    tsr_catalog written;
    tsr_contract contract = *expected;
    contract.allow |= TSR_ANY_CHUNKS;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_findings *findings = arena ? tsr_findings_new(host->allocator, MOST_SHOWN, err) : NULL;
    tsr_status status = findings ? list_written(conversion, arena, &written, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_validate_contract(&written, &contract, host, findings, err);
    if (status == TSR_OK && tsr_findings_total(findings, TSR_ERROR)) status = refuse(findings, err);
    tsr_findings_free(findings);
    tsr_arena_free(arena);
    return status;
}
