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

/* Checks all entries: tiling (layout/out-of-range, layout/overlap, layout/hole, layout/empty-chunk, layout/too-large); parameters
 * that were not gathered (layout/placeholders); chunks that share bytes of a file in a format where that is damage
 * (layout/bytes-shared), unless the catalog is that of a mapped checkpoint; and the optimizers' states (optim/state-incomplete, optim/state-shape, optim/state-missing,
 * optim/ids-are-texts), as far as objects were read. Chunks of a missing file (TSR_NO_FILE) are tiled like others. Findings name files where the catalog
 * has their names. */
tsr_status tsr_validate_catalog(const tsr_catalog *catalog, const tsr_host *host, tsr_findings *findings, tsr_error *err);

/* A contract lists the entries that a checkpoint should hold, as given by a layout, a module tree, an index file or a list of
 * names. Not every property has to be given: dtype TSR_DTYPE_NONE (with shape NULL: neither dtype nor shape), chunks NULL and
 * an empty digest leave it open. */
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
    const tsr_dtype *dtypes; /* further dtypes that are accepted */
    size_t dtype_count;
} tsr_contract_rule;

typedef struct tsr_contract {
    tsr_catalog expected;
    const tsr_str *digests; /* one per entry, in hex; NULL: none has one */
    tsr_digest_algorithm algorithm;
    const tsr_contract_rule *rules;
    size_t rule_count;
    bool (*match)(tsr_str glob, tsr_str name); /* needed where there are rules: tsr_glob_match */
    const char *called;                        /* in messages: "the layout" */
    tsr_str prefix;                            /* "model.": only names with this prefix count, and it is stripped */
    uint32_t allow;                            /* of tsr_leniency, for what no rule matches */
    bool any_kind;                             /* names only: tensors and objects are the same */
    bool object_trees;   /* an object stands for a value of any kind, or for entries below its name, as a module's extra
                        * state does; one of them has to be there */
    tsr_selection names; /* names that it does not keep do not count, on either side; with or without the prefix */
} tsr_contract;

TSR_API_END

#endif
