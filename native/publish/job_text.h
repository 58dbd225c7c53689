/* Describes jobs in lines of text, for their journals (job.h): two jobs with the same lines write the same bytes. Texts begin with
 * TSR_JOURNAL_MAGIC and live in an arena. */
#ifndef TSR_NATIVE_JOB_TEXT_H
#define TSR_NATIVE_JOB_TEXT_H

#include "publish/journal.h"
#include "tessera/store.h"
#include "tessera/sys/plan_job.h"

tsr_status tsr_job_add_line(tsr_arena *arena, tsr_str *text, const char *key, tsr_str value, tsr_error *err);
/* Adds the hash of a value, in place of a document or of numbers. */
tsr_status tsr_job_add_hash(tsr_arena *arena, tsr_str *text, const char *key, tsr_str value, tsr_error *err);
/* Sets when the files of a source were changed: their modification times, or what a server reports. */
tsr_status tsr_job_date_source(tsr_store *store, bool is_remote, tsr_plan_source *source, tsr_arena *arena, tsr_error *err);
/* Describes a checkpoint that is read, but not where it is: it may be moved between two runs. */
tsr_status tsr_job_add_source(tsr_arena *arena, tsr_str *text, const tsr_plan_source *source, tsr_error *err);

#endif
