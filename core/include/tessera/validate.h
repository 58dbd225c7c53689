/* Checks of a catalog that need no bytes: do the chunks of every tensor tile it exactly, do byte ranges make sense, and
 * does the catalog agree with a layout that someone wrote down. Pure; thread-safe for different findings.
 *
 * Example:
 *
 *     status = tsr_validate_catalog(catalog, host, findings, &err);
 *     if (status == TSR_OK && tsr_findings_total(findings, TSR_ERROR) == 0) printf("every tensor is covered exactly\n"); */
#ifndef TESSERA_VALIDATE_H
#define TESSERA_VALIDATE_H

#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/findings.h"
#include "tessera/host.h"

TSR_API_BEGIN

#define TSR_NO_CHUNK UINT64_MAX

/* How a list of chunks tiles a tensor. Chunk numbers are indexes into the list. */
typedef struct tsr_tiling {
    bool exact;          /* every element is in exactly one chunk, and no chunk leaves the tensor */
    uint64_t outside;    /* a chunk that leaves the tensor, or TSR_NO_CHUNK; its part inside still counts below */
    uint64_t overlap[2]; /* two chunks with common elements (lower number first), or TSR_NO_CHUNK */
    uint64_t overlap_offsets[TSR_MAX_RANK]; /* one element that both hold */
    uint64_t missing;                       /* elements in no chunk */
    bool missing_at_least;                  /* damage so widespread that counting stopped: `missing` is a lower bound */
    uint64_t hole_offsets[TSR_MAX_RANK];    /* with missing > 0: a box that no chunk touches */
    uint64_t hole_sizes[TSR_MAX_RANK];
    uint64_t empty_chunks; /* chunks without elements: normal for trailing ranks */
} tsr_tiling;

/* Time O(count × rank) for an exact tiling of any kind, O(count × rank × log count) to locate what is wrong with another.
 * An exact tiling is always recognized; another is taken for exact with probability below rank / 2^61 (the chunks'
 * indicator functions are compared with the tensor's by a random multilinear form over the integers mod 2^61 - 1, seeded
 * from the chunks). Errors: TSR_E_LIMIT beyond TSR_MAX_RANK dims or when the tensor's elements overflow, TSR_E_NOMEM. */
tsr_status tsr_tiling_check(const tsr_allocator *allocator, uint32_t rank, const uint64_t *shape, const tsr_chunk *chunks,
                            uint64_t count, tsr_tiling *out, tsr_error *err);

/* All entries: tiling (layout/out-of-range, layout/overlap, layout/hole, layout/empty-chunk, layout/too-large), and
 * chunks that share bytes of a file in a format where that is damage (layout/bytes-shared). Chunks of a missing file
 * (TSR_NO_FILE) are tiled like others. Findings name files where the catalog has their names. */
tsr_status tsr_validate_catalog(const tsr_catalog *catalog, const tsr_host *host, tsr_findings *findings, tsr_error *err);

/* What a checkpoint should hold: entries that a layout, a module tree, an index file or a list of names tells. Of an entry,
 * dtype TSR_DTYPE_NONE (with shape NULL: neither), chunks NULL and an empty digest mean that nothing is said of it. */
typedef enum tsr_leniency {
    TSR_MAY_MISS = 1,   /* an entry of the contract need not be there */
    TSR_MAY_EXCEED = 2, /* an entry that the contract does not have may be there */
    TSR_ANY_DTYPE = 4,
    TSR_ANY_SHAPE = 8,
    TSR_ANY_CHUNKS = 16,
    TSR_ANY_VALUE = 32 /* digests do not count */
} tsr_leniency;

typedef struct tsr_contract_rule {
    tsr_str match;           /* a GLOB over the whole FQN; the first rule that matches counts */
    uint32_t allow;          /* of tsr_leniency */
    const tsr_dtype *dtypes; /* further dtypes that are as good as the one said */
    size_t dtype_count;
} tsr_contract_rule;

typedef struct tsr_contract {
    tsr_catalog expected;
    const tsr_str *digests; /* one an entry, in hex; NULL: none has one */
    tsr_digest_algorithm algorithm;
    const tsr_contract_rule *rules;
    size_t rule_count;
    bool (*match)(tsr_str glob, tsr_str name); /* needed where there are rules: tsr_glob_match */
    const char *called;                        /* in messages: "the layout" */
    tsr_str prefix;    /* of the checkpoint only what begins so counts, without it: "model." */
    uint32_t allow;    /* of tsr_leniency, for what no rule matches */
    bool any_kind;     /* names only: tensors and objects are the same */
} tsr_contract;

/* "missing", "extra", "dtype", "shape", "chunks", "value" as a bit of tsr_leniency; 0: another word. */
uint32_t tsr_leniency_from_word(tsr_str word);

/* The name that an entry of a checkpoint has for the contract: without the prefix; false where it does not count. */
bool tsr_contract_name(const tsr_contract *contract, tsr_str fqn, tsr_str *out);

/* The rule of a name, or NULL; and what is allowed for it. */
const tsr_contract_rule *tsr_contract_rule_of(const tsr_contract *contract, tsr_str fqn);
uint32_t tsr_contract_allows(const tsr_contract *contract, tsr_str fqn);

/* The catalog against a contract: layout/missing-entry, layout/unexpected-entry, layout/kind, layout/dtype, layout/shape,
 * layout/chunks. Chunks are compared as sets of boxes. Digests are exec's (tsr_check_digests). */
tsr_status tsr_validate_contract(const tsr_catalog *catalog, const tsr_contract *contract, const tsr_host *host,
                                 tsr_findings *findings, tsr_error *err);

TSR_API_END

#endif
