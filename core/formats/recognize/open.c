/* Opens whatever a store contains: recognizes the format, calls its reader, builds the index of names, and does what all
 * formats have in common. */
#include <inttypes.h>
#include <stdlib.h>

#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "formats/recognize/recognize.h"
#include "io/store_view.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/options.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

/* ---- the step that is opened ---- */

/* Chooses which of the checkpoints below a directory is opened: the requested one, or the one named in a marker file. */

enum { MOST_TRIED = 64 };

/* Files that name the newest checkpoint, either its directory or its number. */
static const char *const markers[] = {"latest", "latest_universal", "latest_checkpointed_iteration.txt",
                                      "dlrover_latest.txt", "latest_ckpt_global_step.txt"};

/* ---- entering a directory ---- */

static tsr_status open_below(tsr_checkpoint *checkpoint, tsr_str directory, tsr_store **out, tsr_error *err)
{
    bool owned, holds_files;
    tsr_store *below, **kept = tsr_vec_push(&checkpoint->entered, err);
    if (!kept) return TSR_E_NOMEM;
    const tsr_status status =
        tsr_store_open_below(checkpoint->store, directory, checkpoint->arena, &below, &owned, &holds_files, err);
    if (status == TSR_OK) *out = *kept = below;
    if (status != TSR_OK || !owned) checkpoint->entered.count--;
    return status;
}

static tsr_status enter(tsr_checkpoint *checkpoint, tsr_str directory, tsr_error *err)
{
    const tsr_str so_far = checkpoint->step;
    checkpoint->step = tsr_arena_format(checkpoint->arena, err, "%.*s%s%.*s", TSR_STR_ARG(so_far), so_far.size ? "/" : "",
                                        TSR_STR_ARG(directory));
    if (!checkpoint->step.data) return TSR_E_NOMEM;
    return open_below(checkpoint, directory, &checkpoint->store, err);
}

/* ---- names of steps ---- */

/* The step of a path: that of the last of its components that ends with a number. */
static bool step_of_path(tsr_str path, uint64_t *step)
{
    for (size_t end = path.size; end > 0;) {
        size_t from = end;
        while (from > 0 && path.data[from - 1] != '/') from--;
        if (tsr_step_of_name((tsr_str){path.data + from, end - from}, step) != TSR_STEP_NONE) return true;
        end = from ? from - 1 : 0;
    }
    return false;
}

static bool has_step(const void *ctx, tsr_str path)
{
    uint64_t number;
    return step_of_path(path, &number) && number == *(const uint64_t *)ctx;
}

/* Whether `name` consists of whole, consecutive components of the path, such as "step-1" in "outputs/step-1". */
static bool has_name(const void *ctx, tsr_str path)
{
    const tsr_str name = *(const tsr_str *)ctx;
    for (size_t at = 0; at + name.size <= path.size; at++) {
        const bool begins = at == 0 || path.data[at - 1] == '/',
                   ends = at + name.size == path.size || path.data[at + name.size] == '/';
        if (begins && ends && memcmp(path.data + at, name.data, name.size) == 0) return true;
    }
    return false;
}

/* ---- choosing ---- */

typedef struct choice {
    tsr_checkpoint *checkpoint;
    tsr_below list;
    tsr_error *err;
} choice;

static tsr_status look(choice *c, bool (*wanted)(const void *ctx, tsr_str path), const void *ctx)
{
    c->list = (tsr_below){.wanted = wanted, .wanted_ctx = ctx};
    return tsr_list_below(c->checkpoint, &c->list, c->err);
}

static tsr_status refuse_several(choice *c, tsr_str asked)
{
    return tsr_fail(c->err, TSR_E_USAGE,
                    "step '%.*s' matches %u checkpoints: %s%s; choose one by its path below the directory",
                    TSR_STR_ARG(asked), c->list.count, c->list.text, tsr_below_rest(&c->list));
}

/* Enters the checkpoint that was found, if it is the only one. */
static tsr_status enter_found(choice *c, tsr_str asked)
{
    if (c->list.count > 1) return refuse_several(c, asked);
    const tsr_str found = tsr_arena_str(c->checkpoint->arena, c->list.first, c->err);
    return found.data ? enter(c->checkpoint, found, c->err) : TSR_E_NOMEM;
}

/* Whether the directory is a checkpoint itself, even if it contains marker files; if not, `why` it is none. */
static tsr_status is_checkpoint_or(tsr_checkpoint *checkpoint, bool *is, tsr_error *why, tsr_error *err)
{
    const tsr_reader *reader;
    tsr_checkpoint guess = {
        .store = checkpoint->store, .host = checkpoint->host, .arena = checkpoint->arena, .is_probe = true};
    const tsr_status status = tsr_recognize(&guess, &reader, why);
    *is = status == TSR_OK;
    if (status == TSR_E_NOMEM || status == TSR_E_IO) return tsr_fail(err, status, "%s", why->message);
    return TSR_OK;
}

static tsr_status is_checkpoint(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    return is_checkpoint_or(checkpoint, is, &(tsr_error){0}, err);
}

/* ---- steps that are single files, as Lightning writes them ---- */

/* The files that fit; of those without a name or number to fit, the ones with the highest number. */
typedef struct step_files {
    const tsr_str *name;    /* the asked name, or NULL */
    const uint64_t *number; /* the asked number, or NULL */
    uint32_t first;
    uint64_t highest;
    tsr_shown_names found;
} step_files;

/* Whether the last components of the path are the name. */
static bool ends_in(tsr_str path, tsr_str name)
{
    return tsr_str_ends(path, name) && (path.size == name.size || path.data[path.size - name.size - 1] == '/');
}

/* The number of a step in the name of a .ckpt file. */
static bool file_step(tsr_str path, uint64_t *number)
{
    size_t from = path.size;
    while (from > 0 && path.data[from - 1] != '/') from--;
    return tsr_str_ends(path, TSR_STR(".ckpt")) && tsr_step_of_file(tsr_str_after(path, from), number);
}

/* Whether a file has the asked name or number; without either, whether it is a step. */
static bool is_asked(const step_files *files, tsr_str path, uint64_t *number)
{
    if (files->name) return ends_in(path, *files->name);
    return file_step(path, number) && (!files->number || *number == *files->number);
}

static tsr_status find_files(const choice *c, step_files *files)
{
    const tsr_store *store = c->checkpoint->store;
    files->found = (tsr_shown_names){.used = 0};
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str path = store->files[f].name;
        uint64_t number = 0, unused;
        tsr_str other;
        if (!is_asked(files, path, &number)) continue;
        TSR_TRY(tsr_store_follow(store, path, c->checkpoint->arena, &other, c->err));
        if (other.size && is_asked(files, other, &unused)) continue; /* a link to a file that is found, too */
        if (!files->number && files->found.count && number < files->highest) continue;
        if (!files->number && number > files->highest) files->found = (tsr_shown_names){.used = 0};
        if (!files->found.count) files->first = f;
        files->highest = number;
        tsr_shown_names_add(&files->found, path);
    }
    return TSR_OK;
}

/* Opens the file that was found as if it had been given, if it is the only one. */
static tsr_status enter_file(choice *c, tsr_str asked, const step_files *files)
{
    tsr_checkpoint *checkpoint = c->checkpoint;
    tsr_store_view *view;
    TSR_FAIL_IF(files->found.count > 1, c->err, TSR_E_USAGE,
                "step '%.*s' matches %llu files: %s%s; choose one by its path below the directory", TSR_STR_ARG(asked),
                (unsigned long long)files->found.count, files->found.text, tsr_shown_names_rest(&files->found));
    checkpoint->step = tsr_arena_str(checkpoint->arena, checkpoint->store->files[files->first].name, c->err);
    if (!checkpoint->step.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_store_view_of_file(checkpoint->store, files->first, checkpoint->arena, &view, c->err));
    checkpoint->store = &view->base;
    return TSR_OK;
}

static void list_step_files(const tsr_store *store, tsr_shown_names *names)
{
    uint64_t number;
    for (uint32_t f = 0; f < store->file_count; f++)
        if (file_step(store->files[f].name, &number)) tsr_shown_names_add(names, store->files[f].name);
}

/* May be loaded on demand (wasm/later.txt). */
tsr_status tsr_unknown_step_refuse(choice *c, tsr_str asked);
tsr_status tsr_unknown_step_refuse(choice *c, tsr_str asked)
{
    tsr_shown_names files = {.used = 0};
    tsr_error why = {0};
    bool is;
    TSR_TRY(look(c, NULL, NULL));
    list_step_files(c->checkpoint->store, &files);
    TSR_FAIL_IF(files.count, c->err, TSR_E_NOT_FOUND, "there is no step '%.*s'; the directory contains %s%s",
                TSR_STR_ARG(asked), files.text, tsr_shown_names_rest(&files));
    if (c->list.count == 0) TSR_TRY(is_checkpoint_or(c->checkpoint, &is, &why, c->err));
    TSR_FAIL_IF(c->list.count == 0 && is, c->err, TSR_E_NOT_FOUND,
                "there is no step '%.*s': the directory is a checkpoint itself and contains no others; leave out --step",
                TSR_STR_ARG(asked));
    TSR_FAIL_IF(c->list.count == 0, c->err, TSR_E_NOT_FOUND,
                "there is no step '%.*s': the directory contains no checkpoints (%s)%s", TSR_STR_ARG(asked), why.message,
                tsr_below_deeper(&c->list));
    return tsr_fail(c->err, TSR_E_NOT_FOUND, "there is no step '%.*s'; the directory contains %s%s", TSR_STR_ARG(asked),
                    c->list.text, tsr_below_rest(&c->list));
}

static tsr_status refuse_unknown(choice *c, tsr_str asked)
{
    TSR_TRY(tsr_host_load(c->checkpoint->host, c->err));
    return tsr_unknown_step_refuse(c, asked);
}

/* The requested directory may be a parent of the checkpoint ("global_step_100" of "global_step_100/actor"). */
static tsr_status choose_named(choice *c, tsr_str asked)
{
    uint64_t number;
    step_files files = {.name = &asked};
    TSR_TRY(look(c, has_name, &asked));
    if (c->list.count) return enter_found(c, asked);
    TSR_TRY(find_files(c, &files));
    if (files.found.count) return enter_file(c, asked, &files);
    bool is_number = asked.size > 0;
    for (size_t i = 0; i < asked.size; i++) is_number = is_number && tsr_is_digit(asked.data[i]);
    if (!is_number || !tsr_number_at_end(asked, &number)) return refuse_unknown(c, asked);
    files = (step_files){.number = &number};
    TSR_TRY(find_files(c, &files));
    if (files.found.count) return enter_file(c, asked, &files);
    TSR_TRY(look(c, has_step, &number));
    return c->list.count ? enter_found(c, asked) : refuse_unknown(c, asked);
}

static int larger_first(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* Lists the numbers at the end of the directories' names, each once, the largest first. */
static tsr_status list_steps(const tsr_store *store, tsr_vec *steps, tsr_error *err)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str path = tsr_path_directory(store->files[f].name);
        uint64_t number, *last = steps->count ? (uint64_t *)steps->items + steps->count - 1 : NULL;
        if (!step_of_path(path, &number) || (last && *last == number)) continue;
        uint64_t *step = tsr_vec_push(steps, err);
        if (!step) return TSR_E_NOMEM;
        *step = number;
    }
    if (steps->count) qsort(steps->items, steps->count, sizeof(uint64_t), larger_first);
    size_t kept = 0;
    uint64_t *items = steps->items;
    for (size_t i = 0; i < steps->count; i++)
        if (i == 0 || items[i] != items[kept - 1]) items[kept++] = items[i];
    steps->count = kept;
    return TSR_OK;
}

/* The text of a path before the number of its step: "checkpoint-" of "checkpoint-4". Empty if there is none. */
static tsr_str before_step(tsr_str path)
{
    uint64_t number;
    for (size_t end = path.size; end > 0;) {
        size_t from = end, digits = end;
        while (from > 0 && path.data[from - 1] != '/') from--;
        while (digits > from && tsr_is_digit(path.data[digits - 1])) digits--;
        if (tsr_number_at_end((tsr_str){path.data + from, end - from}, &number)) return (tsr_str){path.data, digits};
        end = from ? from - 1 : 0;
    }
    return (tsr_str){path.data, 0};
}

/* Reports directories that are named like the newest checkpoint, with a higher number, but contain none. */
static tsr_status report_later(choice *c, tsr_str found)
{
    uint64_t chosen, number;
    tsr_shown_names later = {.used = 0};
    tsr_str last = {NULL, 0};
    const tsr_store *store = c->checkpoint->store;
    const tsr_str before = before_step(found);
    if (!before.size || !step_of_path(found, &chosen)) return TSR_OK;
    for (uint32_t f = 0; f < store->file_count; f++) {
        tsr_str path = store->files[f].name;
        size_t end = before.size;
        if (!tsr_str_starts(path, before)) continue;
        while (end < path.size && tsr_is_digit(path.data[end])) end++;
        if (end == path.size || path.data[end] != '/') continue;
        path.size = end;
        if (!tsr_number_at_end(path, &number) || number <= chosen || tsr_str_equal(path, last)) continue;
        last = path;
        tsr_shown_names_add(&later, path);
    }
    if (!later.count) return TSR_OK;
    return tsr_finding_add_at(
        c->checkpoint->findings, (tsr_rated_rule){"parts/incomplete-save", TSR_WARNING},
        (tsr_place){{NULL, 0}, TSR_NO_POSITION, {NULL, 0}}, c->err,
        "'%.*s' is the newest checkpoint, but %s%s %s: the save was interrupted, or files were not copied",
        TSR_STR_ARG(found), later.text, tsr_shown_names_rest(&later),
        later.count == 1 ? "has a higher number and contains no checkpoint"
                         : "have higher numbers and contain no checkpoints");
}

/* Chooses the highest number that has a checkpoint. A directory that has none below it may be a checkpoint itself, so that the same
 * option fits a run and a step of it. */
static tsr_status choose_highest(choice *c)
{
    bool cut, deeper, is = false;
    step_files files = {.name = NULL};
    tsr_store *store = c->checkpoint->store;
    tsr_vec steps = tsr_vec_of(c->checkpoint->host->allocator, sizeof(uint64_t));
    tsr_status status = store->deepen ? store->deepen(store, TSR_BELOW_LEVELS, &cut, &deeper, c->err) : TSR_OK;
    if (status == TSR_OK) status = find_files(c, &files);
    if (status == TSR_OK && files.found.count) return enter_file(c, TSR_STR("latest"), &files);
    if (status == TSR_OK) status = list_steps(store, &steps, c->err);
    c->list.count = 0;
    for (size_t i = 0; i < steps.count && i < MOST_TRIED && status == TSR_OK && c->list.count == 0; i++)
        status = look(c, has_step, &((const uint64_t *)steps.items)[i]);
    tsr_vec_free(&steps);
    if (status != TSR_OK) return status;
    if (c->list.count == 1) TSR_TRY(report_later(c, c->list.first));
    if (c->list.count) return enter_found(c, TSR_STR("latest"));
    TSR_TRY(look(c, NULL, NULL));
    if (c->list.count == 0) TSR_TRY(is_checkpoint(c->checkpoint, &is, c->err));
    return is ? TSR_OK : refuse_unknown(c, TSR_STR("latest"));
}

/* ---- markers ---- */

static bool holds_files(const tsr_store *store, tsr_str directory)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        if (name.size > directory.size && name.data[directory.size] == '/' && tsr_str_starts(name, directory)) return true;
    }
    return false;
}

/* The directory that a marker's line refers to, either by its name or by a number, as Megatron, verl and SkyRL write it. Empty
 * if it does not exist. */
static tsr_status directory_of(tsr_checkpoint *checkpoint, tsr_str line, tsr_str *out, tsr_error *err)
{
    uint64_t number;
    tsr_str names[3] = {line};
    size_t count = 1;
    if (tsr_is_digit(line.data[0]) && tsr_number_at_end(line, &number)) {
        names[count++] = tsr_arena_format(checkpoint->arena, err, "iter_%07llu", (unsigned long long)number);
        names[count++] = tsr_arena_format(checkpoint->arena, err, "global_step_%llu", (unsigned long long)number);
    }
    *out = (tsr_str){NULL, 0};
    for (size_t i = 0; i < count && !out->data; i++) {
        if (!names[i].data) return TSR_E_NOMEM;
        if (holds_files(checkpoint->store, names[i])) *out = names[i];
    }
    return TSR_OK;
}

static const char *find_marker(const tsr_store *store, uint32_t *file)
{
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
        *file = tsr_store_find(store, tsr_str_from(markers[i]));
        if (*file != TSR_NO_FILE) return markers[i];
    }
    return NULL;
}

/* Reports an unreadable directory. Without this check it would seem not to exist, because the store lists no files for
 * it. */
static tsr_status check_readable(const tsr_checkpoint *checkpoint, const char *marker, tsr_str line, tsr_error *err)
{
    tsr_store *store = checkpoint->store, *found;
    tsr_error why = {0};
    if (!store->below || line.data[0] == '.') return TSR_OK;
    const tsr_status status = store->below(store, line, &found, &why);
    if (status == TSR_OK) found->close(found);
    if (status != TSR_E_IO && status != TSR_E_NOMEM) return TSR_OK;
    return tsr_fail(err, status, "the file '%s' names the checkpoint '%.*s': %s", marker, TSR_STR_ARG(line), why.message);
}

/* Enters a directory, and then the only checkpoint in it. */
static tsr_status enter_only(choice *c, tsr_str directory)
{
    bool is;
    TSR_TRY(enter(c->checkpoint, directory, c->err));
    TSR_TRY(is_checkpoint(c->checkpoint, &is, c->err));
    if (is) return TSR_OK;
    TSR_TRY(look(c, NULL, NULL));
    return c->list.count == 1 ? enter_found(c, directory) : TSR_OK; /* otherwise recognition reports the reason */
}

/* Enters the directory named in a marker file, and then the only checkpoint in it. *followed is set if there is a marker. */
static tsr_status follow_marker(choice *c, bool *followed)
{
    tsr_checkpoint *checkpoint = c->checkpoint;
    uint32_t file;
    tsr_str directory, line = {NULL, 0};
    const char *marker = find_marker(checkpoint->store, &file);
    if (marker) TSR_TRY(tsr_marker_read(checkpoint, file, &line, c->err));
    *followed = line.size > 0;
    if (!*followed) return TSR_OK;
    TSR_TRY(directory_of(checkpoint, line, &directory, c->err));
    if (!directory.data && checkpoint->store->deepen) { /* the directory may be deeper than the levels listed so far */
        bool cut, deeper;
        TSR_TRY(checkpoint->store->deepen(checkpoint->store, TSR_BELOW_LEVELS, &cut, &deeper, c->err));
        TSR_TRY(directory_of(checkpoint, line, &directory, c->err));
    }
    if (!directory.data) TSR_TRY(check_readable(checkpoint, marker, line, c->err));
    TSR_FAIL_IF(!directory.data, c->err, TSR_E_NOT_FOUND,
                "the file '%s' names the checkpoint '%.*s', which is not in the directory; choose another one with --step",
                marker, TSR_STR_ARG(line));
    checkpoint->step_marker = marker;
    return enter_only(c, directory);
}

/* ---- the newest without errors ---- */

/* Reports the newer checkpoints that were passed over. */
static tsr_status report_passed_over(const choice *c, const tsr_latest *latest)
{
    for (size_t i = 0; i < latest->passed_count; i++) {
        const tsr_passed_over *passed = &latest->passed_over[i];
        TSR_TRY(tsr_finding_add(c->checkpoint->findings, "parts/passed-over", TSR_NOWHERE, c->err,
                                "'%.*s' is newer than the checkpoint that is opened, and was passed over: %.*s",
                                TSR_STR_ARG(passed->path), TSR_STR_ARG(passed->reason)));
    }
    return TSR_OK;
}

static tsr_status choose_valid(choice *c)
{
    tsr_checkpoint *checkpoint = c->checkpoint;
    tsr_latest latest;
    TSR_FAIL_IF(TSR_IS_SMALL, c->err, TSR_E_UNSUPPORTED,
                "only the command line searches for the newest checkpoint without errors (--step latest-valid)");
    TSR_TRY(
        tsr_latest_search(checkpoint->store, checkpoint->host, checkpoint->opens, NULL, checkpoint->arena, &latest, c->err));
    TSR_FAIL_IF(!latest.found && !latest.passed_count, c->err, TSR_E_NOT_FOUND, "the directory contains no checkpoints%s",
                latest.deeper ? " within three levels, and there are directories further down" : "");
    if (!latest.found) {
        const tsr_passed_over *newest = latest.passed_over;
        return tsr_fail(c->err, TSR_E_NOT_FOUND,
                        "no checkpoint in the directory is without errors; the newest is '%.*s': %.*s",
                        TSR_STR_ARG(newest->path.size ? newest->path : TSR_STR(".")), TSR_STR_ARG(newest->reason));
    }
    TSR_TRY(report_passed_over(c, &latest));
    if (!latest.path.size) return TSR_OK;
    const uint32_t file = tsr_store_find(checkpoint->store, latest.path);
    if (file == TSR_NO_FILE) return enter_only(c, latest.path);
    return enter_file(c, latest.path, &(step_files){.first = file, .found = {.count = 1}});
}

/* Sets checkpoint->store to the directory that options.step, or a marker file in the root, chooses. Does nothing if there is
 * nothing to choose. Fails as described at tsr_open_options.step, or if reading fails. */
static tsr_status enter_step(tsr_checkpoint *checkpoint, tsr_error *err)
{
    choice c = {.checkpoint = checkpoint, .err = err};
    const tsr_str asked = checkpoint->options.step;
    uint32_t file;
    bool done = false;
    if (checkpoint->options.stay || checkpoint->is_probe) return TSR_OK;
    TSR_FAIL_IF(asked.data && checkpoint->store->primary != TSR_NO_FILE, err, TSR_E_USAGE,
                "--step %.*s can only be used with a directory that contains checkpoints, not with a file",
                TSR_STR_ARG(asked));
    if (checkpoint->store->primary != TSR_NO_FILE) return TSR_OK;
    if (tsr_str_equal(asked, TSR_STR("latest-valid"))) return choose_valid(&c);
    if (asked.data && !tsr_str_equal(asked, TSR_STR("latest"))) return choose_named(&c, asked);
    checkpoint->took_latest = asked.data != NULL;
    if (!asked.data && !find_marker(checkpoint->store, &file)) return TSR_OK;
    if (!asked.data) TSR_TRY(is_checkpoint(checkpoint, &done, err));
    if (!done) TSR_TRY(follow_marker(&c, &done));
    return asked.data && !done ? choose_highest(&c) : TSR_OK;
}

static tsr_str file_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry)
{
    if (entry->chunk_count == 0 || entry->chunks[0].file == TSR_NO_FILE) return TSR_STR("the metadata");
    return checkpoint->store->files[entry->chunks[0].file].name;
}

static tsr_status index_names(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    uint64_t duplicate;
    TSR_FAIL_IF(catalog->entry_count > checkpoint->host->limits.entries, err, TSR_E_LIMIT,
                "%" PRIu64 " entries; the limit is %" PRIu64, catalog->entry_count, checkpoint->host->limits.entries);
    TSR_TRY(tsr_name_index_new(checkpoint->host->allocator, TSR_NAMED_ITEMS(catalog->entries, catalog->entry_count),
                               &checkpoint->index, &duplicate, err));
    if (duplicate == TSR_NO_NAME) return TSR_OK;
    const tsr_entry *second = &catalog->entries[duplicate];
    const tsr_entry *first = &catalog->entries[tsr_name_index_find(checkpoint->index, second->fqn)];
    return tsr_fail(err, TSR_E_FORMAT, "two entries have the name '%.*s': one in %.*s, one in %.*s",
                    TSR_STR_ARG(second->fqn), TSR_STR_ARG(file_of(checkpoint, first)),
                    TSR_STR_ARG(file_of(checkpoint, second)));
}

/* Copies the file names into the catalog, for modules that name files without reading the store. */
static tsr_status list_files(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    tsr_str *names = tsr_arena_array(checkpoint->arena, store->file_count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < store->file_count; i++) names[i] = store->files[i].name;
    checkpoint->catalog.file_names = names;
    return TSR_OK;
}

/* ---- one part of a checkpoint that consists of parts ---- */

static tsr_status refuse_part(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    tsr_shown_names names = {.used = 0};
    TSR_FAIL_IF(checkpoint->incomplete.size, err, TSR_E_UNSUPPORTED, "there is no part '%.*s': %.*s",
                TSR_STR_ARG(checkpoint->options.part),
                TSR_STR_ARG(checkpoint->incomplete)); /* the part may be in the missing file */
    for (uint32_t p = 0; p < catalog->part_count; p++) tsr_shown_names_add(&names, catalog->parts[p].name);
    TSR_FAIL_IF(!names.count, err, TSR_E_NOT_FOUND, "there is no part '%.*s': the checkpoint (%s) does not consist of parts",
                TSR_STR_ARG(checkpoint->options.part), tsr_format_name(catalog->format));
    return tsr_fail(err, TSR_E_NOT_FOUND, "there is no part '%.*s'; the checkpoint (%s) has %s%s",
                    TSR_STR_ARG(checkpoint->options.part), tsr_format_name(catalog->format), names.text,
                    tsr_shown_names_rest(&names));
}

/* Removes the part's name from a name that begins with it: "model.a.b" → "a.b", "model" → "". */
static bool strip(tsr_str *fqn, tsr_str part)
{
    if (part.size == 0 || !tsr_str_starts(*fqn, part) || (fqn->size > part.size && fqn->data[part.size] != '.'))
        return false;
    const size_t size = fqn->size > part.size ? part.size + 1 : part.size;
    *fqn = tsr_str_after(*fqn, size);
    return true;
}

/* Removes the first item of a path if it is the part's name. If no item is left, the entry has a flat key, unless it is the
 * root itself. */
static void strip_path(const tsr_path_item **path, uint32_t *length, tsr_str part)
{
    if (!*path || *length == 0 || (*path)->kind != TSR_PATH_KEY || !tsr_str_equal((*path)->key, part)) return;
    ++*path;
    --*length;
}

/* Works in place, because readers identify their entries by address. */
static void keep_entries(tsr_catalog *catalog, const tsr_part *part)
{
    tsr_entry *entries = (tsr_entry *)catalog->entries + part->first_entry;
    for (uint64_t i = 0; i < part->entry_count; i++)
        if (strip(&entries[i].fqn, part->name)) strip_path(&entries[i].path, &entries[i].path_length, part->name);
    catalog->entries = entries;
    catalog->entry_count = part->entry_count;
}

static tsr_status keep_mappings(tsr_checkpoint *checkpoint, const tsr_part *part, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    const uint64_t count = catalog->mapping_count, last = part->first_entry + part->entry_count;
    tsr_mapping *kept = tsr_arena_array(checkpoint->arena, (size_t)count, sizeof *kept, err);
    if (!kept) return TSR_E_NOMEM;
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++) {
        tsr_mapping mapping = catalog->mappings[i];
        const bool inside = mapping.entries_before >= part->first_entry && mapping.entries_before <= last;
        if (!inside || (part->name.size && !strip(&mapping.fqn, part->name))) continue;
        strip_path(&mapping.path, &mapping.path_length, part->name);
        mapping.entries_before -= part->first_entry;
        kept[used++] = mapping;
    }
    catalog->mappings = kept;
    catalog->mapping_count = used;
    return TSR_OK;
}

/* Keeps only the entries of options.part in the catalog, and removes the part's name from theirs. */
static tsr_status keep_part(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    const tsr_part *part = NULL;
    if (!checkpoint->options.part.data) return TSR_OK;
    for (uint32_t p = 0; p < catalog->part_count && !part; p++)
        if (tsr_str_equal(catalog->parts[p].name, checkpoint->options.part)) part = &catalog->parts[p];
    if (!part) return refuse_part(checkpoint, err);
    keep_entries(catalog, part);
    TSR_TRY(keep_mappings(checkpoint, part, err));
    catalog->format = part->format;
    catalog->metadata = part->metadata;
    catalog->metadata_count = part->metadata_count;
    catalog->differing_count = 0;
    catalog->parts = NULL;
    catalog->part_count = 0;
    return TSR_OK;
}

/* ---- opening ---- */

static tsr_status choose_reader(tsr_checkpoint *checkpoint, const tsr_form *form, const tsr_reader **reader, tsr_error *err)
{
    if (!form) {
        TSR_TRY(enter_step(checkpoint, err));
        return tsr_recognize(checkpoint, reader, err);
    }
    *reader = form->reader;
    checkpoint->files = form->files;
    checkpoint->file_count = form->count;
    return TSR_OK;
}

/* Without it, a checkpoint of which nothing was read would look like one that was found to be in order. */
static tsr_status report_empty(const tsr_checkpoint *checkpoint, tsr_error *err)
{
    if (checkpoint->catalog.entry_count || checkpoint->catalog.mapping_count || checkpoint->names_unknown ||
        checkpoint->options.part.size)
        return TSR_OK;
    for (size_t i = 0; i < tsr_findings_count(checkpoint->findings); i++)
        if (strcmp(tsr_findings_at(checkpoint->findings, i)->rule->id, "safetensors/no-tensors") == 0) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "container/empty", TSR_NOWHERE, err,
                           "the checkpoint has no entries, so there was nothing to check");
}

static tsr_status read_checkpoint(tsr_checkpoint *checkpoint, const tsr_form *form, tsr_error *err)
{
    const tsr_reader *reader;
    TSR_TRY(choose_reader(checkpoint, form, &reader, err));
    checkpoint->catalog.format = reader->format;
    checkpoint->catalog.store = checkpoint->store;
    TSR_TRY(list_files(checkpoint, err));
    if (reader->is_rare || checkpoint->options.salvage) TSR_TRY(tsr_host_load(checkpoint->host, err));
    TSR_TRY(reader->open(checkpoint, err));
    checkpoint->reader = reader;
    for (size_t i = 0; tsr_directories[i]; i++)
        if (tsr_directories[i]->refines) TSR_TRY(tsr_directories[i]->refines(checkpoint, err));
    TSR_TRY(keep_part(checkpoint, err));
    TSR_TRY(index_names(checkpoint, err));
    TSR_TRY(report_empty(checkpoint, err));
    TSR_TRY(tsr_check_files_complete(checkpoint, err));
    for (size_t i = 0; tsr_directories[i]; i++)
        if (tsr_directories[i]->checks) TSR_TRY(tsr_directories[i]->checks(checkpoint, err));
    return tsr_checkpoint_require(checkpoint, checkpoint->options.purpose, err);
}

static tsr_status open_as(tsr_store *store, const tsr_host *host, const tsr_open_options *options, const tsr_form *form,
                          tsr_checkpoint **out, tsr_error *err)
{
    tsr_open_options own;
    *out = NULL;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_open_options, err));
    tsr_checkpoint *checkpoint = tsr_alloc(host->allocator, 1, sizeof *checkpoint, err);
    if (!checkpoint) return TSR_E_NOMEM;
    *checkpoint = (tsr_checkpoint){.store = store,
                                   .given = store,
                                   .entered = tsr_vec_of(host->allocator, sizeof(tsr_store *)),
                                   .opens = open_as,
                                   .missing = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .implied = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .expansion = host->limits.expansion};
    checkpoint->options = own;
    tsr_checkpoint_take_host(checkpoint, store, host);
    size_t bound = host->limits.memory_bytes < SIZE_MAX ? (size_t)host->limits.memory_bytes : SIZE_MAX;
    checkpoint->arena = tsr_arena_new(host->allocator, bound, err);
    checkpoint->findings = checkpoint->arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    tsr_status status = checkpoint->findings ? read_checkpoint(checkpoint, form, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = checkpoint;
    else if (checkpoint->step.size) tsr_error_context(err, "%.*s", TSR_STR_ARG(checkpoint->step));
    if (status != TSR_OK) tsr_checkpoint_close(checkpoint);
    return status;
}

tsr_status tsr_checkpoint_open(tsr_store *store, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                               tsr_error *err)
{
    return open_as(store, host, options, NULL, out, err);
}

/* For commands that read more than checkpoints. */
tsr_status tsr_step_open(tsr_store *store, const tsr_host *host, tsr_str step, tsr_checkpoint **out, tsr_error *err)
{
    tsr_checkpoint *checkpoint = *out = tsr_alloc(host->allocator, 1, sizeof *checkpoint, err);
    if (!checkpoint) return TSR_E_NOMEM;
    *checkpoint = (tsr_checkpoint){.store = store,
                                   .given = store,
                                   .host = host,
                                   .opens = open_as,
                                   .options.step = step,
                                   .missing = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                   .entered = tsr_vec_of(host->allocator, sizeof(tsr_store *))};
    checkpoint->arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    checkpoint->findings = checkpoint->arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    const tsr_status status = checkpoint->findings ? enter_step(checkpoint, err) : TSR_E_NOMEM;
    if (status == TSR_OK) return TSR_OK;
    tsr_checkpoint_close(checkpoint);
    *out = NULL;
    return status;
}

tsr_status tsr_latest_find(tsr_store *store, const tsr_host *host, const tsr_latest_options *options, tsr_arena *arena,
                           tsr_latest *out, tsr_error *err)
{
    return tsr_latest_search(store, host, open_as, options, arena, out, err);
}

tsr_status tsr_run_list(tsr_store *store, const tsr_host *host, const tsr_latest_options *options, tsr_arena *arena,
                        tsr_run_checkpoints *out, tsr_error *err)
{
    return tsr_run_search(store, host, open_as, options, arena, out, err);
}

tsr_status tsr_store_file_role(tsr_store *store, uint32_t file, tsr_file_role *role, tsr_error *err)
{
    const tsr_str name = store->files[file].name;
    tsr_content content;
    *role = TSR_ROLE_NONE;
    if (memchr(name.data, '/', name.size)) return TSR_OK;
    if (tsr_str_ends(name, TSR_STR(".metadata")) || tsr_str_ends(name, TSR_STR(".index.json"))) {
        *role = TSR_ROLE_MARKER;
        return TSR_OK;
    }
    if (tsr_str_ends(name, TSR_STR(".distcp"))) {
        if (store->files[file].size) *role = TSR_ROLE_TENSORS; /* an empty file is from a rank that had nothing to write */
        return TSR_OK;
    }
    TSR_TRY(tsr_content_of(store, file, &content, err));
    if (content.kind || (content.unknown && tsr_kind_named(name))) *role = TSR_ROLE_TENSORS;
    return TSR_OK;
}
