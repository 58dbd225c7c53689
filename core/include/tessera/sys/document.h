/* The JSON documents of `tessera`: tessera.inspect/1, layout/1, manifest/1, findings/1, diff/1, fqn/1, latest/1 and prune/1 (their schemas are in
 * native/cli/schemas). The command line and the browser call these, so both report the same results. Everything is streamed:
 * no function here holds a document. Thread rule: as the checkpoint.
 *
 * Example:
 *
 *     const tsr_inspect_options options = {.path = TSR_STR("step-1000")};
 *     tsr_json json;
 *     tsr_json_start(&json, write_to_stdout, stdout, 1, &err);
 *     status = tsr_document_inspect(checkpoint, &options, &json, &err);
 *     if (status == TSR_OK) status = tsr_json_finish(&json); */
#ifndef TESSERA_SYS_DOCUMENT_H
#define TESSERA_SYS_DOCUMENT_H

#include "tessera/check.h"
#include "tessera/compare.h"
#include "tessera/convert.h"
#include "tessera/diff.h"
#include "tessera/document_read.h"
#include "tessera/fqn.h"
#include "tessera/plan.h"
#include "tessera/sys/canonical_names.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/json.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/policy.h"
#include "tessera/sys/prune.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

typedef struct tsr_inspect_options {
    size_t size;  /* TSR_OPTIONS sets it */
    tsr_str path; /* as the user gave it */
    tsr_selection selection;
    tsr_digest_algorithm hash; /* 0: none */
    bool stats;
    tsr_ring *ring;               /* needed for hash and stats */
    const tsr_progress *progress; /* over the bytes that hash and stats read; may be NULL */
} tsr_inspect_options;

/* tessera.inspect/1: summary, entries in the container's order, findings. A tensor whose bytes cannot be read has no
 * `hash` and `stats` and becomes a finding (file/unreadable); what stops everything (memory, cancelling, the sink's
 * own failure) is returned. */
tsr_status tsr_document_inspect(tsr_checkpoint *checkpoint, const tsr_inspect_options *options, tsr_json *json,
                                tsr_error *err);

/* tessera.layout/1, or tessera.manifest/1, which has no chunks. Entries are sorted by FQN and chunks by offsets, so the order in a
 * container does not matter. */
typedef struct tsr_layout_options {
    size_t size; /* TSR_OPTIONS sets it */
    tsr_selection selection;
    bool no_chunks;
    tsr_digest_algorithm hash;  /* 0: none. Otherwise of every tensor, and of every object without sets in it */
    tsr_checkpoint *checkpoint; /* these three are needed for hash only */
    tsr_ring *ring;
    const tsr_progress *progress; /* may be NULL */
    bool is_manifest;
} tsr_layout_options;
tsr_status tsr_document_layout(const tsr_catalog *catalog, const tsr_layout_options *options, const tsr_host *host,
                               tsr_json *json, tsr_error *err);
/* tessera.fqn/1: `names` in order, and their collisions (tsr_fqn_collisions). */
typedef struct tsr_fqn_document {
    const tsr_name *names;
    size_t count;
    const tsr_collision *collisions;
    size_t collision_count;
    bool by_text;                            /* without a module tree */
    void (*more)(void *ctx, tsr_json *json); /* puts further members behind these; may be NULL */
    void *more_ctx;
} tsr_fqn_document;
tsr_status tsr_document_fqn(const tsr_fqn_document *document, tsr_json *json);
/* A path below a run, with the run before it. TSR_E_NOMEM. */
tsr_status tsr_latest_path(tsr_str run, tsr_str path, tsr_arena *arena, tsr_str *out, tsr_error *err);
/* tessera.latest/1. `run` is the path as the user gave it; paths are made in `arena`. */
tsr_status tsr_document_latest(const tsr_latest *latest, tsr_str run, tsr_arena *arena, tsr_json *json, tsr_error *err);
/* tessera.prune/1, in the same way. */
tsr_status tsr_document_prune(const tsr_prune_result *result, tsr_str run, tsr_arena *arena, tsr_json *json, tsr_error *err);
/* Values of a pair of tsr_diff that differ in bytes; `elements` 0 where they were not compared. */
typedef struct tsr_diff_document {
    tsr_str path_a, path_b;
    const tsr_diff *diff;
    const tsr_difference *differences; /* one per pair, or NULL: values were not compared */
    const tsr_policy_result *policy;   /* what was left out of `diff`, or NULL: nothing */
} tsr_diff_document;
tsr_status tsr_document_diff(const tsr_diff_document *document, tsr_json *json);

/* tessera.convert/1, and tessera.exec/1, which has the same form. */
typedef struct tsr_conversion_document {
    tsr_str schema, source, destination;
    tsr_container to;
    const tsr_conversion *conversion;
    double seconds;
    const tsr_str *warnings;
    size_t warning_count;
    void (*more)(void *ctx, tsr_json *json); /* puts members about the run before the summary; may be NULL */
    void *more_ctx;
} tsr_conversion_document;
tsr_status tsr_document_conversion(const tsr_conversion_document *document, tsr_json *json);

/* Reads a tessera.shards/1 document into a map (tessera/shards.h) that lives in `arena`. `out->name` is "the map" until the
 * caller sets a better one. Errors: TSR_E_FORMAT with the place in the document, TSR_E_LIMIT, TSR_E_NOMEM. */
tsr_status tsr_shards_read(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_shards *out, tsr_error *err);

TSR_API_END

#endif
