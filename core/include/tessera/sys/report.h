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
#ifndef TESSERA_SYS_REPORT_H
#define TESSERA_SYS_REPORT_H

#include "tessera/catalog.h"
#include "tessera/sys/document.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/json.h"
#include "tessera/sys/policy.h"
#include "tessera/sys/vec.h"

TSR_API_BEGIN

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

TSR_API_END

#endif
