/* The middle of every writing command: the destination, the journals beside it, the units of work, the end.
 *
 *   look for journals → open the output → lay out → take what is done → do the rest, journalled → finish → publish
 *
 * A run without --resume removes what it began when it fails; a killed one leaves it, for --resume or the next run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/signals.h"
#include "cli/source.h"
#include "cli/writing.h"
#include "tessera/folder.h"

/* ---- what work it is ---- */

static tsr_status add_line(const cli_writing *w, tsr_str *text, const char *key, tsr_str value, tsr_error *err)
{
    *text = tsr_arena_format(w->arena, err, "%.*s%s %.*s\n", TSR_STR_ARG(*text), key, TSR_STR_ARG(value));
    return text->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_list(const cli_writing *w, tsr_str *text, const char *key, const cli_list *list, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < list->count && status == TSR_OK; i++)
        status = add_line(w, text, key, tsr_str_from(list->items[i]), err);
    return status;
}

/* A number over the names, sizes and times of the source's files. */
static tsr_str files_sum(const cli_writing *w, tsr_error *err)
{
    uint32_t sum = 0;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    for (uint64_t i = 0; i < w->job.file_count; i++) {
        const tsr_plan_file *file = &w->job.files[i];
        sum = tsr_crc32(NULL, sum, file->name.data, file->name.size);
        sum = tsr_crc32(NULL, sum, &file->bytes, sizeof file->bytes);
        sum = tsr_crc32(NULL, sum, file->modified.data, file->modified.size);
    }
    tsr_journal_tag((tsr_str){(const char *)&sum, sizeof sum}, tag);
    return tsr_arena_format(w->arena, err, "%" PRIu64 " with sizes and times %s", w->job.file_count, tag + 1);
}

static tsr_status add_target(const cli_writing *w, tsr_str *text, tsr_error *err)
{
    const tsr_target_texts *target = &w->job.target;
    tsr_status status = add_line(w, text, "mesh", target->mesh, err);
    for (uint32_t i = 0; i < target->rule_count && status == TSR_OK; i++) {
        tsr_str rule = tsr_arena_format(w->arena, err, "%.*s %.*s", TSR_STR_ARG(target->rules[i].match),
                                        TSR_STR_ARG(target->rules[i].placements));
        status = rule.data ? add_line(w, text, "rule", rule, err) : TSR_E_NOMEM;
    }
    if (status == TSR_OK && target->fsdp1)
        status = add_line(w, text, "fsdp1", target->use_orig_params ? TSR_STR("original parameters") : TSR_STR("flat"), err);
    for (uint32_t i = 0; i < target->unit_count && status == TSR_OK; i++)
        status = add_line(w, text, "unit", target->units[i], err);
    for (uint32_t i = 0; i < target->ignored_count && status == TSR_OK; i++)
        status = add_line(w, text, "ignored", target->ignored[i], err);
    return status == TSR_OK ? add_line(w, text, "placements", target->default_placements, err) : status;
}

/* One line a thing that makes another output. */
static tsr_status describe_work(cli_writing *w, tsr_str *text, tsr_error *err)
{
    tsr_status status = cli_describe_source(w->program, &w->source, w->arena, &w->job, err);
    tsr_str sum = status == TSR_OK ? files_sum(w, err) : TSR_STR("");
    if (status == TSR_OK && !sum.data) status = TSR_E_NOMEM;
    *text = TSR_STR("tessera.journal/2\n");
    const struct {
        const char *key;
        tsr_str value;
    } lines[] = {{"tessera", TSR_STR(TSR_VERSION)},
                 {"source", w->job.source_format},
                 {"metadata", w->job.digest},
                 {"files", sum},
                 {"to", tsr_str_from(cli_containers[w->to])},
                 {"objects", tsr_str_from(cli_objects[w->options->objects])},
                 {"dtype", tsr_str_from(w->options->dtype)},
                 {"shard-size", tsr_arena_format(w->arena, err, "%" PRIu64, w->max_shard_size)}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines && status == TSR_OK; i++)
        status = add_line(w, text, lines[i].key, lines[i].value, err);
    if (status == TSR_OK) status = add_list(w, text, "include", &w->options->selection.include, err);
    if (status == TSR_OK) status = add_list(w, text, "exclude", &w->options->selection.exclude, err);
    for (size_t i = 0; i < w->rename_count && status == TSR_OK; i++) {
        const tsr_rename *r = &w->renames[i];
        tsr_str rename = tsr_arena_format(w->arena, err, "%.*s%s%.*s → %.*s%s%.*s", TSR_STR_ARG(r->from_head),
                                          r->starred ? "*" : "", TSR_STR_ARG(r->from_tail), TSR_STR_ARG(r->to_head),
                                          r->starred ? "*" : "", TSR_STR_ARG(r->to_tail));
        status = rename.data ? add_line(w, text, "rename", rename, err) : TSR_E_NOMEM;
    }
    return status == TSR_OK && w->plan ? add_target(w, text, err) : status;
}

/* ---- what earlier runs left ---- */

typedef struct beginning {
    tsr_str text; /* of this work */
    tsr_leftover *found;
    size_t count;
    uint32_t generation; /* of the files begun before */
    bool resumed;        /* there are journals of this work */
    bool publishing;     /* its renaming had begun */
    uint64_t identity;   /* then: of what was to take the destination's name */
    bool note_lost;      /* by a power loss: that number is not known */
    bool has_output;     /* beside the destination */
    bool complete;       /* and published: nothing is left to do */
    const tsr_str *written; /* names in the destination that it has put there */
    size_t written_count;
} beginning;

static bool is_own(const cli_writing *w, const tsr_leftover *l)
{
    return strcmp(l->tag, w->tag) == 0;
}

static tsr_str line_at(tsr_str *text)
{
    const char *end = text->size ? memchr(text->data, '\n', text->size) : NULL;
    tsr_str line = {text->data, end ? (size_t)(end - text->data) : text->size};
    const size_t used = line.size + (end != NULL);
    *text = (tsr_str){text->data + used, text->size - used};
    return line;
}

/* The first line in which two texts differ, as a refusal. */
static tsr_status refuse_other(const cli_writing *w, tsr_str theirs, tsr_str ours, tsr_error *err)
{
    while (theirs.size || ours.size) {
        tsr_str a = line_at(&theirs), b = line_at(&ours);
        if (tsr_str_equal(a, b)) continue;
        return tsr_raise(err, TSR_E_CHANGED, TSR_NO_POSITION,
                         "cannot resume: the interrupted run for '%s' had '%.*s', this one has '%.*s'; without --resume it "
                         "begins afresh",
                         w->destination, TSR_STR_ARG(a), TSR_STR_ARG(b));
    }
    return TSR_OK;
}

/* What was found of one other work: [l, l + count). */
static tsr_status clear_one(cli_writing *w, const beginning *b, const tsr_leftover *l, size_t count, tsr_error *err)
{
    const tsr_leftover *run = NULL; /* a journal of a run that is over: of one process, or of ranks */
    bool busy = false;
    uint64_t parts = 0; /* of a row of jobs, which may go on any time */
    for (size_t i = 0; i < count; i++) {
        busy |= l[i].busy;
        if (l[i].by_ranks || l[i].parts == 1) run = l[i].text.size || !run ? &l[i] : run;
        else if (l[i].parts > parts) parts = l[i].parts;
    }
    if (busy) return TSR_OK;
    if (parts) {
        cli_warn(w->program,
                 "'%s' has an unfinished job of %" PRIu64 " parts from another plan: its files '.%s.tessera-%s…' stay",
                 w->destination, parts, w->journals.name, l->tag);
        return TSR_OK;
    }
    if (w->options->resume && run && run->text.size && !b->resumed) return refuse_other(w, run->text, b->text, err);
    cli_warn(w->program, "removing what an interrupted run for '%s' left", w->destination);
    return tsr_journals_discard(&w->journals, l->tag, err);
}

/* Runs of other works: in the way of --resume, else removed unless somebody is at them or means to go on. */
static tsr_status clear_other(cli_writing *w, const beginning *b, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0, end; i < b->count && status == TSR_OK && !w->is_exec; i = end) {
        for (end = i + 1; end < b->count && strcmp(b->found[end].tag, b->found[i].tag) == 0;) end++;
        if (!is_own(w, &b->found[i])) status = clear_one(w, b, &b->found[i], end - i, err);
    }
    return status;
}

static void note_own(const cli_writing *w, beginning *b)
{
    static const char key[] = "generation ";
    for (size_t i = 0; i < b->count; i++) {
        const tsr_leftover *l = &b->found[i];
        if (!is_own(w, l)) continue;
        b->resumed |= l->part > 0 && l->text.size > 0;
        b->publishing |= l->publishing;
        if (l->publishing) b->identity = l->identity;
        b->note_lost |= l->publishing && l->text.size == 0;
        b->has_output |= l->part == 0 && !l->publishing;
        for (tsr_str text = l->text; text.size;) {
            tsr_str line = line_at(&text);
            if (tsr_str_starts(line, TSR_STR(key))) b->generation = (uint32_t)strtoul(line.data + sizeof key - 1, NULL, 10);
        }
    }
}

static tsr_status look_around(cli_writing *w, beginning *b, tsr_error *err)
{
    tsr_status status = describe_work(w, &b->text, err);
    if (status == TSR_OK) {
        tsr_journal_tag(b->text, w->tag);
        status = tsr_journals_open(NULL, cli_host(w->program)->allocator, w->destination, &w->journals, err);
    }
    if (!cli_speaks(w->program)) return status; /* rank 0 looks for all */
    if (status == TSR_OK) status = tsr_journals_list(&w->journals, w->arena, &b->found, &b->count, err);
    if (status != TSR_OK) return status;
    note_own(w, b);
    for (size_t i = 0; i < b->count; i++) {
        const tsr_leftover *l = &b->found[i];
        const bool in_the_way = !w->parts || (l->part == w->part && l->parts == w->parts);
        if (!is_own(w, l) || !l->busy || !in_the_way) continue;
        return tsr_raise(err, TSR_E_EXISTS, TSR_NO_POSITION,
                         "another process is writing part %" PRIu64 " of %" PRIu64 " of '%s'", l->part, l->parts,
                         w->destination);
    }
    status = clear_other(w, b, err);
    if (status != TSR_OK || w->is_exec || w->options->resume || !(b->resumed || b->has_output)) return status;
    cli_warn(w->program, "beginning '%s' afresh; --resume would have gone on with the interrupted run", w->destination);
    status = tsr_journals_discard(&w->journals, w->tag, err);
    *b = (beginning){.text = b->text};
    return status;
}

/* ---- opening ---- */

static tsr_status open_output(cli_writing *w, const beginning *b, tsr_error *err)
{
    const tsr_folder_output_options options = {
        .is_folder = w->is_folder,
        .overwrite = w->options->overwrite,
        .tag = w->tag,
        .keep = true,
        .publishing = b->publishing,
        .chosen = true,
        .swap = w->replacement.swap,
        .generation = b->generation,
        .holes = tsr_folder_store_has_holes(w->source.store),
        .source = w->source.path,
        .obsolete = w->replacement.obsolete,
        .obsolete_count = w->replacement.obsolete_count,
    };
    return tsr_folder_output_open(NULL, cli_host(w->program)->allocator, w->destination, &options, &w->output, err);
}

/* What this process does of the work, from 1; 1 of 1 is all. */
typedef struct share {
    uint64_t part, parts;
} share;

static share own_share(const cli_writing *w)
{
    const tsr_comm *ranks = w->program->ranks;
    if (ranks) return (share){(uint64_t)ranks->rank + 1, ranks->size};
    return w->parts ? (share){w->part, w->parts} : (share){1, 1};
}

static tsr_status begin_journal(cli_writing *w, const beginning *b, tsr_error *err)
{
    const share own = own_share(w);
    tsr_str text = tsr_arena_format(w->arena, err, "%.*sgeneration %u\n", TSR_STR_ARG(b->text), (unsigned)b->generation);
    if (!text.data) return TSR_E_NOMEM;
    return tsr_journal_begin(&w->journals, w->tag, own.part, own.parts, w->program->ranks != NULL, text,
                             &w->journal, err);
}

static tsr_status take_others(const cli_writing *w, tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    tsr_status status = tsr_journals_list(&w->journals, w->arena, &found, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        if (is_own(w, &found[i])) status = tsr_work_take(w->work, found[i].records, NULL, err);
    }
    return status;
}

/* Marks what is done already. */
static tsr_status take_records(cli_writing *w, tsr_error *err)
{
    size_t taken = 0;
    tsr_status status = tsr_work_take(w->work, tsr_journal_records(w->journal), &taken, err);
    if (status == TSR_OK) status = tsr_journal_cut(w->journal, taken, err);
    if (status == TSR_OK && !w->part) status = take_others(w, err);
    w->units_found = tsr_work_units(w->work) - tsr_work_left(w->work, 0, 1);
    return status;
}

/* What stays and holds tensors must be told from the new shards: by an index, which later generations always have. */
static tsr_status choose_generation(const cli_writing *w, beginning *b, tsr_error *err)
{
    tsr_status status = tsr_folder_next_generation(NULL, w->destination, &b->generation, err);
    if (b->generation == 0 && w->replacement.has_stray) b->generation = 1;
    return status;
}

/* The journal first: an output without one belongs to nobody. */
static tsr_status open_all(cli_writing *w, beginning *b, const tsr_convert_options *options, tsr_error *err)
{
    tsr_status status = cli_decide_replacement(w, b->written, b->written_count, err);
    if (status == TSR_OK && !b->resumed && w->is_folder && w->options->overwrite) status = choose_generation(w, b, err);
    if (status == TSR_OK)
        status = tsr_work_new(w->source.checkpoint, w->plan, options, b->generation, w->arena, &w->work, err);
    if (status == TSR_OK) status = cli_check_names(w, err);
    if (status == TSR_OK) status = begin_journal(w, b, err);
    if (status == TSR_OK) status = open_output(w, b, err);
    if (status == TSR_OK) status = tsr_work_open(w->work, w->output, err);
    /* Records seen before the files were opened are about files that were whole then: if they are not, nothing is known. */
    if (status == TSR_OK && b->resumed && !tsr_folder_output_continues(w->output)) {
        status = tsr_journals_remove(&w->journals, w->tag, tsr_journal_name(w->journal), err);
        if (status == TSR_OK) status = tsr_journal_cut(w->journal, 0, err);
    }
    return status == TSR_OK ? take_records(w, err) : status;
}

/* ---- several ranks ---- */

/* What rank 0 has found and decided. */
static tsr_status share_beginning(cli_writing *w, beginning *b, tsr_error *err)
{
    tsr_comm *ranks = w->program->ranks;
    uint32_t told[] = {b->generation, b->resumed, b->publishing, b->complete, w->replacement.swap};
    if (!ranks) return TSR_OK;
    tsr_status status = tsr_comm_same(ranks, tsr_str_from(w->tag), "the source as the ranks see it", err);
    if (status == TSR_OK) status = ranks->broadcast(ranks, told, sizeof told, 0, err);
    b->generation = told[0];
    b->resumed = told[1];
    b->publishing = told[2];
    b->complete = told[3];
    w->replacement.swap = told[4];
    return status;
}

/* The files that rank 0 has opened, and what is done of them. */
static tsr_status join_rank_0(cli_writing *w, beginning *b, const tsr_convert_options *options, tsr_error *err)
{
    tsr_status status = begin_journal(w, b, err);
    if (status == TSR_OK) status = open_output(w, b, err);
    if (status == TSR_OK)
        status = tsr_work_new(w->source.checkpoint, w->plan, options, b->generation, w->arena, &w->work, err);
    if (status == TSR_OK) status = tsr_work_open(w->work, w->output, err);
    return status == TSR_OK ? take_records(w, err) : status;
}

static tsr_status open_on_ranks(cli_writing *w, beginning *b, const tsr_convert_options *options, tsr_error *err)
{
    const bool first = cli_speaks(w->program);
    tsr_status status = cli_agree(w->program, first ? open_all(w, b, options, err) : TSR_OK, err);
    if (status == TSR_OK) status = share_beginning(w, b, err);
    return status == TSR_OK ? cli_agree(w->program, first ? TSR_OK : join_rank_0(w, b, options, err), err) : status;
}

/* All ranks learn what each has done. */
static tsr_status exchange_records(const cli_writing *w, tsr_error *err)
{
    tsr_comm *ranks = w->program->ranks;
    tsr_comm_blobs all = {0};
    tsr_vec own = tsr_vec_of(cli_host(w->program)->allocator, 1);
    if (!ranks) return TSR_OK;
    tsr_status status = cli_agree(w->program, tsr_work_records(w->work, &own, err), err);
    if (status == TSR_OK) status = tsr_comm_gather_blobs(ranks, (tsr_str){own.items, own.count}, own.allocator, &all, err);
    for (uint32_t r = 0; r < all.count && status == TSR_OK; r++) status = tsr_work_take(w->work, all.blobs[r], NULL, err);
    tsr_comm_blobs_free(&all);
    tsr_vec_free(&own);
    return status;
}

/* ---- doing ---- */

static tsr_status append(void *ctx, tsr_str records, tsr_error *err)
{
    return tsr_journal_append(ctx, records, err);
}

/* The parts of the largest division that was begun and is not complete, by name. */
static tsr_status refuse_missing(const cli_writing *w, tsr_error *err)
{
    uint64_t parts = 1;
    tsr_leftover *found;
    size_t count;
    tsr_status status = tsr_journals_list(&w->journals, w->arena, &found, &count, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < count; i++) {
        if (is_own(w, &found[i]) && found[i].parts > parts) parts = found[i].parts;
    }
    tsr_str names = TSR_STR("");
    uint64_t missing = 0;
    for (uint64_t p = 0; p < parts; p++) {
        if (!tsr_work_left(w->work, p, parts) || missing++ >= 8) continue;
        names = tsr_arena_format(w->arena, err, "%.*s%s%" PRIu64, TSR_STR_ARG(names), names.size ? ", " : "", p + 1);
        if (!names.data) return TSR_E_NOMEM;
    }
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                     "cannot finish '%s': of %" PRIu64 " part%s, %.*s%s not done (%" PRIu64 " of %" PRIu64 " units)",
                     w->destination, parts, parts == 1 ? "" : "s", TSR_STR_ARG(names),
                     missing > 8    ? " and more are"
                     : missing == 1 ? " is"
                                    : " are",
                     tsr_work_left(w->work, 0, 1), tsr_work_units(w->work));
}

static tsr_status give_names(cli_writing *w, tsr_error *err)
{
    const uint32_t marker = tsr_work_conversion(w->work)->marker;
    const bool several = tsr_folder_output_replaces(w->output);
    const bool durable = several || w->replacement.swap; /* or exchanged */
    tsr_status status =
        tsr_journals_publishing(&w->journals, w->tag, tsr_folder_output_identity(w->output), durable, err);
    if (status == TSR_OK && w->sidecar) status = w->sidecar->publish(w->sidecar, 0, err);
    if (status == TSR_OK) status = w->output->publish(w->output, marker, err);
    w->published = status == TSR_OK;
    return status == TSR_OK ? tsr_journals_remove(&w->journals, w->tag, NULL, err) : status;
}

/* A signal waits for the renames. It need not wait for the disk: the files are synced before. */
static tsr_status publish(cli_writing *w, tsr_error *err)
{
    tsr_status status = w->output->sync(w->output, err);
    if (status == TSR_OK && w->sidecar) status = w->sidecar->sync(w->sidecar, err);
    if (status != TSR_OK) return status;
    cli_signals_hold();
    status = give_names(w, err);
    cli_signals_release();
    return status;
}

/* What surrounds the units, all of which are done. */
static tsr_status finish(cli_writing *w, const beginning *b, tsr_error *err)
{
    if (tsr_work_left(w->work, 0, 1)) return refuse_missing(w, err);
    tsr_status status = tsr_work_finish(w->work, err);
    w->conversion = *tsr_work_conversion(w->work);
    return status == TSR_OK ? cli_write_sidecar(w, b->publishing, err) : status;
}

static tsr_status do_units(cli_writing *w, const beginning *b, tsr_error *err)
{
    const share own = own_share(w);
    const bool first = cli_speaks(w->program);
    const tsr_work_journal journal = {append, w->journal, first && !w->part};
    const bool runs = !w->finish || w->part;
    tsr_status status = TSR_OK;
    if (runs) status = tsr_work_run(w->work, own.part - 1, own.parts, &journal, err);
    status = cli_agree(w->program, status, err);
    if (status != TSR_OK || (w->part && !w->finish)) return status;
    status = w->part ? take_others(w, err) : exchange_records(w, err);
    if (status == TSR_OK && first) status = finish(w, b, err);
    if (status == TSR_OK) status = cli_unchanged(&w->source, err);
    status = cli_agree(w->program, status, err);
    return status == TSR_OK ? cli_agree(w->program, first ? publish(w, err) : TSR_OK, err) : status;
}

/* The run before ended when its output had taken the destination's name. What is left of it is removed. */
static bool was_published(const cli_writing *w, const beginning *b)
{
    const uint64_t destination = tsr_journals_destination(&w->journals);
    if (b->note_lost) return destination && !b->has_output; /* one rename: what had another name has this one */
    return b->publishing && b->identity && b->identity == destination;
}

/* After a failure: what nobody can go on with is removed. */
static void clean_up(cli_writing *w)
{
    tsr_error ignored = {0};
    const bool stays = w->options->resume || w->is_exec;
    if (!stays && cli_speaks(w->program)) tsr_journals_discard(&w->journals, w->tag, &ignored);
    else if (stays && !w->output && tsr_journal_is_empty(w->journal))
        w->journals.sys->unlink(w->journals.sys, w->journals.folder, tsr_journal_name(w->journal), false);
}

/* At a signal. What --resume and the parts of a plan need stays. */
static void remove_unfinished(void *ctx)
{
    const cli_writing *w = ctx;
    tsr_error ignored = {0};
    char sidecar[320];
    if (w->options->resume || w->is_exec) return;
    tsr_sys_stop_naming();
    tsr_journals_discard(&w->journals, w->tag, &ignored);
    snprintf(sidecar, sizeof sidecar, ".%.200s.objects.json.tessera-%s", w->journals.name, w->tag);
    w->journals.sys->unlink(w->journals.sys, w->journals.folder, sidecar, false);
}

/* What is left to do, as rank 0 sees it. */
static tsr_status begin(cli_writing *w, beginning *b, tsr_error *err)
{
    tsr_status status = cli_agree(w->program, look_around(w, b, err), err);
    if (status != TSR_OK) return status;
    b->complete = (w->options->resume || w->is_exec) && was_published(w, b);
    if (b->complete) cli_warn(w->program, "'%s' was complete already", w->destination);
    else if (w->options->resume && !b->resumed)
        cli_warn(w->program, "nothing to resume for '%s': beginning afresh", w->destination);
    return share_beginning(w, b, err);
}

tsr_status cli_carry_out(cli_writing *w, const tsr_convert_options *options, tsr_error *err)
{
    beginning b = {0};
    cli_cleanup cleanup = {.remove = remove_unfinished, .ctx = w};
    tsr_status status = begin(w, &b, err);
    if (status != TSR_OK) return status;
    if (b.complete) return cli_speaks(w->program) ? tsr_journals_discard(&w->journals, w->tag, err) : TSR_OK;
    if (cli_speaks(w->program)) cli_cleanup_add(&cleanup);
    status = open_on_ranks(w, &b, options, err);
    if (status == TSR_OK) status = do_units(w, &b, err);
    if (w->work) w->conversion = *tsr_work_conversion(w->work);
    if (status != TSR_OK && w->journal) clean_up(w);
    cli_cleanup_drop(&cleanup);
    return status;
}
