/* The targets that people write as text, in a tessera.target/1 document or on the command line.
 *
 * Example:
 *
 *     tsr_target_texts texts;
 *     tsr_target target;
 *     status = tsr_target_texts_read(text, host, arena, &texts, &err);
 *     if (status == TSR_OK) status = tsr_target_from_texts(&texts, tsr_glob_match, arena, &target, &err); */
#ifndef TESSERA_SYS_TARGET_TEXTS_H
#define TESSERA_SYS_TARGET_TEXTS_H

#include "tessera/host.h"
#include "tessera/sys/json.h"
#include "tessera/target.h"

TSR_API_BEGIN

/* A tessera.target/1 document as it stands: texts that mesh.h reads. All live in `arena`. */
typedef struct tsr_target_rule_text {
    tsr_str match;
    tsr_str placements;    /* "shard(0),replicate"; empty with `ranks` or `stage`: replicate */
    const uint64_t *ranks; /* NULL: none are listed */
    uint64_t rank_count;
    tsr_str stage_dim, stage_capture; /* "pp", "layers.{n}."; empty: no stage */
    const tsr_span *stage_ranges;
    uint32_t stage_range_count;
} tsr_target_rule_text;
typedef struct tsr_target_texts {
    tsr_str mesh; /* "dp=4,tp=2" */
    tsr_target_rule_text *rules;
    uint32_t rule_count;
    tsr_str default_placements; /* data NULL when the document has none: replicate */
    bool fsdp1;                 /* "strategy": {"name": "fsdp1", …}: flat ranges in place of placements (target.h) */
    bool use_orig_params;
    const tsr_str *units; /* GLOBs of wrapped modules' parameters, innermost first */
    uint32_t unit_count;
    const tsr_str *ignored; /* GLOBs of tensors that are not flattened (buffers, ignored modules): whole on every rank */
    uint32_t ignored_count;
} tsr_target_texts;
tsr_status tsr_target_texts_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_target_texts *out,
                                 tsr_error *err);

/* The target that such texts mean; `match` as in tsr_target. A default that is empty becomes "replicate,…" in the texts too.
 * Everything lives in `arena` and borrows the texts. Checked. Errors: TSR_E_USAGE naming the rule and the byte in it. */
tsr_status tsr_target_from_texts(tsr_target_texts *texts, bool (*match)(tsr_str glob, tsr_str name), tsr_arena *arena,
                                 tsr_target *out, tsr_error *err);
/* Writes them as a document, after tsr_target_from_texts: the default is spelled out, and `mesh` is the target's. */
void tsr_target_texts_write(tsr_json *json, const tsr_target_texts *texts, const tsr_mesh *mesh);

TSR_API_END

#endif
