/* Records in journals what is done: records of units, and the sums of what they wrote. Ranks also exchange these records. */
#include "cli/writing/writing_parts.h"
#include "publish/file_sums.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/folder.h"

static tsr_status take_sums(cli_writing *w, uint64_t **sums, uint32_t *count, tsr_error *err)
{
    *count = tsr_folder_output_count(w->output);
    *sums = tsr_arena_array(w->arena, *count, sizeof **sums, err);
    if (!*sums) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < *count; f++) (*sums)[f] = tsr_folder_output_take_sum(w->output, f);
    return TSR_OK;
}

tsr_status cli_append_step(cli_writing *w, tsr_str records, tsr_error *err)
{
    uint64_t *sums;
    uint32_t count;
    tsr_vec text = tsr_vec_of(cli_host(w->program)->allocator, 1);
    tsr_status status = take_sums(w, &sums, &count, err);
    if (status == TSR_OK) status = tsr_step_put(records, sums, count, &text, err);
    if (status == TSR_OK) status = tsr_journal_append(w->journal, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&text);
    return status;
}

/* Marks the units in complete steps as done. *left is the text after them. */
static tsr_status take_steps(const cli_writing *w, tsr_str text, tsr_str *left, tsr_error *err)
{
    tsr_journal_step step;
    tsr_status status = TSR_OK;
    while (status == TSR_OK && tsr_journal_step_next(&text, &step)) status = tsr_work_take(w->work, step.records, NULL, err);
    *left = text;
    return status;
}

static tsr_status take_others(const cli_writing *w, tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    tsr_str left;
    tsr_status status = tsr_journals_list(&w->journals, w->arena, &found, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++)
        if (cli_is_own(w, &found[i]) && found[i].part) status = take_steps(w, found[i].records, &left, err);
    return status;
}

tsr_status cli_take_steps(cli_writing *w, bool others, tsr_error *err)
{
    tsr_str left;
    if (others) return take_others(w, err);
    const tsr_str own = tsr_journal_records(w->journal);
    tsr_status status = take_steps(w, own, &left, err);
    return status == TSR_OK ? tsr_journal_cut(w->journal, own.size - left.size, err) : status;
}

tsr_status cli_verify_written(cli_writing *w, tsr_error *err)
{
    tsr_leftover *found;
    tsr_journal_step step;
    uint64_t *sums;
    uint32_t files;
    size_t count;
    tsr_status status = take_sums(w, &sums, &files, err);
    if (status == TSR_OK) status = tsr_journals_list(&w->journals, w->arena, &found, &count, err);
    for (size_t i = 0; status == TSR_OK && i < count; i++) {
        tsr_str text = cli_is_own(w, &found[i]) && found[i].part ? found[i].records : TSR_STR("");
        while (tsr_journal_step_next(&text, &step)) tsr_journal_step_sum(&step, sums, files);
    }
    return status == TSR_OK ? tsr_folder_output_verify(w->output, sums, files, err) : status;
}

tsr_status cli_exchange_records(const cli_writing *w, tsr_error *err)
{
    tsr_comm *ranks = w->program->ranks;
    tsr_comm_blobs all = {0};
    tsr_vec own = tsr_vec_of(cli_host(w->program)->allocator, 1);
    if (!ranks) return TSR_OK;
    tsr_status status = cli_agree(w->program, tsr_work_records(w->work, &own, err), err);
    if (status == TSR_OK)
        status = tsr_comm_gather_blobs((tsr_ranks){ranks, own.allocator}, (tsr_str){own.items, own.count}, &all, err);
    for (uint32_t r = 0; r < all.count && status == TSR_OK; r++) status = tsr_work_take(w->work, all.blobs[r], NULL, err);
    tsr_comm_blobs_free(&all);
    tsr_vec_free(&own);
    return status;
}
