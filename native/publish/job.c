/* The course of a job. Start reading here. */
#include "publish/job_state.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

static job_state state_of(tsr_job *job, tsr_job_extent extent)
{
    const bool is_share = extent == TSR_JOB_SHARE || extent == TSR_JOB_SHARE_AND_FINISH;
    return (job_state){.job = job,
                       .backend = tsr_is_object_url(job->destination) ? &tsr_job_objects : &tsr_job_directory,
                       .ranks = job->environment.ranks,
                       .is_first = !job->environment.ranks || job->environment.ranks->rank == 0,
                       .is_shared = extent != TSR_JOB_WHOLE,
                       .share = is_share ? job->share : 0,
                       .shares = is_share ? job->shares : 0,
                       .finish = extent == TSR_JOB_FINISH || extent == TSR_JOB_SHARE_AND_FINISH,
                       .options = *job->options};
}

/* Keeps what the caller wants to know. */
static void close_state(job_state *s)
{
    tsr_job *job = s->job;
    if (s->work) {
        job->is_planned = true;
        job->units = tsr_work_units(s->work);
        job->units_left = tsr_work_left(s->work, 0, 1);
    }
    tsr_job_close_outputs(s);
    tsr_work_free(s->work);
    tsr_journal_close(s->journal);
    tsr_journals_close(&s->journals);
}

static tsr_status carry_out(tsr_job *job, tsr_job_extent extent, tsr_error *err)
{
    job_state s = state_of(job, extent);
    tsr_status status = s.backend->begin(&s, err);
    if (status == TSR_OK && !job->is_complete) {
        status = s.backend->open(&s, err);
        if (status == TSR_OK) status = s.backend->run(&s, err);
        if (status == TSR_OK && !job->published && extent != TSR_JOB_SHARE) status = s.backend->publish(&s, err);
        s.backend->end(&s, status);
    }
    close_state(&s);
    return tsr_job_agree(&s, status, err);
}

tsr_job_form tsr_job_form_of(const tsr_convert_options *options, const char *destination)
{
    const tsr_container to = options->to;
    const bool is_indexed = !options->plan && to == TSR_TO_SAFETENSORS && options->max_shard_size;
    tsr_job_form form = {.marker = is_indexed ? TSR_INDEX_MARKER : tsr_marker_of(to)};
    form.is_directory =
        form.marker || options->plan || options->per_part || to == TSR_TO_DEEPSPEED_UNIVERSAL || to == TSR_TO_RANKS;
    if (!form.is_directory && tsr_str_ends(tsr_str_from(destination), TSR_STR("/"))) {
        form.file_name = tsr_str_from(tsr_file_of(to));
        form.is_directory = true;
    }
    return form;
}

tsr_status tsr_job_run(tsr_job *job, tsr_error *err)
{
    /* Uploads of a share are not continued by the process that sent them: it hands them over to itself. */
    if (job->extent != TSR_JOB_SHARE_AND_FINISH || !tsr_is_object_url(job->destination))
        return carry_out(job, job->extent, err);
    TSR_TRY(carry_out(job, TSR_JOB_SHARE, err));
    return job->is_complete ? TSR_OK : carry_out(job, TSR_JOB_FINISH, err);
}

static tsr_status check_destination(job_state *s, tsr_error *err)
{
    const tsr_job *job = s->job;
    TSR_TRY(tsr_job_decide(s, NULL, 0, err));
    const tsr_directory_output_options options = {.is_directory = job->is_directory,
                                                  .existing = tsr_replacement_mode(&s->replacement, job->replaces, false),
                                                  .sources = job->sources,
                                                  .source_count = job->source_count};
    if (!tsr_is_url(job->destination))
        TSR_TRY(tsr_directory_output_check(job->host->allocator, job->destination, &options, err));
    return tsr_job_note_kept(&job->environment, &s->replacement, job->destination, job->arena, err);
}

tsr_status tsr_job_check(tsr_job *job, tsr_error *err)
{
    job_state s = state_of(job, job->extent);
    tsr_error why = {0};
    const tsr_conversion planned = job->conversion;
    tsr_status status = job->resumes ? tsr_job_find_completed(&s, &why, err) : TSR_OK;
    if (status == TSR_OK && !job->is_complete) {
        job->conversion = planned;
        status = tsr_job_agree(&s, s.is_first ? check_destination(&s, err) : TSR_OK, err);
    }
    close_state(&s);
    return status;
}
