/* See tessera/sys/latest.h. */
#include "formats/recognize/recognize.h"

#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "io/store_view.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/options.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

/* Stores that list no directories of their own, such as object stores, are listed this much deeper than steps are searched, so that
 * what is in a step can be recognized. */
enum { LEVELS_OF_STEP = 3 };

typedef struct finder {
    tsr_store *store;
    const tsr_host *host;
    tsr_open_fn *opens;
    const tsr_latest_options *options;
    tsr_arena *arena; /* of the result */
    tsr_latest *out;
    const tsr_vec *steps;        /* of tsr_run_step */
    bool holds_several;          /* the last step that was checked consists of checkpoints in directories of their own */
    bool lacks_optimizer;        /* it is a DCP without the state of an optimizer */
    tsr_vec passed_over;         /* of tsr_passed_over */
    struct gathering *gathering; /* what is noted about the step that is checked; NULL: only the verdict counts */
    tsr_error *err;
} finder;

/* What tsr_run_list notes about a step, besides the verdict. */
typedef struct gathering {
    tsr_str prefix; /* path below the run of the store that is checked, which its names are relative to */
    tsr_vec files;  /* of tsr_str, below the run: those that the checkpoint lists or was read from */
    tsr_vec references;
    bool is_unmarked; /* what the framework writes last is not there */
    bool is_unknown;  /* whether it would load cannot be decided */
} gathering;

/* ---- one checkpoint ---- */

/* Whether a failure to open a checkpoint is about the checkpoint, rather than about reading it. */
static bool is_damage(tsr_status status)
{
    return status == TSR_E_FORMAT || status == TSR_E_UNSUPPORTED || status == TSR_E_LIMIT || status == TSR_E_NOT_FOUND ||
           status == TSR_E_CHANGED || status == TSR_E_USAGE;
}

/* The first error among the findings; empty if there is none. */
static tsr_status first_error(const finder *f, const tsr_findings *findings, tsr_str *why)
{
    *why = TSR_STR("");
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *found = tsr_findings_at(findings, i);
        if (found->level != TSR_ERROR) continue;
        const bool is_named = !found->file.size || tsr_name_holds(found->message, found->file);
        TSR_FAIL_IF(strcmp(found->rule->id, "file/io") == 0, f->err, TSR_E_IO, "%.*s", TSR_STR_ARG(found->message));
        *why = tsr_arena_format(f->arena, f->err, "%.*s%s%.*s (%s)", is_named ? 0 : (int)found->file.size, found->file.data,
                                is_named ? "" : ": ", TSR_STR_ARG(found->message), found->rule->id);
        return why->data ? TSR_OK : TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_status validate(const finder *f, tsr_checkpoint *checkpoint, tsr_str *why)
{
    tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
    TSR_TRY(tsr_validate_catalog(tsr_checkpoint_catalog(checkpoint), f->host, findings, f->err));
    if (f->options->check && !tsr_findings_total(findings, TSR_ERROR))
        TSR_TRY(f->options->check(f->options->check_ctx, checkpoint, f->err));
    return first_error(f, findings, why);
}

/* ---- what belongs to a checkpoint, and what it refers to ---- */

static tsr_status gather_name(const finder *f, tsr_vec *list, tsr_str directory, tsr_str name)
{
    const tsr_str prefix = f->gathering->prefix;
    const tsr_str path = tsr_arena_format(f->arena, f->err, "%.*s%s%.*s%s%.*s", TSR_STR_ARG(prefix), prefix.size ? "/" : "",
                                          TSR_STR_ARG(directory), directory.size ? "/" : "", TSR_STR_ARG(name));
    return path.data ? tsr_vec_append(list, &path, 1, f->err) : TSR_E_NOMEM;
}

/* The best checkpoint so far, as the Trainer and Lightning remember it in every later one to load it at the end. */
static bool names_best(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_OBJECT && entry->value && entry->value->kind == TSR_VALUE_STR &&
           (tsr_str_ends(entry->fqn, TSR_STR("best_model_checkpoint")) ||
            tsr_str_ends(entry->fqn, TSR_STR("best_model_path")));
}

static tsr_status gather_references(const finder *f, tsr_checkpoint *checkpoint)
{
    gathering *g = f->gathering;
    const tsr_catalog *catalog = &checkpoint->catalog;
    for (uint64_t e = 0; e < catalog->entry_count; e++) {
        if (!names_best(&catalog->entries[e])) continue;
        const tsr_str text = tsr_arena_str(f->arena, catalog->entries[e].value->text, f->err);
        if (!text.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_vec_append(&g->references, &text, 1, f->err));
    }
    for (size_t i = 0; i < tsr_findings_count(checkpoint->findings); i++) {
        const tsr_finding *found = tsr_findings_at(checkpoint->findings, i);
        if (strcmp(found->rule->id, "dcp/path-outside") != 0) continue;
        const tsr_str text = tsr_arena_str(f->arena, found->message, f->err); /* it quotes the path */
        if (!text.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_vec_append(&g->references, &text, 1, f->err));
        g->is_unknown = true; /* PyTorch would follow the path, so it may load */
    }
    return TSR_OK;
}

/* Of a damaged checkpoint, not every file was read, but some names are only those of a checkpoint's data. */
static bool is_own_data(tsr_str name)
{
    return tsr_is_run_data(name) && !memchr(name.data, '/', name.size);
}

/* Whether a file is missing that the framework would have written, rather than damaged. */
static bool lacks_files(const tsr_checkpoint *checkpoint)
{
    for (size_t i = 0; i < tsr_findings_count(checkpoint->findings); i++) {
        const tsr_finding *found = tsr_findings_at(checkpoint->findings, i);
        if (found->level != TSR_ERROR || strcmp(found->rule->id, "parts/incomplete-save") != 0) continue;
        bool is_there = false;
        for (uint32_t n = 0; n < checkpoint->store->file_count && !is_there; n++) {
            const tsr_str name = checkpoint->store->files[n].name;
            is_there = found->file.size && tsr_str_starts(name, found->file) &&
                       (name.size == found->file.size || (name.data[found->file.size] == '/' && tsr_is_run_marker(name)));
        }
        if (!is_there) return true;
    }
    return false;
}

static tsr_status gather(const finder *f, tsr_checkpoint *checkpoint)
{
    gathering *g = f->gathering;
    const tsr_store *store = checkpoint->store;
    bool *used = tsr_arena_array(f->arena, store->file_count + (size_t)1, sizeof *used, f->err);
    bool *listed = tsr_arena_array(f->arena, store->file_count + (size_t)1, sizeof *listed, f->err);
    tsr_error unused = {0};
    if (!used || !listed) return TSR_E_NOMEM;
    tsr_checkpoint_used_files(checkpoint, used);
    const bool has_list =
        !checkpoint->reader->is_interrupted && tsr_checkpoint_own_files(checkpoint, listed, &unused) == TSR_OK;
    for (uint32_t n = 0; n < store->file_count; n++)
        if (used[n] || (has_list && listed[n]) || is_own_data(store->files[n].name))
            TSR_TRY(gather_name(f, &g->files, checkpoint->step, store->files[n].name));
    g->is_unmarked |= lacks_files(checkpoint) || checkpoint->reader->is_interrupted;
    return gather_references(f, checkpoint);
}

/* Of a checkpoint that cannot be opened, the markers belong to it. Without one, it may be one that is being written. */
static tsr_status gather_markers(const finder *f, const tsr_store *store)
{
    bool in_root = false, found = store->primary != TSR_NO_FILE;
    for (uint32_t n = 0; n < store->file_count; n++) {
        const tsr_str name = store->files[n].name;
        in_root |= tsr_is_run_marker(name) && !memchr(name.data, '/', name.size);
    }
    for (uint32_t n = 0; n < store->file_count; n++) {
        const tsr_str name = store->files[n].name;
        const bool is_marker =
            tsr_is_run_marker(name) && (!in_root || !memchr(name.data, '/', name.size)) &&
            !tsr_is_hidden(tsr_path_directory(name)); /* in a directory of rsync, it is still being copied */
        if (!is_marker && !is_own_data(name)) continue;
        TSR_TRY(gather_name(f, &f->gathering->files, TSR_STR(""), name));
        found |= is_marker;
    }
    f->gathering->is_unmarked |= !found;
    return TSR_OK;
}

static bool lacks_optimizer(const tsr_catalog *catalog)
{
    for (uint64_t e = 0; e < catalog->entry_count; e++)
        if (tsr_str_starts(catalog->entries[e].fqn, TSR_STR("optim")) ||
            tsr_str_contains(catalog->entries[e].fqn, TSR_STR(".optim")))
            return false;
    return catalog->format == TSR_FORMAT_DCP;
}

/* Opens and validates what a store contains. *why is empty if it is valid. *alone is set if it is a single torch.save file, next to
 * which directories may hold the checkpoints, and *refused if the store is not one checkpoint. */
static tsr_status check_one(finder *f, tsr_store *store, tsr_str *why, bool *alone, bool *refused)
{
    tsr_error reason = {0};
    tsr_checkpoint *checkpoint;
    const tsr_open_options options = {.size = sizeof options, .purpose = TSR_FOR_FINDINGS};
    const tsr_status opened = f->opens(store, f->host, &options, NULL, &checkpoint, &reason);
    *alone = false;
    *refused = opened == TSR_E_UNSUPPORTED || opened == TSR_E_USAGE;
    if (opened != TSR_OK && !is_damage(opened)) return tsr_fail(f->err, opened, "%s", reason.message);
    if (opened != TSR_OK) {
        if (f->gathering) TSR_TRY(gather_markers(f, store));
        *why = tsr_arena_format(f->arena, f->err, "%s", reason.message);
        return why->data ? TSR_OK : TSR_E_NOMEM;
    }
    const tsr_format format = tsr_checkpoint_catalog(checkpoint)->format;
    *alone = format == TSR_FORMAT_TORCH_ZIP || format == TSR_FORMAT_TORCH_LEGACY;
    f->lacks_optimizer = lacks_optimizer(tsr_checkpoint_catalog(checkpoint));
    tsr_status status = validate(f, checkpoint, why);
    if (status == TSR_OK && f->gathering) status = gather(f, checkpoint);
    tsr_checkpoint_close(checkpoint);
    return status;
}

/* ---- a directory ---- */

/* As tsr_store_open_below. *is_there is false if the directory has no files, or was removed. */
static tsr_status open_below(const finder *f, tsr_store *in, tsr_str path, tsr_arena *scratch, tsr_store **out, bool *own,
                             bool *is_there)
{
    tsr_error why = {0};
    const tsr_status status = tsr_store_open_below(in, path, scratch, out, own, is_there, &why);
    if (status == TSR_E_NOT_FOUND) *is_there = false;
    return status == TSR_OK || status == TSR_E_NOT_FOUND ? TSR_OK : tsr_fail(f->err, status, "%s", why.message);
}

static bool is_shown(const void *ctx, tsr_str path)
{
    (void)ctx;
    return !tsr_is_hidden(path);
}

static tsr_status list_inside(const finder *f, tsr_store *store, tsr_arena *scratch, tsr_vec *paths, bool *cut)
{
    tsr_below list = {.paths = paths, .wanted = is_shown};
    tsr_checkpoint guess = {.store = store, .host = f->host, .arena = scratch};
    TSR_TRY(tsr_list_below(&guess, &list, f->err));
    *cut = list.cut;
    return TSR_OK;
}

/* Refuses a directory of another program: by what marks it, and once it was `refused`, by the names of its files, too. */
static tsr_status refuse_foreign(const finder *f, tsr_store *store, bool refused, tsr_arena *scratch)
{
    const char *foreign;
    tsr_checkpoint guess = {.store = store, .host = f->host, .arena = scratch, .is_probe = true};
    TSR_TRY(tsr_foreign_form(&guess, &foreign, f->err));
    if (!foreign && refused) foreign = tsr_foreign_directory(store);
    TSR_FAIL_IF(foreign, f->err, TSR_E_UNSUPPORTED, "it is %s, so whether it is complete cannot be decided", foreign);
    return TSR_OK;
}

/* All checkpoints in a directory that is not one itself have to be valid. `*why` keeps its text if there are none: lone torch.save
 * files in directories, and hundreds of checkpoints, are what is left of a form that was not recognized. */
static tsr_status check_inside(finder *f, tsr_store *store, tsr_arena *scratch, tsr_str *why)
{
    const tsr_str reason = *why, prefix = f->gathering ? f->gathering->prefix : TSR_STR("");
    tsr_vec paths = tsr_vec_of(f->host->allocator, sizeof(tsr_str));
    bool good = true, is_form = false, cut = false;
    tsr_status status = list_inside(f, store, scratch, &paths, &cut);
    if (cut) paths.count = 0;
    for (size_t i = 0; i < paths.count && status == TSR_OK && (good || f->gathering); i++) {
        const tsr_str path = ((const tsr_str *)paths.items)[i];
        tsr_store *part = NULL;
        bool own = false, is_there = false, alone = false, refused;
        tsr_str found = TSR_STR("it was removed");
        if (f->gathering)
            f->gathering->prefix = tsr_arena_format(f->arena, f->err, "%.*s/%.*s", TSR_STR_ARG(prefix), TSR_STR_ARG(path));
        if (f->gathering && !f->gathering->prefix.data) status = TSR_E_NOMEM;
        if (status == TSR_OK) status = open_below(f, store, path, scratch, &part, &own, &is_there);
        if (status == TSR_OK && is_there) status = check_one(f, part, &found, &alone, &refused);
        if (part && own) part->close(part);
        if (f->gathering) f->gathering->is_unmarked |= !is_there;
        is_form = is_form || !alone;
        if (!good || !found.size) continue;
        good = false;
        if (status == TSR_OK) *why = tsr_arena_format(f->arena, f->err, "%.*s: %.*s", TSR_STR_ARG(path), TSR_STR_ARG(found));
        if (!why->data) status = TSR_E_NOMEM;
    }
    if (f->gathering) f->gathering->prefix = prefix;
    f->holds_several = is_form;
    if (good && is_form) *why = TSR_STR("");
    else if (good) *why = reason;
    tsr_vec_free(&paths);
    return status;
}

/* Validates a directory: one checkpoint, or several in directories of their own. */
static tsr_status check_directory(finder *f, tsr_store *store, tsr_arena *scratch, tsr_str *why)
{
    bool alone, refused;
    TSR_TRY(check_one(f, store, why, &alone, &refused));
    if (refused) TSR_TRY(refuse_foreign(f, store, true, scratch));
    if (!refused && (!alone || why->size)) return TSR_OK;
    const bool is_unmarked = f->gathering && f->gathering->is_unmarked;
    if (f->gathering) f->gathering->is_unmarked = false;
    TSR_TRY(check_inside(f, store, scratch, why));
    if (is_unmarked && !f->holds_several) f->gathering->is_unmarked = true; /* the verdict is that on the directory itself */
    return TSR_OK;
}

/* ---- what earlier steps have ---- */

/* The next name in a step that every step of its run has, from file *at on; empty at the end. Of a step of several checkpoints, it is
 * that of a directory with a file that is typical of checkpoints. The files of a step follow each other. */
static tsr_str next_name(const finder *f, tsr_str step, uint32_t *at)
{
    for (; *at < f->store->file_count; ++*at) {
        const tsr_str path = f->store->files[*at].name;
        const unsigned char next = path.size > step.size ? (unsigned char)path.data[step.size] : 0;
        if (!tsr_str_starts(path, step) || next > '/') break;
        if (next != '/') continue;
        const tsr_str name = {path.data + step.size + 1, path.size - step.size - 1};
        const char *slash = memchr(name.data, '/', name.size);
        if (f->holds_several && slash && tsr_is_checkpoint_name(path))
            return (tsr_str){name.data, (size_t)(slash - name.data)};
        if (tsr_in_every_step(name)) return name;
    }
    return TSR_STR("");
}

static bool has_name(const finder *f, tsr_str step, tsr_str name)
{
    uint32_t at = tsr_store_find_from(f->store, step);
    for (tsr_str found; (found = next_name(f, step, &at)).size; at++)
        if (tsr_str_equal(found, name)) return true;
    return false;
}

/* Whether a file, named below its step, is `name` while it is written or copied, or a copy that an editor keeps: ".optimizer.bin.kE3aB1",
 * "optimizer.bin.part". */
static bool is_copy_of(tsr_str file, tsr_str name)
{
    return tsr_str_starts(tsr_last_path_part(file), TSR_STR(".")) ||
           (tsr_str_starts(file, name) && !tsr_str_ends(file, TSR_STR(TSR_INDEX_ENDING)));
}

/* Whether a file is missing that nothing takes the place of. With another number of ranks or another setting, the framework writes
 * files with similar names that the earlier step does not have. */
static tsr_status is_lost(const finder *f, tsr_str step, tsr_str earlier, tsr_str name, bool *is)
{
    const tsr_every_step *kind = tsr_in_every_step(name);
    *is = !has_name(f, step, name) && !(kind && kind->with && !has_name(f, step, tsr_str_from(kind->with)));
    for (uint32_t at = tsr_store_find_from(f->store, step); kind && *is && at < f->store->file_count; at++) {
        const tsr_str path = f->store->files[at].name;
        if (!tsr_str_starts(path, step)) break;
        const tsr_str rest = {path.data + step.size, path.size - step.size};
        if (!tsr_str_starts(rest, TSR_STR("/")) || !tsr_str_contains(rest, tsr_str_from(kind->stem)) ||
            is_copy_of(tsr_str_after(rest, 1), name))
            continue;
        const tsr_str before = tsr_arena_format(f->arena, f->err, "%.*s%.*s", TSR_STR_ARG(earlier), TSR_STR_ARG(rest));
        if (!before.data) return TSR_E_NOMEM;
        *is = tsr_store_find(f->store, before) != TSR_NO_FILE;
    }
    return TSR_OK;
}

/* The next step in the list, which is sorted, that is earlier in the same run, and has a checkpoint in a directory; NULL at the end. */
static const tsr_run_step *next_earlier(const finder *f, const tsr_run_step *step, const tsr_run_step *from)
{
    const tsr_run_step *end = (const tsr_run_step *)f->steps->items + f->steps->count;
    for (; from < end; from++)
        if (from->step < step->step && from->holds_checkpoint && from->file == TSR_NO_FILE &&
            tsr_str_equal(tsr_path_directory(from->path), tsr_path_directory(step->path)))
            return from;
    return NULL;
}

/* Sets *why if a step lacks what all earlier steps of the run have, because it has not been written yet, or was lost. */
static tsr_status check_earlier(const finder *f, const tsr_run_step *step, tsr_str *why)
{
    const tsr_run_step *earlier = f->steps->count ? next_earlier(f, step, step + 1) : NULL, *other;
    if (!earlier) return TSR_OK;
    uint32_t at = tsr_store_find_from(f->store, earlier->path);
    for (tsr_str name; (name = next_name(f, earlier->path, &at)).size; at++) {
        bool is;
        TSR_TRY(is_lost(f, step->path, earlier->path, name, &is));
        for (other = earlier + 1; is && (other = next_earlier(f, step, other)); other++) is = has_name(f, other->path, name);
        if (!is) continue;
        *why = tsr_arena_format(
            f->arena, f->err,
            "it lacks '%.*s', which '%.*s' has: either only a model was exported, or the save is not complete",
            TSR_STR_ARG(name), TSR_STR_ARG(earlier->path));
        return why->data ? TSR_OK : TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* Opens a step for its metadata only. *out is NULL if that fails because of the step, as `why` says. */
static tsr_status open_step(const finder *f, const tsr_run_step *step, tsr_arena *scratch, tsr_store **store, bool *own,
                            tsr_checkpoint **out, tsr_error *why)
{
    const tsr_open_options options = {.size = sizeof options, .purpose = TSR_FOR_FINDINGS};
    tsr_store_view *view;
    bool is_there = true;
    *out = NULL;
    *own = false;
    if (step->file == TSR_NO_FILE) {
        TSR_TRY(open_below(f, f->store, step->path, scratch, store, own, &is_there));
        if (!is_there) {
            (void)tsr_fail(why, TSR_E_NOT_FOUND, "it was removed meanwhile");
            return TSR_OK;
        }
    } else {
        TSR_TRY(tsr_store_view_of_file(f->store, step->file, scratch, &view, f->err));
        *store = &view->base;
    }
    const tsr_status status = f->opens(*store, f->host, &options, NULL, out, why);
    if (status == TSR_OK) return TSR_OK;
    if (*own) (*store)->close(*store);
    *own = false;
    *out = NULL;
    return is_damage(status) ? TSR_OK : tsr_fail(f->err, status, "%s", why->message);
}

/* Sets *why if a DCP lacks the state of an optimizer, which the step before it has: torchtitan writes only the model at the end, and then
 * refuses to resume from it. */
static tsr_status check_optimizer(const finder *f, const tsr_run_step *step, tsr_arena *scratch, tsr_str *why)
{
    const tsr_run_step *earlier = step;
    tsr_checkpoint *checkpoint = NULL;
    tsr_store *store;
    bool own = false;
    if (!f->steps->count || !f->lacks_optimizer || f->holds_several) return TSR_OK;
    while (!checkpoint && (earlier = next_earlier(f, step, earlier + 1))) {
        tsr_error damage = {0};
        TSR_TRY(open_step(f, earlier, scratch, &store, &own, &checkpoint, &damage));
    }
    if (!checkpoint) return TSR_OK;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    if (catalog->format == TSR_FORMAT_DCP && !lacks_optimizer(catalog))
        *why = tsr_arena_format(f->arena, f->err,
                                "it lacks the state of the optimizer, which '%.*s' has: only a model was exported",
                                TSR_STR_ARG(earlier->path));
    tsr_checkpoint_close(checkpoint);
    if (own) store->close(store);
    return why->data ? TSR_OK : TSR_E_NOMEM;
}

/* ---- one step ---- */

static tsr_status check_in(finder *f, tsr_str path, tsr_arena *scratch, tsr_str *why)
{
    tsr_store *store;
    bool own, is_there;
    *why = TSR_STR("it was removed meanwhile");
    TSR_TRY(open_below(f, f->store, path, scratch, &store, &own, &is_there));
    if (f->gathering) f->gathering->is_unmarked = !is_there;
    if (!is_there) return TSR_OK;
    const tsr_status status = check_directory(f, store, scratch, why);
    if (own) store->close(store);
    return status;
}

static tsr_status check_file(finder *f, uint32_t file, tsr_arena *scratch, tsr_str *why)
{
    tsr_store_view *view;
    bool alone, refused;
    TSR_TRY(tsr_store_view_of_file(f->store, file, scratch, &view, f->err));
    return check_one(f, &view->base, why, &alone, &refused);
}

static tsr_status check_files_of(finder *f, const tsr_run_step *step, tsr_arena *scratch, tsr_str *why)
{
    TSR_FAIL_IF(step->unreadable, f->err, TSR_E_IO, "'%.*s' cannot be read: %s", TSR_STR_ARG(step->unreadable->name),
                step->unreadable->why);
    if (!step->empty)
        return step->file == TSR_NO_FILE ? check_in(f, step->path, scratch, why) : check_file(f, step->file, scratch, why);
    const bool is_link = step->empty->is_link && tsr_str_equal(step->empty->name, step->path);
    if (f->gathering) f->gathering->is_unmarked = true;
    if (!is_link) *why = TSR_STR("it contains no files");
    else if (!step->empty->why)
        *why = TSR_STR("it is a symbolic link to the run itself, or to a directory that contains it");
    else *why = TSR_STR("it is a symbolic link that leads nowhere, or one that is not directly below the run");
    return TSR_OK;
}

/* NeMo creates an empty file next to a checkpoint before it writes or removes any of it, and removes that file last. When it starts
 * again, it removes what such a file is next to. Earlier Trainers wrote "tmp-checkpoint-N", which they did not resume from, and renamed it.
 *
 * Source: format_checkpoint_unfinished_marker_path in nemo/lightning/pytorch/callbacks/model_checkpoint.py; _save_checkpoint in
 * transformers/trainer.py 4.37. */
static tsr_status check_unfinished(const finder *f, tsr_str path, tsr_str *why)
{
    const tsr_str ending = TSR_STR(".ckpt");
    if (tsr_str_starts(tsr_last_path_part(path), TSR_STR("tmp-"))) {
        if (f->gathering) f->gathering->is_unmarked = true;
        *why = TSR_STR("its name says that its save has not finished");
        return TSR_OK;
    }
    if (tsr_str_ends(path, ending)) path.size -= ending.size;
    const tsr_str marker = tsr_arena_format(f->arena, f->err, "%.*s-unfinished", TSR_STR_ARG(path));
    if (!marker.data) return TSR_E_NOMEM;
    if (tsr_store_find(f->store, marker) == TSR_NO_FILE) return TSR_OK;
    if (f->gathering) f->gathering->is_unmarked = true;
    *why = tsr_arena_format(f->arena, f->err, "NeMo had not finished writing or removing it, as '%.*s' shows",
                            TSR_STR_ARG(marker));
    return why->data ? TSR_OK : TSR_E_NOMEM;
}

/* *why is empty if the step is valid. Failures name the step. */
static tsr_status check_step(finder *f, const tsr_run_step *step, tsr_str *why)
{
    tsr_error failure = {0}, *err = f->err;
    tsr_arena *scratch = tsr_arena_new(f->host->allocator, (size_t)f->host->limits.memory_bytes, err);
    if (!scratch) return TSR_E_NOMEM;
    f->err = &failure;
    f->holds_several = false;
    *why = TSR_STR("");
    tsr_status status = check_files_of(f, step, scratch, why);
    if (status == TSR_OK && step->file == TSR_NO_FILE && !why->size) {
        status = check_earlier(f, step, why);
        if (status == TSR_OK && !why->size) status = check_optimizer(f, step, scratch, why);
        if (f->gathering && why->size) f->gathering->is_unmarked = true;
    }
    if (status == TSR_OK && !why->size) status = check_unfinished(f, step->path, why);
    f->err = err;
    tsr_arena_free(scratch);
    if (status == TSR_OK) return TSR_OK;
    if (f->gathering) return tsr_fail(err, status, "%s", failure.message);
    return tsr_fail(err, status, "'%.*s', which may be the newest checkpoint: %s", TSR_STR_ARG(step->path), failure.message);
}

/* ---- the newest of the steps ---- */

static tsr_status pass_over(finder *f, const tsr_run_step *step, bool has_step, tsr_str reason)
{
    tsr_passed_over *passed = tsr_vec_push(&f->passed_over, f->err);
    if (!passed) return TSR_E_NOMEM;
    *passed = (tsr_passed_over){tsr_arena_str(f->arena, step->path, f->err), has_step, step->step, reason};
    return passed->path.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status refuse_several(const finder *f, const tsr_run_step *steps, size_t count, const char *where)
{
    tsr_shown_names names = {.used = 0};
    for (size_t i = 0; i < count; i++)
        if (steps[i].holds_checkpoint) tsr_shown_names_add(&names, steps[i].path);
    const tsr_str beyond =
        steps->beyond.size ? steps->beyond : tsr_arena_format(f->arena, f->err, "%llu", (unsigned long long)steps->step);
    if (!beyond.data) return TSR_E_NOMEM;
    return tsr_fail(f->err, TSR_E_USAGE, "step %.*s, the newest, is %s: %s%s; name one of them", TSR_STR_ARG(beyond), where,
                    names.text, tsr_shown_names_rest(&names));
}

/* Whether two steps are one checkpoint under two names, which hard links are: all files are the same, not only equal. */
static bool is_same(const finder *f, const tsr_run_step *a, const tsr_run_step *b)
{
    const tsr_store *store = f->store;
    if (!store->is_same || (a->file == TSR_NO_FILE) != (b->file == TSR_NO_FILE)) return false;
    if (a->file != TSR_NO_FILE) return store->is_same(store, a->file, b->file);
    uint32_t of_a = tsr_store_find_from(store, a->path), of_b = tsr_store_find_from(store, b->path), one, other;
    do {
        one = tsr_store_next_below(store, a->path, &of_a);
        other = tsr_store_next_below(store, b->path, &of_b);
        if (one == TSR_NO_FILE || other == TSR_NO_FILE) return one == other;
    } while (store->is_same(store, one, other));
    return false;
}

/* Decides between `count` steps of the same number. */
static tsr_status choose_of(finder *f, const tsr_run_step *steps, size_t count)
{
    const tsr_run_step *good = NULL;
    bool several = false, runs = false;
    for (size_t i = 0; i < count; i++) {
        tsr_str why;
        runs = runs || (steps[i].holds_checkpoint && steps->holds_checkpoint &&
                        !tsr_str_equal(tsr_path_directory(steps[i].path), tsr_path_directory(steps->path)) &&
                        !is_same(f, &steps[i], steps));
        if (good && (steps[i].version < good->version || steps[i].is_last)) continue; /* a later save of the step is whole */
        TSR_TRY(check_step(f, &steps[i], &why));
        if (why.size) TSR_TRY(pass_over(f, &steps[i], !steps[i].beyond.size, why));
        else if (!good) good = &steps[i];
        else if (!is_same(f, good, &steps[i])) several = true;
    }
    if (!good) return TSR_OK;
    if (runs) return refuse_several(f, steps, count, "in several runs");
    if (several) return refuse_several(f, steps, count, "there more than once");
    f->out->path = tsr_arena_str(f->arena, good->path, f->err);
    f->out->step = good->step;
    f->out->found = true;
    f->out->has_step = !good->beyond.size;
    return f->out->path.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status choose(finder *f, const tsr_vec *steps)
{
    const tsr_run_step *items = steps->items;
    for (size_t i = 0, end; i < steps->count && !f->out->found; i = end) {
        for (end = i + 1;
             end < steps->count && items[end].step == items[i].step && tsr_str_equal(items[end].beyond, items[i].beyond);
             end++) {
        }
        TSR_TRY(choose_of(f, &items[i], end - i));
    }
    return TSR_OK;
}

/* Whether a path begins with one of `owned`, which are names of directories with "/" or beginnings of names. */
static bool is_owned(const void *ctx, tsr_str path)
{
    const tsr_vec *owned = ctx;
    const tsr_str *items = owned->items;
    for (size_t i = 0; i < owned->count; i++)
        if (tsr_str_starts(path, items[i]) || (items[i].size == path.size + 1 && tsr_str_starts(items[i], path)))
            return true;
    return false;
}

/* Reads the step that is stored in Lightning's last.ckpt. *why is set if it is damaged; without a step, another program wrote it. */
static tsr_status read_last(const finder *f, tsr_run_step *last, tsr_arena *scratch, bool *is_known, tsr_str *why)
{
    tsr_error damage = {0};
    tsr_checkpoint *checkpoint;
    tsr_store *store;
    bool own;
    *is_known = false;
    *why = TSR_STR("");
    TSR_TRY(open_step(f, last, scratch, &store, &own, &checkpoint, &damage));
    if (!checkpoint) {
        *why = tsr_arena_format(f->arena, f->err, "%s", damage.message);
        return why->data ? TSR_OK : TSR_E_NOMEM;
    }
    const tsr_entry *entry = tsr_checkpoint_entry(checkpoint, TSR_STR("global_step"));
    if (!entry) entry = tsr_checkpoint_entry(checkpoint, TSR_STR("meta.global_step"));
    *is_known = entry && entry->value && entry->value->kind == TSR_VALUE_INT && entry->value->as.integer >= 0;
    if (*is_known) last->step = (uint64_t)entry->value->as.integer;
    const tsr_status status = *is_known ? TSR_OK : first_error(f, checkpoint->findings, why);
    tsr_checkpoint_close(checkpoint);
    if (own) store->close(store);
    return status;
}

/* Adds Lightning's last.ckpt to the steps. ModelCheckpoint writes it at every save (save_last), even if it keeps only earlier, better ones
 * under the names of their steps (save_top_k). */
static tsr_status add_last(finder *f, tsr_vec *steps, const tsr_vec *owned)
{
    tsr_vec last = tsr_vec_of(f->host->allocator, sizeof(tsr_run_step));
    tsr_status status = tsr_list_last_steps(f->store, is_owned, owned, f->arena, &last, f->err);
    tsr_run_step *items = last.items;
    tsr_str *reasons = tsr_arena_array(f->arena, last.count, sizeof *reasons, f->err);
    if (!reasons) status = TSR_E_NOMEM;
    for (size_t i = 0; i < last.count && status == TSR_OK; i++) {
        bool is_known = false;
        tsr_arena *scratch = tsr_arena_new(f->host->allocator, (size_t)f->host->limits.memory_bytes, f->err);
        status = scratch ? read_last(f, &items[i], scratch, &is_known, &reasons[i]) : TSR_E_NOMEM;
        if (status == TSR_OK && is_known) status = tsr_vec_append(steps, &items[i], 1, f->err);
        tsr_arena_free(scratch);
    }
    for (size_t i = 0; i < last.count && steps->count && status == TSR_OK; i++) /* without steps, the run itself is judged */
        if (reasons[i].size) status = pass_over(f, &items[i], false, reasons[i]);
    tsr_vec_free(&last);
    tsr_sort_run_steps(steps);
    return status;
}

/* Whether a file is named like one of a checkpoint, or is one of another program. */
static tsr_status holds_checkpoint_files(const finder *f, bool *holds)
{
    tsr_store *store = f->store;
    tsr_content content = {.foreign = NULL};
    *holds = false;
    for (uint32_t n = 0; n < store->file_count && !*holds; n++) {
        const tsr_str name = store->files[n].name;
        if (!memchr(name.data, '/', name.size)) TSR_TRY(tsr_content_of(store, n, &content, f->err));
        *holds = content.foreign || tsr_is_checkpoint_name(name);
    }
    return TSR_OK;
}

/* A run without steps is a checkpoint, or contains one. */
static tsr_status choose_without_steps(finder *f)
{
    tsr_shown_names names = {.used = 0};
    tsr_vec paths = tsr_vec_of(f->host->allocator, sizeof(tsr_str));
    tsr_run_step run = {.path = {"", 0}, .file = TSR_NO_FILE};
    bool alone, refused, cut = false, holds = false;
    tsr_str why;
    TSR_TRY(check_one(f, f->store, &why, &alone, &refused));
    if (refused) TSR_TRY(refuse_foreign(f, f->store, true, f->arena));
    f->out->found = !refused && !why.size;
    if (!refused) return f->out->found ? TSR_OK : pass_over(f, &run, false, why);
    tsr_status status = list_inside(f, f->store, f->arena, &paths, &cut);
    if (status == TSR_OK && cut)
        status = tsr_fail(f->err, TSR_E_LIMIT, "the run has more directories than can be examined; name one further down");
    const tsr_str *items = paths.items;
    for (size_t i = 0; i < paths.count; i++) tsr_shown_names_add(&names, items[i]);
    for (uint32_t n = 0; n < f->store->file_count && !paths.count; n++) {
        const tsr_str name = f->store->files[n].name; /* of Lightning: "best.ckpt" and "best-v1.ckpt"; or "model_100.pt" */
        if ((tsr_str_ends(name, TSR_STR(".ckpt")) || tsr_is_numbered_file(name)) && !tsr_is_hidden(name))
            tsr_shown_names_add(&names, name);
    }
    if (status == TSR_OK && names.count > 1)
        status =
            tsr_fail(f->err, TSR_E_USAGE,
                     "the names of these checkpoints do not state a step, so the newest is unknown: %s%s; name one of them",
                     names.text, tsr_shown_names_rest(&names));
    if (status == TSR_OK && !paths.count) status = holds_checkpoint_files(f, &holds);
    if (status == TSR_OK && holds) status = pass_over(f, &run, false, why);
    if (status == TSR_OK && paths.count == 1) {
        run.path = tsr_arena_str(f->arena, items[0], f->err);
        status = run.path.data ? check_step(f, &run, &why) : TSR_E_NOMEM;
        if (status == TSR_OK && why.size) status = pass_over(f, &run, false, why);
        else if (status == TSR_OK) f->out->path = run.path;
        f->out->found = status == TSR_OK && !why.size;
    }
    tsr_vec_free(&paths);
    return status;
}

/* ---- the run ---- */

static tsr_status own(finder *f, const tsr_checkpoint *checkpoint, tsr_vec *owned)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    for (uint64_t e = 0; e < catalog->entry_count; e++)
        for (uint64_t c = 0; c < catalog->entries[e].chunk_count; c++) {
            const uint32_t file = catalog->entries[e].chunks[c].file;
            const tsr_str name = file < checkpoint->store->file_count ? checkpoint->store->files[file].name : TSR_STR("");
            const char *slash = memchr(name.data, '/', name.size);
            const tsr_str directory = {name.data, slash ? (size_t)(slash + 1 - name.data) : 0};
            if (!slash || is_owned(owned, directory)) continue;
            const tsr_str kept = tsr_arena_str(f->arena, directory, f->err);
            if (!kept.data) return TSR_E_NOMEM;
            TSR_TRY(tsr_vec_append(owned, &kept, 1, f->err));
        }
    return TSR_OK;
}

/* Lists the directories whose files belong to the checkpoint that the run itself is, as "optimizer_0" of accelerate does. A
 * Trainer's run is one, too, but its steps are not part of it. */
static tsr_status list_owned(finder *f, tsr_vec *owned)
{
    tsr_error why = {0};
    tsr_checkpoint *checkpoint, guess = {.store = f->store, .host = f->host, .arena = f->arena, .is_probe = true};
    const tsr_reader *reader;
    const tsr_open_options options = {
        .size = sizeof options, .purpose = TSR_FOR_FINDINGS, .stay = true, .skip_objects = true};
    TSR_TRY(tsr_recognize_directory(&guess, &reader, f->err));
    if (!reader) return TSR_OK;
    const tsr_status opened = f->opens(f->store, f->host, &options, NULL, &checkpoint, &why);
    if (opened != TSR_OK) return is_damage(opened) ? TSR_OK : tsr_fail(f->err, opened, "%s", why.message);
    tsr_status status = own(f, checkpoint, owned);
    tsr_checkpoint_close(checkpoint);
    const tsr_str of_deepspeed = TSR_STR("global_step"); /* DeepSpeed's files next to those of the Trainer */
    if (status == TSR_OK && reader->format == TSR_FORMAT_HF_TRAINER)
        status = tsr_vec_append(owned, &of_deepspeed, 1, f->err);
    return status;
}

static tsr_status list_levels(finder *f)
{
    tsr_store *store = f->store;
    const unsigned levels = TSR_BELOW_LEVELS + (store->below ? 0 : LEVELS_OF_STEP);
    bool cut = false;
    TSR_TRY(refuse_foreign(f, store, false, f->arena)); /* what is below belongs to it */
    if (store->deepen) TSR_TRY(store->deepen(store, levels, &cut, &f->out->deeper, f->err));
    TSR_FAIL_IF(cut, f->err, TSR_E_LIMIT,
                "the run has more files than can be listed; the listing ended at '%.*s'; name a directory further down",
                TSR_STR_ARG(store->gaps[store->gap_count - 1].name));
    return TSR_OK;
}

/* A link to what may be checkpoints, if the file system that it leads to were mounted; NULL if there is none. */
static const tsr_store_gap *unfollowed(const finder *f)
{
    for (uint32_t g = 0; g < f->store->gap_count; g++) {
        const tsr_store_gap *gap = &f->store->gaps[g];
        const tsr_str name = tsr_last_path_part(gap->name);
        uint64_t step;
        tsr_str listed = TSR_STR("");
        if (!gap->is_link || !gap->why || tsr_is_hidden(gap->name)) continue;
        if (tsr_store_follow(f->store, gap->name, f->arena, &listed, NULL) == TSR_OK && listed.size) continue;
        if (tsr_step_of_name(name, &step) == TSR_STEP_STATED || tsr_str_contains(name, TSR_STR("checkpoint"))) return gap;
    }
    return NULL;
}

static tsr_status find(finder *f, tsr_vec *steps, tsr_vec *owned)
{
    const tsr_store_gap *unlisted;
    TSR_TRY(list_owned(f, owned));
    TSR_TRY(list_levels(f));
    TSR_TRY(tsr_list_run_steps(f->store, is_owned, owned, f->arena, steps, &unlisted, f->err));
    if (unlisted) f->out->unlisted = tsr_arena_str(f->arena, unlisted->name, f->err);
    if (unlisted) f->out->unlisted_why = tsr_arena_str(f->arena, tsr_str_from(unlisted->why), f->err);
    if (unlisted && (!f->out->unlisted.data || !f->out->unlisted_why.data)) return TSR_E_NOMEM;
    TSR_TRY(add_last(f, steps, owned));
    TSR_TRY(steps->count ? choose(f, steps) : choose_without_steps(f));
    TSR_FAIL_IF(!f->out->found && unlisted, f->err, TSR_E_IO,
                "'%.*s' cannot be listed, so whether there are checkpoints is unknown: %.*s", TSR_STR_ARG(f->out->unlisted),
                TSR_STR_ARG(f->out->unlisted_why));
    const tsr_store_gap *link = f->out->found ? NULL : unfollowed(f);
    TSR_FAIL_IF(
        link, f->err, TSR_E_IO,
        "'%.*s' is a symbolic link that leads nowhere, or one that is not directly below the run, so whether there are "
        "checkpoints is unknown",
        TSR_STR_ARG(link->name));
    f->out->passed_count = f->passed_over.count;
    tsr_passed_over *kept = tsr_arena_array(f->arena, f->passed_over.count, sizeof *kept, f->err);
    if (!kept) return TSR_E_NOMEM;
    if (f->passed_over.count) memcpy(kept, f->passed_over.items, f->passed_over.count * sizeof *kept);
    f->out->passed_over = kept;
    return TSR_OK;
}

tsr_status tsr_latest_search(tsr_store *store, const tsr_host *host, tsr_open_fn *opens, const tsr_latest_options *options,
                             tsr_arena *arena, tsr_latest *out, tsr_error *err)
{
    tsr_latest_options chosen;
    *out = (tsr_latest){.path = {"", 0}};
    TSR_TRY(TSR_OPTIONS_COPY(&chosen, options, tsr_latest_options, err));
    TSR_FAIL_IF(store->primary != TSR_NO_FILE, err, TSR_E_USAGE,
                "the newest checkpoint is looked for in a directory, and this is a file");
    finder f = {.store = store,
                .host = host,
                .opens = opens,
                .options = &chosen,
                .arena = arena,
                .out = out,
                .passed_over = tsr_vec_of(host->allocator, sizeof(tsr_passed_over)),
                .err = err};
    tsr_vec steps = tsr_vec_of(host->allocator, sizeof(tsr_run_step)), owned = tsr_vec_of(host->allocator, sizeof(tsr_str));
    f.steps = &steps;
    const tsr_status status = find(&f, &steps, &owned);
    tsr_vec_free(&steps);
    tsr_vec_free(&owned);
    tsr_vec_free(&f.passed_over);
    return status;
}

/* ---- all steps of a run ---- */

/* The directory that contains the steps of a run; those of an epoch are below one with its number. */
static tsr_str run_of(tsr_str path)
{
    uint64_t number;
    tsr_str run = tsr_path_directory(path);
    while (run.size && tsr_step_of_name(tsr_last_path_part(run), &number) == TSR_STEP_STATED) run = tsr_path_directory(run);
    return run;
}

static tsr_status keep_names(const finder *f, const tsr_vec *list, const tsr_str **out, size_t *count)
{
    tsr_str *kept = tsr_arena_array(f->arena, list->count + 1, sizeof *kept, f->err);
    if (!kept) return TSR_E_NOMEM;
    if (list->count) memcpy(kept, list->items, list->count * sizeof *kept);
    *out = kept;
    *count = list->count;
    return TSR_OK;
}

static tsr_status judge(finder *f, const tsr_run_step *step, tsr_run_checkpoint *out)
{
    tsr_error *err = f->err, failure = {0};
    gathering g = {.prefix = step->path,
                   .files = tsr_vec_of(f->host->allocator, sizeof(tsr_str)),
                   .references = tsr_vec_of(f->host->allocator, sizeof(tsr_str))};
    *out = (tsr_run_checkpoint){.path = tsr_arena_str(f->arena, step->path, err),
                                .run = tsr_arena_str(f->arena, run_of(step->path), err),
                                .has_step = !step->beyond.size,
                                .is_file = step->file != TSR_NO_FILE,
                                .step = step->step,
                                .version = step->version,
                                .holds_checkpoint = step->holds_checkpoint};
    if (!out->path.data || !out->run.data) return TSR_E_NOMEM;
    f->err = &failure;
    f->gathering = &g;
    if (out->is_file) g.prefix = tsr_path_directory(step->path);
    tsr_status status = check_step(f, step, &out->error);
    f->gathering = NULL;
    f->err = err;
    if (status == TSR_E_UNSUPPORTED) {
        g.is_unknown = true;
        out->error = tsr_arena_str(f->arena, tsr_str_from(failure.message), err);
        status = out->error.data ? TSR_OK : TSR_E_NOMEM;
    } else if (status != TSR_OK) {
        status = tsr_fail(err, status, "'%.*s': %s", TSR_STR_ARG(step->path), failure.message);
    }
    out->is_unmarked = g.is_unmarked;
    out->is_unknown = g.is_unknown;
    if (status == TSR_OK && out->is_file) {
        out->files = &out->path;
        out->file_count = 1;
    } else if (status == TSR_OK) {
        status = keep_names(f, &g.files, &out->files, &out->file_count);
    }
    if (status == TSR_OK) status = keep_names(f, &g.references, &out->references, &out->reference_count);
    tsr_vec_free(&g.files);
    tsr_vec_free(&g.references);
    return status;
}

/* The answer of tsr_latest_find for a run without steps is its only checkpoint. */
static tsr_status judge_without_steps(finder *f, tsr_run_checkpoints *out)
{
    TSR_TRY(choose_without_steps(f));
    const tsr_passed_over *passed = f->passed_over.items;
    if (!f->out->found && !f->passed_over.count) return TSR_OK;
    out->items[0] = (tsr_run_checkpoint){.path = f->out->found ? f->out->path : passed->path,
                                         .run = TSR_STR(""),
                                         .holds_checkpoint = true,
                                         .error = f->out->found ? TSR_STR("") : passed->reason};
    out->count = 1;
    return TSR_OK;
}

static tsr_status judge_all(finder *f, tsr_vec *steps, tsr_vec *owned, tsr_run_checkpoints *out)
{
    const tsr_store_gap *unlisted;
    TSR_TRY(list_owned(f, owned));
    TSR_TRY(list_levels(f));
    TSR_TRY(tsr_list_run_steps(f->store, is_owned, owned, f->arena, steps, &unlisted, f->err));
    out->unlisted = unlisted ? tsr_arena_str(f->arena, unlisted->name, f->err) : TSR_STR("");
    out->unlisted_why = unlisted ? tsr_arena_str(f->arena, tsr_str_from(unlisted->why), f->err) : TSR_STR("");
    out->items = tsr_arena_array(f->arena, steps->count + 1, sizeof *out->items, f->err);
    if (!out->items || !out->unlisted.data || !out->unlisted_why.data) return TSR_E_NOMEM;
    if (!steps->count) return judge_without_steps(f, out);
    for (size_t i = 0; i < steps->count; i++)
        TSR_TRY(judge(f, &((const tsr_run_step *)steps->items)[i], &out->items[out->count++]));
    return TSR_OK;
}

tsr_status tsr_run_search(tsr_store *store, const tsr_host *host, tsr_open_fn *opens, const tsr_latest_options *options,
                          tsr_arena *arena, tsr_run_checkpoints *out, tsr_error *err)
{
    tsr_latest_options chosen;
    tsr_latest latest = {.path = {"", 0}};
    *out = (tsr_run_checkpoints){.count = 0};
    TSR_TRY(TSR_OPTIONS_COPY(&chosen, options, tsr_latest_options, err));
    TSR_FAIL_IF(store->primary != TSR_NO_FILE, err, TSR_E_USAGE, "a run is a directory, and this is a file");
    finder f = {.store = store,
                .host = host,
                .opens = opens,
                .options = &chosen,
                .arena = arena,
                .out = &latest,
                .passed_over = tsr_vec_of(host->allocator, sizeof(tsr_passed_over)),
                .err = err};
    tsr_vec steps = tsr_vec_of(host->allocator, sizeof(tsr_run_step)), owned = tsr_vec_of(host->allocator, sizeof(tsr_str));
    f.steps = &steps;
    const tsr_status status = judge_all(&f, &steps, &owned, out);
    tsr_vec_free(&steps);
    tsr_vec_free(&owned);
    tsr_vec_free(&f.passed_over);
    return status;
}

tsr_status tsr_latest_warning(tsr_checkpoint *checkpoint, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const finder f = {.host = checkpoint->host, .arena = arena, .err = err};
    tsr_str why;
    *out = TSR_STR("");
    if (!checkpoint->took_latest || !checkpoint->step.size) return TSR_OK;
    tsr_findings *findings = tsr_findings_new(checkpoint->host->allocator, 0, err);
    if (!findings) return TSR_E_NOMEM;
    tsr_status status = first_error(&f, checkpoint->findings, &why);
    if (status == TSR_OK && !why.size) status = tsr_validate_catalog(&checkpoint->catalog, checkpoint->host, findings, err);
    if (status == TSR_OK && !why.size) status = first_error(&f, findings, &why);
    tsr_findings_free(findings);
    if (status != TSR_OK || !why.size) return status;
    *out = tsr_arena_format(arena, err,
                            "the newest checkpoint, %.*s, has errors: %.*s; --step latest-valid takes the newest without",
                            TSR_STR_ARG(checkpoint->step), TSR_STR_ARG(why));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}
