/* Divides a check among ranks, sends findings between the ranks of one program or the parts of one check, and adds what both passes of
 * a deep check find. */
#include "check/check_share.h"
#include "base/cursor.h"
#include "stream/numeric.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"
#include <stdlib.h>

tsr_status tsr_share_open(const tsr_store *store, tsr_comm *comm, const tsr_allocator *allocator, tsr_share *out,
                          tsr_error *err)
{
    *out = (tsr_share){.comm = comm, .allocator = allocator, .file_count = store->file_count};
    out->orders = tsr_vec_of(allocator, sizeof(uint64_t));
    out->file_starts = tsr_alloc(allocator, store->file_count, sizeof *out->file_starts, err);
    out->found = out->file_starts ? tsr_findings_new(allocator, 0, err) : NULL;
    if (!out->found) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < store->file_count; f++) {
        out->file_starts[f] = out->byte_total;
        out->byte_total += store->files[f].size;
    }
    out->byte_step = out->byte_total / comm->size + 1;
    return TSR_OK;
}

/* Borrows `comm`. `out` must be closed even if this fails. */
void tsr_share_close(tsr_share *share)
{
    if (!share->comm) return;
    tsr_findings_free(share->found);
    tsr_vec_free(&share->orders);
    tsr_free(share->allocator, share->file_starts, share->file_count, sizeof *share->file_starts);
    *share = (tsr_share){.comm = NULL};
}

/* The rank whose share contains `at`, if costs that add up to `total` are divided instead of bytes. */
uint32_t tsr_share_owner_of_cost(const tsr_share *share, uint64_t at, uint64_t total)
{
    return (uint32_t)(at / (total / share->comm->size + 1));
}

tsr_status tsr_share_agree(const tsr_share *share, tsr_status status, tsr_error *err)
{
    return share->comm->size == 1 ? status : tsr_comm_agree(share->comm, status, err);
}

/* ---- sending findings: all ranks run the same program, but parts of a check may come from anywhere ---- */

tsr_status tsr_share_order(tsr_share *share, uint64_t order, tsr_error *err)
{
    while (share->orders.count < tsr_findings_count(share->found)) {
        uint64_t *next = tsr_vec_push(&share->orders, err);
        if (!next) return TSR_E_NOMEM;
        *next = order;
    }
    return TSR_OK;
}

typedef struct totals {
    uint64_t stored, unlisted[TSR_MAX_RULES][TSR_ERROR + 1];
} totals;

typedef struct packed {
    uint64_t order;
    uint64_t byte_offset;
    uint32_t rule; /* index */
    uint32_t level;
    uint32_t message_size, file_size, fqn_size; /* sizes of the texts that follow, in this order */
    uint32_t has_file, has_fqn, unused;
} packed;

static tsr_status append_str(tsr_vec *out, tsr_str s, tsr_error *err)
{
    return tsr_vec_append(out, s.data, s.size, err);
}

static tsr_status pack_one(const tsr_finding *f, uint64_t order, tsr_vec *out, tsr_error *err)
{
    size_t count;
    const packed p = {.order = order,
                      .byte_offset = f->byte_offset,
                      .rule = (uint32_t)(f->rule - tsr_rules(&count)),
                      .level = (uint32_t)f->level,
                      .message_size = (uint32_t)f->message.size,
                      .file_size = (uint32_t)f->file.size,
                      .fqn_size = (uint32_t)f->fqn.size,
                      .has_file = f->file.data != NULL,
                      .has_fqn = f->fqn.data != NULL};
    TSR_TRY(append_str(out, (tsr_str){(const char *)&p, sizeof p}, err));
    TSR_TRY(append_str(out, f->message, err));
    TSR_TRY(append_str(out, f->file, err));
    return append_str(out, f->fqn, err);
}

tsr_status tsr_share_pack(const tsr_share *share, tsr_vec *out, tsr_error *err)
{
    const tsr_findings *found = share->found;
    totals t = {.stored = tsr_findings_count(found)};
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    for (size_t r = 0; r < count; r++) {
        for (int level = TSR_NOTE; level <= TSR_ERROR; level++)
            t.unlisted[r][level] = tsr_findings_unlisted(found, &rules[r], (tsr_level)level);
    }
    TSR_TRY(append_str(out, (tsr_str){(const char *)&t, sizeof t}, err));
    for (size_t i = 0; i < t.stored; i++)
        TSR_TRY(pack_one(tsr_findings_at(found, i), ((const uint64_t *)share->orders.items)[i], out, err));
    return TSR_OK;
}

/* A packed finding received from some rank. */
typedef struct arrived {
    packed head;
    const char *text;
    size_t sequence; /* order of arrival, which breaks ties */
} arrived;

static int by_order(const void *a, const void *b)
{
    const arrived *x = a, *y = b;
    if (x->head.order != y->head.order) return x->head.order < y->head.order ? -1 : 1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

/* Reads the next finding. False if it is not complete, or states what does not exist. */
static bool take_finding(tsr_cursor *at, size_t rule_count, arrived *out)
{
    const uint8_t *head = tsr_cursor_take(at, sizeof out->head);
    if (!head) return false;
    memcpy(&out->head, head, sizeof out->head);
    out->text = (const char *)tsr_cursor_take(at, out->head.message_size);
    tsr_cursor_take(at, out->head.file_size);
    tsr_cursor_take(at, out->head.fqn_size);
    return !at->failed && out->head.rule < rule_count && out->head.level <= TSR_ERROR;
}

/* Unpacks one rank's findings and appends them to `list`. */
static tsr_status list_arrived(tsr_str blob, tsr_vec *list, tsr_findings *findings, tsr_error *err)
{
    totals t = {0};
    size_t count;
    const tsr_rule *rules = tsr_rules(&count);
    tsr_cursor at = tsr_cursor_on(blob);
    const uint8_t *head = tsr_cursor_take(&at, sizeof t);
    bool ok = head != NULL;
    if (ok) memcpy(&t, head, sizeof t);
    for (uint64_t i = 0; i < t.stored && ok; i++) {
        arrived *a = tsr_vec_push(list, err);
        if (!a) return TSR_E_NOMEM;
        a->sequence = list->count;
        ok = take_finding(&at, count, a);
    }
    TSR_FAIL_IF(!ok, err, TSR_E_USAGE, "these are not the results of a deep check");
    for (size_t r = 0; r < count; r++) {
        for (int level = TSR_NOTE; level <= TSR_ERROR; level++)
            tsr_findings_count_more(findings, &rules[r], (tsr_level)level, t.unlisted[r][level]);
    }
    return TSR_OK;
}

static tsr_status add_arrived(const arrived *a, tsr_findings *findings, tsr_error *err)
{
    size_t count;
    const packed *p = &a->head;
    const char *file = a->text + p->message_size, *fqn = file + p->file_size;
    const tsr_place place = {
        {p->has_file ? file : NULL, p->file_size}, p->byte_offset, {p->has_fqn ? fqn : NULL, p->fqn_size}};
    return tsr_finding_add_at(findings, (tsr_rated_rule){tsr_rules(&count)[p->rule].id, (tsr_level)p->level}, place, err,
                              "%.*s", (int)p->message_size, a->text);
}

tsr_status tsr_share_add(const tsr_allocator *allocator, const tsr_str *sent, size_t count, tsr_findings *findings,
                         tsr_error *err)
{
    tsr_vec list = tsr_vec_of(allocator, sizeof(arrived));
    tsr_status status = TSR_OK;
    for (size_t r = 0; r < count && status == TSR_OK; r++) status = list_arrived(sent[r], &list, findings, err);
    if (list.count) qsort(list.items, list.count, sizeof(arrived), by_order);
    for (size_t i = 0; i < list.count && status == TSR_OK; i++)
        status = add_arrived((const arrived *)list.items + i, findings, err);
    tsr_vec_free(&list);
    return status;
}

static tsr_status exchange(tsr_share *share, tsr_vec *own, tsr_findings *findings, tsr_error *err)
{
    tsr_comm_blobs blobs = {0};
    TSR_TRY(tsr_share_agree(share, tsr_share_pack(share, own, err), err));
    TSR_TRY(
        tsr_comm_gather_blobs((tsr_ranks){share->comm, share->allocator}, (tsr_str){own->items, own->count}, &blobs, err));
    tsr_status status =
        tsr_share_agree(share, tsr_share_add(share->allocator, blobs.blobs, blobs.count, findings, err), err);
    tsr_comm_blobs_free(&blobs);
    return status;
}

tsr_status tsr_share_merge(tsr_share *share, tsr_findings *findings, tsr_error *err)
{
    tsr_vec own = tsr_vec_of(share->allocator, 1);
    tsr_status status = exchange(share, &own, findings, err);
    tsr_vec_free(&own);
    TSR_TRY(status);
    tsr_findings *cleared = tsr_findings_new(share->allocator, 0, err);
    status = tsr_share_agree(share, cleared ? TSR_OK : TSR_E_NOMEM, err);
    if (status != TSR_OK) {
        tsr_findings_free(cleared);
        return status;
    }
    tsr_findings_free(share->found);
    share->found = cleared;
    share->orders.count = 0;
    return TSR_OK;
}

/* ---- findings and counts of both passes ---- */

tsr_place tsr_deep_place(const tsr_deep *c, uint32_t file, uint64_t offset, tsr_str fqn)
{
    const tsr_store *store = tsr_checkpoint_store(c->checkpoint);
    return (tsr_place){file < store->file_count ? store->files[file].name : (tsr_str){NULL, 0}, offset, fqn};
}

tsr_status tsr_deep_failure(tsr_deep *c, tsr_place place, const tsr_error *failure, tsr_error *err)
{
    return tsr_finding_add_failure(c->share.found, "file/unreadable", place, failure, err);
}

tsr_status tsr_deep_judge_file(tsr_deep *c, tsr_place place, uint32_t crc, uint32_t expected, tsr_error *err)
{
    if (crc == expected) return TSR_OK;
    return tsr_finding_add(c->share.found, "file/crc", place, err,
                           "the bytes of the file have CRC-32 %08x, but the white space at its end states %08x",
                           (unsigned)crc, (unsigned)expected);
}

void tsr_deep_count(const tsr_host *host, tsr_dtype part, const uint8_t *data, size_t bytes, tsr_deep_counts *out)
{
    if (part != TSR_BOOL) {
        tsr_count_special(host, part, data, bytes / tsr_dtype_size(part), &out->nan, &out->inf);
        return;
    }
    for (size_t i = 0; i < bytes; i++) out->odd += data[i] > 1;
}

void tsr_deep_counts_add(tsr_deep_counts *sum, const tsr_deep_counts *more)
{
    sum->nan += more->nan;
    sum->inf += more->inf;
    sum->odd += more->odd;
}
