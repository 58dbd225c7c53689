/* The digests of a contract against the values that a checkpoint holds, whatever its sharding and container. */
#include "base/try.h"
#include "tessera/check.h"
#include "tessera/checkpoint.h"
#include "tessera/map.h"

typedef struct checker {
    tsr_checkpoint *checkpoint;
    const tsr_contract *contract;
    tsr_ring *ring;
    const tsr_progress *progress;
    tsr_error *err;
    tsr_map *index; /* FQN of the contract → its number */
    uint64_t byte_done, byte_total;
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
    return tsr_find(tsr_checkpoint_findings(c->checkpoint), "layout/digest", place, c->err,
                    "the values of '%.*s' have the digest %s, %s says %.*s", TSR_STR_ARG(entry->fqn),
                    there ? text : "of nothing that JSON can hold", c->contract->called, TSR_STR_ARG(expected));
}

static tsr_status check_all(checker *c, const tsr_catalog *catalog)
{
    uint64_t bytes;
    const tsr_catalog *expected = &c->contract->expected;
    for (uint64_t i = 0; i < expected->entry_count; i++)
        TSR_TRY(tsr_map_put(c->index, expected->entries[i].fqn, (uint32_t)i, NULL, NULL, c->err));
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR && expected_of(c, entry).size && tsr_entry_bytes(entry, &bytes))
            c->byte_total += bytes;
    }
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_str digest = expected_of(c, &catalog->entries[i]);
        if (digest.size == 0) continue;
        TSR_TRY(check(c, &catalog->entries[i], digest));
        TSR_FAIL_IF(c->progress && !c->progress->step(c->progress->ctx, c->byte_done, c->byte_total), c->err,
                    TSR_E_CANCELLED, TSR_NO_POSITION, "interrupted");
    }
    return TSR_OK;
}

tsr_status tsr_check_digests(tsr_checkpoint *checkpoint, const tsr_contract *contract, tsr_ring *ring,
                             const tsr_progress *progress, tsr_error *err)
{
    checker c = {.checkpoint = checkpoint, .contract = contract, .ring = ring, .progress = progress, .err = err};
    if (!contract->digests) return TSR_OK;
    c.index = tsr_map_new(tsr_checkpoint_host(checkpoint)->allocator, (size_t)contract->expected.entry_count, err);
    const tsr_status status = c.index ? check_all(&c, tsr_checkpoint_catalog(checkpoint)) : TSR_E_NOMEM;
    tsr_map_free(c.index);
    return status;
}
