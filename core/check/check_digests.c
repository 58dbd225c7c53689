/* The digests of a contract against the values that a checkpoint holds, whatever its sharding and container. */
#include "base/cursor.h"
#include "check/check_share.h"
#include "tessera/check.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/check_shared.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/contract_rules.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/map.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"

typedef struct checker {
    tsr_checkpoint *checkpoint;
    const tsr_contract *contract;
    tsr_ring *ring;
    const tsr_progress *progress;
    tsr_error *err;
    tsr_map *index; /* FQN of the contract → its number */
    tsr_share share;
    uint64_t byte_done, byte_total;
    uint64_t without; /* entries of which the contract has no digest */
    tsr_str first;    /* of them */
} checker;

/* The digest that the contract has of an entry; empty: none, or it does not count. */
static tsr_str expected_of(const checker *c, const tsr_entry *entry)
{
    tsr_str name;
    const uint32_t at = tsr_contract_name(c->contract, entry->fqn, &name) ? tsr_map_get(c->index, name, UINT32_MAX) : UINT32_MAX;
    if (at == UINT32_MAX || c->contract->expected.entries[at].kind != entry->kind) return TSR_STR("");
    if (tsr_contract_allows(c->contract, name) & TSR_ANY_VALUE) return TSR_STR("");
    return c->contract->digests[at];
}

static tsr_status digest_of(const checker *c, const tsr_entry *entry, bool *there, tsr_digest *out)
{
    const tsr_digest_algorithm algorithm = c->contract->algorithm;
    *there = true;
    if (entry->kind != TSR_ENTRY_TENSOR)
        return tsr_object_digest(tsr_checkpoint_host(c->checkpoint), entry, algorithm, there, out, c->err);
    return tsr_tensor_digest(c->checkpoint, entry, algorithm, c->ring, out, c->err);
}

static tsr_status check(checker *c, const tsr_entry *entry, tsr_str expected)
{
    char text[65];
    bool there;
    tsr_digest digest;
    uint64_t bytes;
    tsr_place place = TSR_NOWHERE;
    TSR_TRY(digest_of(c, entry, &there, &digest));
    if (entry->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(entry, &bytes)) c->byte_done += bytes;
    if (there && tsr_str_equal(tsr_str_from(tsr_digest_text(&digest, text)), expected)) return TSR_OK;
    place.fqn = entry->fqn;
    return tsr_finding_add(c->share.found, "layout/digest", place, c->err,
                           "the values of '%.*s' have the digest %s; %s has %.*s", TSR_STR_ARG(entry->fqn),
                           there ? text : "of nothing", c->contract->called, TSR_STR_ARG(expected));
}

/* Counts an object of which only kind and type were compared. */
static void count_without(checker *c, const tsr_entry *entry)
{
    tsr_str name;
    const uint32_t at = tsr_contract_name(c->contract, entry->fqn, &name) ? tsr_map_get(c->index, name, UINT32_MAX) : UINT32_MAX;
    if (at == UINT32_MAX || entry->kind == TSR_ENTRY_TENSOR || c->contract->digests[at].size) return;
    if (tsr_contract_allows(c->contract, name) & TSR_ANY_VALUE) return;
    if (c->without++ == 0) c->first = entry->fqn;
}

/* Alike on all ranks. */
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

/* What it takes to look at an entry; 0: nothing is expected of it. */
static uint64_t cost_of(const checker *c, const tsr_entry *entry)
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
        TSR_FAIL_IF(!tsr_add_u64(c->byte_total, cost_of(c, &catalog->entries[i]), &c->byte_total), c->err, TSR_E_LIMIT,
                    "the tensors are too large in total");
    }
    return TSR_OK;
}

static tsr_status check_own(checker *c, const tsr_catalog *catalog)
{
    uint64_t at = 0, cost;
    for (uint64_t i = 0; i < catalog->entry_count; i++, at += cost) {
        const tsr_entry *entry = &catalog->entries[i];
        cost = cost_of(c, entry);
        if (!cost || tsr_share_owner_of_cost(&c->share, at, c->byte_total) != c->share.comm->rank) continue;
        TSR_TRY(check(c, entry, expected_of(c, entry)));
        TSR_TRY(tsr_share_order(&c->share, i, c->err));
        TSR_FAIL_IF(c->progress && !c->progress->step(c->progress->ctx, c->byte_done, c->byte_total / c->share.comm->size),
                    c->err, TSR_E_CANCELLED, "interrupted");
    }
    return TSR_OK;
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

tsr_status tsr_check_digests_shared(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_comm *comm, tsr_ring *ring,
                                    const tsr_progress *progress, tsr_error *err)
{
    checker c = {.checkpoint = checkpoint, .contract = contract, .ring = ring, .progress = progress, .err = err};
    if (!contract->digests) return TSR_OK;
    const tsr_status status = check_shared(&c, comm);
    tsr_map_free(c.index);
    tsr_share_close(&c.share);
    return status;
}

tsr_status tsr_check_digests(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_ring *ring,
                             const tsr_progress *progress, tsr_error *err)
{
    tsr_comm *self;
    if (!contract->digests) return TSR_OK;
    TSR_TRY(tsr_comm_self(tsr_checkpoint_host(checkpoint)->allocator, &self, err));
    const tsr_status status = tsr_check_digests_shared(checkpoint, contract, self, ring, progress, err);
    self->close(self);
    return status;
}
