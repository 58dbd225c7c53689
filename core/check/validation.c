/* All checks of a checkpoint in one call: by its catalog, against contracts, and of its bytes. */

#include "base/cursor.h"
#include "check/check_share.h"
#include "formats/common/reader.h"
#include "tessera/check.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/options.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- digests ---- */

/* Compares the digests in a contract with the values in a checkpoint, regardless of its sharding and container. */

typedef struct checker {
    tsr_checkpoint *checkpoint;
    const tsr_contract *contract;
    tsr_ring *ring;
    const tsr_progress *progress;
    tsr_error *err;
    const tsr_entry **own; /* entries that this rank checks; NULL before they are listed */
    size_t own_count;
    tsr_digests *digests; /* digests of the entries in `own` */
    tsr_map *index;       /* FQN in the contract → its number */
    tsr_share share;
    uint64_t byte_done, byte_total;
    uint64_t without; /* number of entries for which the contract has no digest */
    tsr_str first;    /* FQN of the first of them */
} checker;

/* The digest that the contract has for an entry. Empty if there is none, or if the contract allows any value. */
static tsr_str expected_of(const checker *c, const tsr_entry *entry)
{
    tsr_str name;
    const uint32_t at =
        tsr_contract_name(c->contract, entry->fqn, &name) ? tsr_map_get(c->index, name, UINT32_MAX) : UINT32_MAX;
    if (at == UINT32_MAX || c->contract->expected.entries[at].kind != entry->kind) return TSR_STR("");
    if (tsr_contract_allows(c->contract, name) & TSR_ANY_VALUE) return TSR_STR("");
    return c->contract->digests[at];
}

static tsr_status digest_of(const checker *c, size_t number, bool *there, tsr_digest *out)
{
    const tsr_entry *entry = c->own[number];
    *there = true;
    if (entry->kind != TSR_ENTRY_TENSOR)
        return tsr_object_digest(c->checkpoint, entry, c->contract->algorithm, c->ring, there, out, c->err);
    return tsr_digests_get(c->digests, number, out, c->err);
}

/* Checks entry `number` of `own`. */
static tsr_status digests_check(checker *c, size_t number)
{
    const tsr_entry *entry = c->own[number];
    const tsr_str expected = expected_of(c, entry);
    char text[65];
    bool there;
    tsr_digest digest;
    uint64_t bytes;
    tsr_place place = TSR_NOWHERE;
    TSR_TRY(digest_of(c, number, &there, &digest));
    if (entry->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(entry, &bytes)) c->byte_done += bytes;
    if (there && tsr_str_equal(tsr_str_from(tsr_digest_text(&digest, text)), expected)) return TSR_OK;
    place.fqn = entry->fqn;
    return tsr_finding_add(c->share.found, "layout/digest", place, c->err,
                           "the values of '%.*s' have the digest %s; %s has %.*s", TSR_STR_ARG(entry->fqn),
                           there ? text : "of nothing", c->contract->called, TSR_STR_ARG(expected));
}

/* Counts an object if only its kind and type were compared. */
static void count_without(checker *c, const tsr_entry *entry)
{
    tsr_str name;
    const uint32_t at =
        tsr_contract_name(c->contract, entry->fqn, &name) ? tsr_map_get(c->index, name, UINT32_MAX) : UINT32_MAX;
    if (at == UINT32_MAX || entry->kind == TSR_ENTRY_TENSOR || c->contract->digests[at].size) return;
    if (tsr_contract_allows(c->contract, name) & TSR_ANY_VALUE) return;
    if (c->without++ == 0) c->first = entry->fqn;
}

/* Reports objects without digests. The result is the same on all ranks. */
static tsr_status tell_without(checker *c, const tsr_catalog *catalog)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) count_without(c, &catalog->entries[i]);
    if (c->without == 0) return TSR_OK;
    tsr_place place = TSR_NOWHERE;
    place.fqn = c->first;
    return tsr_finding_add(tsr_checkpoint_findings(c->checkpoint), "layout/not-hashed", place, c->err,
                           "%s has no digest of %llu entr%s, the first of them '%.*s': their values were not compared",
                           c->contract->called, (unsigned long long)c->without, c->without == 1 ? "y" : "ies",
                           TSR_STR_ARG(c->first));
}

/* The cost of checking an entry; 0 if the contract has no digest for it. */
static uint64_t digests_cost_of(const checker *c, const tsr_entry *entry)
{
    uint64_t bytes = 0;
    if (expected_of(c, entry).size == 0) return 0;
    if (entry->kind == TSR_ENTRY_TENSOR && !tsr_entry_bytes(entry, &bytes)) bytes = 0;
    return bytes + 1 > bytes ? bytes + 1 : bytes;
}

static tsr_status check_repeats(const checker *c, const tsr_catalog *catalog)
{
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_repeats_open(&repeats, c->checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR && expected_of(c, entry).size)
            status = tsr_repeats_add(&repeats, entry, NULL, NULL, NULL, c->err);
    }
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, c->err);
    tsr_repeats_close(&repeats);
    return status;
}

static tsr_status prepare(checker *c, const tsr_catalog *catalog, tsr_comm *comm)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(c->checkpoint)->allocator;
    const tsr_catalog *expected = &c->contract->expected;
    TSR_TRY(tsr_share_open(tsr_checkpoint_store(c->checkpoint), comm, allocator, &c->share, c->err));
    c->index = tsr_map_new(allocator, (size_t)expected->entry_count, c->err);
    if (!c->index) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < expected->entry_count; i++)
        TSR_TRY(tsr_map_put(c->index, expected->entries[i].fqn, (uint32_t)i, NULL, NULL, c->err));
    TSR_TRY(check_repeats(c, catalog));
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        TSR_FAIL_IF(!tsr_add_u64(c->byte_total, digests_cost_of(c, &catalog->entries[i]), &c->byte_total), c->err,
                    TSR_E_LIMIT, "the tensors are too large in total");
    }
    return TSR_OK;
}

/* Lists the entries that this rank checks. */
static tsr_status take_own(checker *c, const tsr_catalog *catalog)
{
    uint64_t at = 0, cost;
    c->own = tsr_alloc(tsr_checkpoint_host(c->checkpoint)->allocator, (size_t)catalog->entry_count, sizeof *c->own, c->err);
    if (!c->own) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < catalog->entry_count; i++, at += cost) {
        cost = digests_cost_of(c, &catalog->entries[i]);
        if (cost && tsr_share_owner_of_cost(&c->share, at, c->byte_total) == c->share.comm->rank)
            c->own[c->own_count++] = &catalog->entries[i];
    }
    return TSR_OK;
}

static tsr_status check_own(checker *c, const tsr_catalog *catalog)
{
    TSR_TRY(take_own(c, catalog));
    const tsr_digest_list list = {c->own, c->own_count, c->contract->algorithm};
    TSR_TRY(tsr_digests_open(c->checkpoint, &list, c->ring, &c->digests, c->err));
    for (size_t i = 0; i < c->own_count; i++) {
        TSR_TRY(digests_check(c, i));
        TSR_TRY(tsr_share_order(&c->share, (uint64_t)(c->own[i] - catalog->entries), c->err));
        TSR_FAIL_IF(c->progress && !c->progress->step(c->progress->ctx, c->byte_done, c->byte_total / c->share.comm->size),
                    c->err, TSR_E_CANCELLED, "interrupted");
    }
    return TSR_OK;
}

static void close_own(checker *c, const tsr_catalog *catalog)
{
    tsr_digests_close(c->digests);
    tsr_free(tsr_checkpoint_host(c->checkpoint)->allocator, c->own, (size_t)catalog->entry_count, sizeof *c->own);
}

static tsr_status check_shared(checker *c, tsr_comm *comm)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(c->checkpoint);
    c->share.comm = comm;
    TSR_TRY(tsr_share_agree(&c->share, prepare(c, catalog, comm), c->err));
    TSR_TRY(tsr_share_agree(&c->share, check_own(c, catalog), c->err));
    TSR_TRY(tsr_share_merge(&c->share, tsr_checkpoint_findings(c->checkpoint), c->err));
    return tell_without(c, catalog);
}

/* Reads the entries for which the layout has digests, and adds layout/digest and layout/not-hashed findings to the checkpoint. Ranks
 * share the work, and all get the findings that a single process would get, in the same order. */
static tsr_status check_digests(tsr_checkpoint *checkpoint, const tsr_validate_options *o, tsr_error *err)
{
    tsr_comm *self = NULL;
    checker c = {.checkpoint = checkpoint, .contract = o->layout, .ring = o->ring, .progress = o->progress, .err = err};
    if (!o->comm) TSR_TRY(tsr_comm_self(tsr_checkpoint_host(checkpoint)->allocator, &self, err));
    const tsr_status status = check_shared(&c, self ? self : o->comm);
    close_own(&c, tsr_checkpoint_catalog(checkpoint));
    tsr_map_free(c.index);
    tsr_share_close(&c.share);
    if (self) self->close(self);
    return status;
}

/* ---- all checks ---- */

static tsr_status check_catalog(tsr_checkpoint *checkpoint, const tsr_validate_options *options, tsr_error *err)
{
    const tsr_contract *const contracts[] = {options->layout, options->against};
    TSR_TRY(tsr_validate_catalog(&checkpoint->catalog, checkpoint->host, checkpoint->findings, err));
    for (size_t i = 0; i < sizeof contracts / sizeof *contracts; i++)
        if (contracts[i])
            TSR_TRY(tsr_validate_contract(&checkpoint->catalog, contracts[i], checkpoint->host, checkpoint->findings, err));
    return TSR_OK;
}

static tsr_status check_bytes(tsr_checkpoint *checkpoint, const tsr_validate_options *o, bool hashes, tsr_error *err)
{
    if (o->deep && o->comm) TSR_TRY(tsr_check_deep_shared(checkpoint, o->comm, o->ring, o->progress, err));
    else if (o->deep) TSR_TRY(tsr_check_deep(checkpoint, o->ring, o->progress, err));
    return hashes ? check_digests(checkpoint, o, err) : TSR_OK;
}

tsr_status tsr_validate(tsr_checkpoint *checkpoint, const tsr_validate_options *options, tsr_error *err)
{
    tsr_validate_options o;
    tsr_ring *own = NULL;
    TSR_TRY(TSR_OPTIONS_COPY(&o, options, tsr_validate_options, err));
    const bool hashes = o.layout && o.layout->digests && (o.deep || o.hashes);
    tsr_status status = check_catalog(checkpoint, &o, err);
    if (status == TSR_OK && !o.ring && (o.deep || hashes))
        status = tsr_ring_new(o.deep ? checkpoint->given_host : checkpoint->host, 0, &own, err);
    if (own) o.ring = own;
    if (o.comm) status = tsr_comm_agree(o.comm, status, err);
    if (status == TSR_OK) status = check_bytes(checkpoint, &o, hashes, err);
    tsr_ring_free(own);
    return status;
}
