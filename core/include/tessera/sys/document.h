/* Documents and reports, and the documents that are read. */
#ifndef TESSERA_SYS_DOCUMENT_H
#define TESSERA_SYS_DOCUMENT_H

#include "tessera/catalog.h"
#include "tessera/check.h"
#include "tessera/checkpoint.h"
#include "tessera/compare.h"
#include "tessera/convert.h"
#include "tessera/diff.h"
#include "tessera/document_read.h"
#include "tessera/dtype.h"
#include "tessera/findings.h"
#include "tessera/fqn.h"
#include "tessera/host.h"
#include "tessera/plan.h"
#include "tessera/store.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/json.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/names.h"
#include "tessera/sys/plan.h"
#include "tessera/target.h"

TSR_API_BEGIN

/* Pieces of documents as the command line and the page print them too.
 *
 * Example:
 *
 *     float one = 1;
 *     char shown[64];
 *     printf("%s\n", tsr_element_text(TSR_FLOAT32, (const uint8_t *)&one, shown, sizeof shown)); */

/* One element of a tensor as text: integers exactly, floats in the fewest digits that read back as the same float32 (or
 * float64), bool as true and false, complex as (re+imj), anything else as its bytes in hex. `element` has the bytes of one
 * element, little-endian. Returns `out`; 64 bytes suffice. */
const char *tsr_element_text(tsr_dtype dtype, const uint8_t *element, char *out, size_t capacity);

/* How a pipeline judges findings and differences: changed levels of rules (--rule), and a baseline of known findings
 * (--baseline). Pure: findings in, findings out. Applying a policy does not change it, and several threads may apply it at
 * the same time.
 *
 * Example:
 *
 *     tsr_policy *policy = tsr_policy_new(TSR_POLICY_VALIDATE, host, &err);
 *     tsr_policy_result result = {0};
 *     status = policy ? tsr_policy_rule(policy, "values/nan=error", &err) : TSR_E_NOMEM;
 *     if (status == TSR_OK)
 *         status = tsr_policy_findings(policy, tsr_checkpoint_findings(checkpoint), findings, &result, &err);
 *     tsr_policy_free(policy); */

typedef struct tsr_policy tsr_policy;

/* The command whose rules and documents a policy accepts. */
typedef enum tsr_policy_scope {
    TSR_POLICY_VALIDATE, /* every rule but diff's; a baseline is a tessera.findings/1 document */
    TSR_POLICY_DIFF      /* the rules diff/…; a baseline is a tessera.diff/1 document */
} tsr_policy_scope;

/* Whether policies of the scope accept the rule. Each rule belongs to exactly one scope. */
bool tsr_policy_has_rule(tsr_policy_scope scope, const tsr_rule *rule);

/* A policy that changes nothing yet. Borrows the host. NULL: no memory. */
tsr_policy *tsr_policy_new(tsr_policy_scope scope, const tsr_host *host, tsr_error *err);
void tsr_policy_free(tsr_policy *policy); /* accepts NULL */

/* Adds a rule "ID=LEVEL": ID is a rule, or a prefix followed by '*', which means every rule with that prefix; LEVEL is
 * error, warning, note or off. Where several fit a rule, the last one given counts. TSR_E_USAGE, with a suggestion, for an
 * unknown rule or level and for a pattern that fits no rule of the scope. */
tsr_status tsr_policy_rule(tsr_policy *policy, const char *text, tsr_error *err);

/* Treats the findings or differences of an earlier document as known. Several documents add up. TSR_E_FORMAT with the place
 * in the document for text that is not one of the scope; TSR_E_LIMIT; TSR_E_NOMEM. The text is not kept. */
tsr_status tsr_policy_baseline(tsr_policy *policy, tsr_str text, tsr_error *err);

/* Leaves out findings about names that the selection does not keep. It is borrowed. */
void tsr_policy_names(tsr_policy *policy, tsr_selection names);

/* Counts the findings that a policy left out and those that remain. Several results add up. */
typedef struct tsr_policy_result {
    uint64_t left_out;                /* listed by the baseline */
    uint64_t turned_off;              /* of rules that are off */
    bool has_baseline, has_rules_off; /* whether these two have a meaning */
    uint64_t pairs;                   /* diff: entries on both sides of which no difference is left */
    uint64_t totals[TSR_ERROR + 1];   /* diff: differences that are left, by level */
} tsr_policy_result;

/* Adds the findings of `from` that remain to `to`, with their new levels. The baseline lists a finding if rule, file and
 * name are equal. Findings that neither side lists, because a rule had too many, are compared by number. */
tsr_status tsr_policy_findings(const tsr_policy *policy, const tsr_findings *from, tsr_findings *to,
                               tsr_policy_result *result, tsr_error *err);

/* The differences of a diff that remain. The baseline lists a difference if its name and its kind are equal. `to` lives in
 * `arena` and borrows `from`; its pairs keep their positions. */
tsr_status tsr_policy_diff(const tsr_policy *policy, const tsr_diff *from, tsr_arena *arena, tsr_diff *to,
                           tsr_policy_result *result, tsr_error *err);

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

/* Reports of the findings of any number of checkpoints, in the forms that programs and CI systems read. A form is a struct of
 * three functions; everything else is the same for all forms. A report is written through the callback of a tsr_json, whether
 * its syntax is JSON or not.
 *
 * Example:
 *
 *     tsr_json json;
 *     tsr_report report;
 *     tsr_json_start(&json, write_to_stdout, stdout, 1, &err);
 *     tsr_report_start(&report, &tsr_report_junit, &json, host->allocator);
 *     tsr_report_add(&report, &(tsr_reported){.path = TSR_STR("step-1000"), .findings = findings});
 *     status = tsr_report_end(&report);
 *     if (status == TSR_OK) status = tsr_json_finish(&json); */

typedef struct tsr_report tsr_report;

/* What there is to report about a path. */
typedef struct tsr_reported {
    tsr_str path;                    /* as the user gave it; without data it is not printed */
    const tsr_catalog *catalog;      /* for forms that people read; otherwise NULL */
    const tsr_findings *findings;    /* NULL: it could not be checked */
    const tsr_policy_result *policy; /* what was left out of the findings; NULL: nothing was */
    const tsr_error *trouble;        /* why it could not be checked */
} tsr_reported;

/* `add` is called after the report has counted what is added. What cannot be written (TSR_E_NOMEM, the callback's failure) becomes
 * the status of the report's tsr_json. */
typedef struct tsr_report_form {
    const char *name; /* the value of --format */
    void (*begin)(tsr_report *report);
    void (*add)(tsr_report *report, const tsr_reported *reported);
    void (*end)(tsr_report *report);
} tsr_report_form;

extern const tsr_report_form tsr_report_json; /* tessera.findings/1; may be a member of a larger document */
/* SARIF 2.1.0 (OASIS): fingerprints of rule, file and FQN; byte regions; FQNs. */
extern const tsr_report_form tsr_report_sarif;
extern const tsr_report_form tsr_report_junit;  /* JUnit XML: a test case for each path; errors are failures */
extern const tsr_report_form tsr_report_github; /* GitHub's workflow commands, ten for each level, as it shows no more */
extern const tsr_report_form tsr_report_gitlab; /* GitLab's Code Quality report */
/* The Markdown table that GitHub shows as the summary of a step. It is not in the list below. */
extern const tsr_report_form tsr_report_github_summary;

#define TSR_REPORT_FORMATS "json|sarif|junit|github|gitlab"
enum { TSR_REPORT_FORM_COUNT = 5 };
extern const tsr_report_form *const tsr_report_forms[TSR_REPORT_FORM_COUNT]; /* in the order of TSR_REPORT_FORMATS */
/* The form with this name; NULL and TSR_E_USAGE if there is none. */
const tsr_report_form *tsr_report_form_of(tsr_str name, tsr_error *err);

struct tsr_report {
    const tsr_report_form *form;
    tsr_json *json;
    tsr_report *also; /* another report, to which the same is added; NULL after the start */
    const tsr_allocator *allocator;
    uint64_t checked, unchecked;    /* paths */
    uint64_t failed;                /* paths with errors */
    uint64_t totals[TSR_ERROR + 1]; /* findings by level */
    uint64_t unlisted[TSR_MAX_RULES];
    tsr_policy_result policy;      /* of all paths together */
    uint64_t shown[TSR_ERROR + 1]; /* GitHub: annotations by level */
    tsr_vec cases;                 /* JUnit: the text of its cases, because their numbers come first */
};

/* Begins a report. Borrows `json`, which has just been started or waits for a value, and `allocator`. */
void tsr_report_start(tsr_report *report, const tsr_report_form *form, tsr_json *json, const tsr_allocator *allocator);
void tsr_report_add(tsr_report *report, const tsr_reported *reported);
/* Adds the differences of a diff as findings of its second path. `policy` (may be NULL) only gives them their levels: the diff no
 * longer contains what it leaves out. */
tsr_status tsr_report_add_diff(tsr_report *report, const tsr_diff_document *document, const tsr_policy *policy,
                               tsr_error *err);
/* Ends a report, and frees what it kept. Must be called once for each report, also after a failure. Returns the status of the
 * tsr_json, which the caller finishes. */
tsr_status tsr_report_end(tsr_report *report);

/* Whole reports, for callers with one thing to report: start, add, end. As JSON, a diff is a tessera.diff/1 document. Return what tsr_report_end returns, or the failure to read what
 * is reported. */
tsr_status tsr_report_one(const tsr_report_form *form, const tsr_reported *reported, tsr_json *json,
                          const tsr_allocator *allocator);
tsr_status tsr_report_diff(const tsr_report_form *form, const tsr_diff_document *document, const tsr_policy *policy,
                           tsr_json *json, const tsr_allocator *allocator, tsr_error *err);
/* The findings of an earlier report in another form: a tessera.findings/1 document about one path, which is named `path` here.
 * TSR_E_FORMAT with the place in the document if it is not one; TSR_E_LIMIT; TSR_E_NOMEM. */
tsr_status tsr_report_document(const tsr_report_form *form, tsr_str path, tsr_str document, tsr_json *json,
                               const tsr_host *host, tsr_error *err);

/* The document tessera.storage/1: the servers of a parallel file system, and where files begin.
 *
 * Example:
 *
 *     tsr_storage_text storage_text;
 *     tsr_storage storage;
 *     status = tsr_storage_read(text, host, arena, &storage_text, &err);
 *     if (status == TSR_OK) status = tsr_storage_of(&storage_text, catalog->store, host, arena, &storage, &err);
 *     if (status == TSR_OK) printf("file 0 begins on server %u\n", (unsigned)tsr_storage_server_at(&storage, 0, 0)); */

/* A tessera.storage/1 document, before it is known which files a store has. */
typedef struct tsr_storage_file {
    tsr_str name;
    tsr_striping striping;
} tsr_storage_file;
typedef struct tsr_storage_text {
    const tsr_storage_server *servers; /* NULL: there is no document */
    uint32_t server_count;
    tsr_striping usual; /* of files that are not listed */
    const tsr_storage_file *files;
    uint32_t file_count;
} tsr_storage_text;

/* Reads a document. Everything lives in `arena`. Errors: TSR_E_FORMAT with the fault and its position; TSR_E_NOMEM. */
tsr_status tsr_storage_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_storage_text *out,
                            tsr_error *err);
/* Writes it with everything spelled out; it reads back as the same. */
void tsr_storage_write(tsr_json *json, const tsr_storage_text *text);
/* The storage of a store's files, which the document names as the store does. Lives in `arena`, borrows the text. Errors:
 * TSR_E_USAGE when the document lists files and none of them is in the store; TSR_E_NOMEM. */
tsr_status tsr_storage_of(const tsr_storage_text *text, const tsr_store *store, const tsr_host *host, tsr_arena *arena,
                          tsr_storage *out, tsr_error *err);

/* The targets that people write as text, in a tessera.target/1 document or on the command line.
 *
 * Example:
 *
 *     tsr_target_texts texts;
 *     tsr_target target;
 *     status = tsr_target_texts_read(text, host, arena, &texts, &err);
 *     if (status == TSR_OK) status = tsr_target_from_texts(&texts, tsr_glob_match, arena, &target, &err); */

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

/* How many entries a conversion wrote, cast, copied or left out (tessera/convert.h), as numbers and in words.
 *
 * Example:
 *
 *     const tsr_conversion conversion = {0};
 *     tsr_conversion_counts counts;
 *     tsr_conversion_count(&conversion, &counts);
 *     printf("%llu tensors\n", (unsigned long long)counts.tensors); */

/* The numbers of entries, by what the conversion did with them. */
typedef struct tsr_conversion_counts {
    uint64_t tensors, objects; /* written */
    uint64_t left_out, cast, copied, replicated;
    uint64_t set_aside;        /* of those left out: objects that the sidecar has */
    uint64_t kept;             /* scalars of optimizer state, which were not cast */
    uint64_t not_weights_only; /* objects that torch.load(weights_only=True) will refuse */
} tsr_conversion_counts;
void tsr_conversion_count(const tsr_conversion *conversion, tsr_conversion_counts *out);

/* Appends what a conversion to this container warns of to `warnings`, a vec of tsr_str in `arena`: errors that reading the
 * source found, metadata that is dropped, a sidecar that is not written, tied tensors that are copies now, objects that
 * PyTorch's weights_only loader will refuse, and dicts that are written as something else. `selection` is what was selected.
 * TSR_E_NOMEM. */
tsr_status tsr_conversion_warnings(tsr_checkpoint *checkpoint, const tsr_conversion *conversion, tsr_container to,
                                   const tsr_selection *selection, tsr_arena *arena, tsr_vec *warnings, tsr_error *err);

/* Appends what everyone who uses the values of a checkpoint should know: files that are not read, a file that is only one of
 * several, copies of several ranks of which one is used. `warnings` and `arena` as above. The checkpoint is one that reads
 * files, not a mapped one. TSR_E_NOMEM. */
tsr_status tsr_opening_warnings(tsr_checkpoint *checkpoint, tsr_arena *arena, tsr_vec *warnings, tsr_error *err);

TSR_API_END

#endif
