/* Decides which checkpoints of a run are removed, and removes them. See tessera/sys/prune_run.h.
 *
 * The record of what is being removed is text. Numbers are decimal, and lengths in bytes precede texts, so names may contain anything:
 *
 *   tessera.prune-record/1
 *   checkpoint MARKERS FILES STEP-OR-MINUS LENGTH PATH        for each checkpoint, and for each of its files, markers first:
 *   file SIZE SECONDS NANOSECONDS LENGTH VERSION LENGTH NAME
 *   end CRC                                                   of everything before this line, in 8 hexadecimal digits */
#include "tessera/sys/prune_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "publish/text.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/options.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

enum { SETTLED_SECONDS = 600, RECORD_DIGITS = 16 };

#define NONE         UINT32_MAX
#define MOST_TRACKER ((size_t)4096)
#define MOST_STATE   ((size_t)64 << 20)

typedef struct file_list {
    const tsr_run_file **items; /* markers first */
    size_t count, marker_count;
} file_list;

typedef struct candidate {
    const tsr_run_checkpoint *checkpoint;
    size_t from, to; /* of the run's files: those below it, or the file itself */
    bool is_removed, is_asked;
    tsr_pruned_because because;
    tsr_str reason;     /* why it is kept */
    uint32_t next_same; /* the next one with the same last part of its path; NONE */
} candidate;

/* What a record lists of one checkpoint. */
typedef struct recorded {
    tsr_str path;
    bool has_step;
    uint64_t step;
    file_list files;
    bool is_unfinished; /* its marker is gone, and something else of it is not */
} recorded;

typedef struct record {
    const tsr_run_file *file;
    tsr_vec items; /* of recorded; empty if it was killed before it was complete */
} record;

typedef struct pruning {
    const tsr_host *host;
    const tsr_prune_options *options;
    tsr_run_place *place;
    tsr_arena *arena;
    tsr_vec files; /* of tsr_run_file, sorted by name */
    int64_t now;
    tsr_run_checkpoints checkpoints;
    candidate *candidates; /* of the checkpoints that are not below symbolic links, the newest first */
    size_t count;
    const candidate **holders; /* of each file the candidate that it is in, or NULL */
    tsr_map *paths, *names; /* of the candidates: path → index; last part of the path → index of the last one with it */
    size_t shortest, longest;  /* of these last parts */
    tsr_vec records;           /* of record */
    tsr_vec unfinished;        /* of const recorded *, each path once */
    tsr_map *unfinished_paths; /* → index */
    tsr_prune_result *out;
    tsr_error *err;
} pruning;

static const tsr_run_file *file_at(const pruning *p, size_t i)
{
    return (const tsr_run_file *)p->files.items + i;
}

static tsr_str last_part(tsr_str path)
{
    for (size_t at = path.size; at > 0; at--)
        if (path.data[at - 1] == '/') return tsr_str_after(path, at);
    return path;
}

static tsr_str directory_of(tsr_str path)
{
    const tsr_str last = last_part(path);
    return (tsr_str){path.data, path.size - last.size - (last.size < path.size)};
}

static bool is_below(tsr_str path, tsr_str directory)
{
    return path.size > directory.size && path.data[directory.size] == '/' && tsr_str_starts(path, directory);
}

/* ---- the files of the run ---- */

/* As names of one tree: what is below a directory follows it. */
static int by_name(const void *left, const void *right)
{
    const tsr_str a = ((const tsr_run_file *)left)->name, b = ((const tsr_run_file *)right)->name;
    const size_t size = a.size < b.size ? a.size : b.size;
    for (size_t i = 0; i < size; i++) {
        if (a.data[i] == b.data[i]) continue;
        if (a.data[i] == '/' || b.data[i] == '/') return a.data[i] == '/' ? -1 : 1;
        return (unsigned char)a.data[i] < (unsigned char)b.data[i] ? -1 : 1;
    }
    return (a.size > b.size) - (a.size < b.size);
}

static int by_name_of(const void *left, const void *right)
{
    return by_name(*(const tsr_run_file *const *)left, *(const tsr_run_file *const *)right);
}

/* The first file at or after a name. */
static size_t find_from(const pruning *p, tsr_str name)
{
    const tsr_run_file wanted = {.name = name};
    size_t from = 0, to = p->files.count;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (by_name(file_at(p, middle), &wanted) < 0) from = middle + 1;
        else to = middle;
    }
    return from;
}

static const tsr_run_file *find(const pruning *p, tsr_str name)
{
    const size_t at = find_from(p, name);
    return at < p->files.count && tsr_str_equal(file_at(p, at)->name, name) ? file_at(p, at) : NULL;
}

static void find_range(const pruning *p, tsr_str path, size_t *from, size_t *to)
{
    *from = *to = find_from(p, path);
    while (*to < p->files.count && (tsr_str_equal(file_at(p, *to)->name, path) || is_below(file_at(p, *to)->name, path)))
        ++*to;
}

static bool is_through_link(const pruning *p, tsr_str path)
{
    for (tsr_str part = path; part.size; part = directory_of(part)) {
        const tsr_run_file *file = find(p, part);
        if (file && file->kind == TSR_RUN_LINK) return true;
    }
    return false;
}

static bool is_same(const tsr_run_file *a, const tsr_run_file *b)
{
    return a->kind != TSR_RUN_DIRECTORY && a->size == b->size && a->seconds == b->seconds &&
           a->nanoseconds == b->nanoseconds && tsr_str_equal(a->version, b->version);
}

/* ---- records ---- */

static bool take_number(tsr_str *line, uint64_t *out)
{
    size_t at = 0;
    for (*out = 0; at < line->size && tsr_is_digit(line->data[at]) && at < 20; at++)
        *out = *out * 10 + (uint64_t)(line->data[at] - '0');
    if (!at || at == line->size || line->data[at] != ' ') return false;
    *line = tsr_str_after(*line, at + 1);
    return true;
}

static bool take_text(tsr_str *rest, tsr_str *out)
{
    uint64_t size;
    if (!take_number(rest, &size) || size >= rest->size) return false;
    *out = (tsr_str){rest->data, (size_t)size};
    *rest = (tsr_str){rest->data + size + 1, rest->size - (size_t)size - 1};
    return true;
}

static bool take_file(tsr_str *rest, tsr_run_file *out)
{
    uint64_t seconds, nanoseconds;
    *out = (tsr_run_file){.kind = TSR_RUN_FILE};
    if (!tsr_str_skip(rest, TSR_STR("file ")) || !take_number(rest, &out->size) || !take_number(rest, &seconds) ||
        !take_number(rest, &nanoseconds) || !take_text(rest, &out->version) || !take_text(rest, &out->name))
        return false;
    out->seconds = (int64_t)seconds;
    out->nanoseconds = (int64_t)nanoseconds;
    return true;
}

/* The last line of a record, without which nothing in it is believed: a name that has changed would make a marker seem to be gone. */
static tsr_str end_of(const pruning *p, const void *text, size_t size)
{
    return tsr_arena_format(p->arena, p->err, "end %08" PRIx32 "\n", tsr_crc32(p->host, 0, text, size));
}

/* *is_whole is false if the text is damaged, which leaves items that must not be used. */
static tsr_status take_record(const pruning *p, tsr_str text, tsr_vec *items, bool *is_whole)
{
    tsr_str rest = text;
    *is_whole = false;
    if (!tsr_str_skip(&rest, TSR_STR(TSR_PRUNE_RECORD_HEAD))) return TSR_OK;
    while (tsr_str_skip(&rest, TSR_STR("checkpoint "))) {
        uint64_t markers, count, step = 0;
        recorded *own = tsr_vec_push(items, p->err);
        if (!own) return TSR_E_NOMEM;
        if (!take_number(&rest, &markers) || !take_number(&rest, &count) || markers > count || count > rest.size)
            return TSR_OK;
        own->has_step = !tsr_str_skip(&rest, TSR_STR("- "));
        if ((own->has_step && !take_number(&rest, &step)) || !take_text(&rest, &own->path)) return TSR_OK;
        own->step = step;
        own->files = (file_list){tsr_arena_array(p->arena, (size_t)count + 1, sizeof(tsr_run_file *), p->err), (size_t)count,
                                 (size_t)markers};
        tsr_run_file *files = tsr_arena_array(p->arena, (size_t)count + 1, sizeof *files, p->err);
        if (!own->files.items || !files) return TSR_E_NOMEM;
        for (size_t i = 0; i < own->files.count; i++) {
            if (!take_file(&rest, &files[i])) return TSR_OK;
            if (!tsr_str_equal(files[i].name, own->path) && !is_below(files[i].name, own->path)) return TSR_OK;
            own->files.items[i] = &files[i];
        }
    }
    const tsr_str end = end_of(p, text.data, text.size - rest.size);
    *is_whole = end.data && tsr_str_equal(rest, end);
    return end.data ? TSR_OK : TSR_E_NOMEM;
}

/* Whether directories that a killed run emptied are still there. Next to new files they are those of a save. */
static bool has_empty_directory(const pruning *p, size_t from, size_t to)
{
    bool found = false;
    for (size_t i = from; i < to; i++) {
        const tsr_run_file *file = file_at(p, i);
        if (file->kind != TSR_RUN_DIRECTORY && file->seconds > p->now - SETTLED_SECONDS) return false;
        found |= file->kind == TSR_RUN_DIRECTORY && (i + 1 == to || !is_below(file_at(p, i + 1)->name, file->name));
    }
    return found;
}

/* Whether the marker is gone, so that what is left is that of a killed run. Files that were written since are others. */
static void judge_recorded(const pruning *p, recorded *own)
{
    const tsr_run_file *marker = own->files.count ? find(p, own->files.items[0]->name) : NULL;
    size_t from, to, left = 0;
    own->is_unfinished = false;
    for (size_t i = 0; i < own->files.count; i++) {
        const tsr_run_file *now = find(p, own->files.items[i]->name);
        if (!now || !is_same(now, own->files.items[i])) continue;
        own->files.items[left++] = now;
    }
    own->files.count = left;
    if (own->files.marker_count > left) own->files.marker_count = left;
    find_range(p, own->path, &from, &to);
    own->is_unfinished = !marker && (left || has_empty_directory(p, from, to));
}

static tsr_status read_record(pruning *p, const tsr_run_file *file)
{
    tsr_str text;
    bool is_whole;
    record own = {file, tsr_vec_of(p->host->allocator, sizeof(recorded))};
    TSR_TRY(p->place->read(p->place, file, (size_t)TSR_MOST_LISTING, p->arena, &text, p->err));
    if (!tsr_str_starts(text, TSR_STR(TSR_PRUNE_RECORD_HEAD))) return TSR_OK; /* another program's, whatever its name */
    tsr_status status = take_record(p, text, &own.items, &is_whole);
    if (!is_whole) own.items.count = 0; /* nothing was removed before it was complete */
    for (size_t i = 0; i < own.items.count; i++) judge_recorded(p, (recorded *)own.items.items + i);
    if (status == TSR_OK) status = tsr_vec_append(&p->records, &own, 1, p->err);
    if (status != TSR_OK) tsr_vec_free(&own.items);
    return status;
}

/* Of what several records list, the first counts. */
static tsr_status note_unfinished(pruning *p)
{
    const record *records = p->records.items;
    p->unfinished_paths = tsr_map_new(p->host->allocator, 0, p->err);
    if (!p->unfinished_paths) return TSR_E_NOMEM;
    for (size_t r = 0; r < p->records.count; r++) {
        const recorded *items = records[r].items.items;
        for (size_t i = 0; i < records[r].items.count; i++) {
            const recorded *own = &items[i];
            bool is_new = false;
            if (own->is_unfinished)
                TSR_TRY(tsr_map_put(p->unfinished_paths, own->path, (uint32_t)p->unfinished.count, NULL, &is_new, p->err));
            if (is_new) TSR_TRY(tsr_vec_append(&p->unfinished, &own, 1, p->err));
        }
    }
    return TSR_OK;
}

static bool may_be_record(const tsr_run_file *file)
{
    const tsr_str head = TSR_STR(TSR_PRUNE_RECORD);
    bool is = file->kind == TSR_RUN_FILE && file->name.size == head.size + RECORD_DIGITS && tsr_str_starts(file->name, head);
    for (size_t i = head.size; is && i < file->name.size; i++) is = memchr("0123456789abcdef", file->name.data[i], 16);
    return is;
}

static tsr_status read_records(pruning *p)
{
    for (size_t i = 0; i < p->files.count; i++)
        if (may_be_record(file_at(p, i))) TSR_TRY(read_record(p, file_at(p, i)));
    return note_unfinished(p);
}

static bool is_unfinished(const pruning *p, tsr_str path)
{
    return tsr_map_get(p->unfinished_paths, path, NONE) != NONE;
}

static bool is_in_unfinished(const pruning *p, tsr_str name)
{
    for (tsr_str path = name; path.size; path = directory_of(path))
        if (is_unfinished(p, path)) return true;
    return false;
}

static tsr_status put_line(tsr_vec *text, tsr_str line, tsr_error *err)
{
    return line.data ? tsr_text_add(text, line, err) : TSR_E_NOMEM;
}

static tsr_status put_record(const pruning *p, tsr_vec *text, tsr_str path, const tsr_pruned *removed,
                             const file_list *files)
{
    char step[24] = "-";
    if (removed->has_step) snprintf(step, sizeof step, "%" PRIu64, removed->step);
    TSR_TRY(put_line(text,
                     tsr_arena_format(p->arena, p->err, "checkpoint %zu %zu %s %zu %.*s\n", files->marker_count,
                                      files->count, step, path.size, TSR_STR_ARG(path)),
                     p->err));
    for (size_t i = 0; i < files->count; i++) {
        const tsr_run_file *f = files->items[i];
        TSR_TRY(put_line(text,
                         tsr_arena_format(p->arena, p->err, "file %" PRIu64 " %" PRIu64 " %" PRIu64 " %zu %.*s %zu %.*s\n",
                                          f->size, (uint64_t)f->seconds, (uint64_t)f->nanoseconds, f->version.size,
                                          TSR_STR_ARG(f->version), f->name.size, TSR_STR_ARG(f->name)),
                         p->err));
    }
    return TSR_OK;
}

/* ---- what a checkpoint consists of ---- */

/* The order in which files are removed: 0 for markers. Next come models, which could be taken for a checkpoint without the rest. */
static unsigned order_of(tsr_str path)
{
    const tsr_str name = last_part(path);
    const bool is_model = tsr_str_ends(name, TSR_STR(".safetensors")) || tsr_str_ends(name, TSR_STR(".bin"));
    if (tsr_str_equal(name, TSR_STR("trainer_state.json"))) return 0;
    if (tsr_is_run_marker(path) && !is_model) return 1;
    if (tsr_is_run_marker(path)) return 2;
    if (tsr_str_ends(name, TSR_STR("_model_states.pt")) || tsr_str_starts(name, TSR_STR("model"))) return 3;
    return 4;
}

static int markers_first(const void *left, const void *right)
{
    const tsr_run_file *a = *(const tsr_run_file *const *)left, *b = *(const tsr_run_file *const *)right;
    const unsigned x = order_of(a->name), y = order_of(b->name);
    if (x != y) return x < y ? -1 : 1;
    return tsr_str_compare(a->name, b->name);
}

static void sort_files(file_list *files)
{
    if (!files->count) return;
    qsort((void *)files->items, files->count, sizeof *files->items, markers_first);
    while (files->marker_count < files->count && order_of(files->items[files->marker_count]->name) <= 1)
        files->marker_count++;
    if (!files->marker_count)
        files->marker_count = 1; /* a form without a file that is written last: it lacks one of its files then */
}

typedef struct belongings {
    const tsr_run_file **files; /* all that are not directories */
    bool *owned;
    size_t count;
} belongings;

static tsr_status list_belongings(const pruning *p, const candidate *c, belongings *out)
{
    const tsr_run_checkpoint *checkpoint = c->checkpoint;
    out->files = tsr_arena_array(p->arena, c->to - c->from + 1, sizeof *out->files, p->err);
    out->owned = tsr_arena_array(p->arena, c->to - c->from + 1, sizeof *out->owned, p->err);
    tsr_str *names = tsr_arena_array(p->arena, c->to - c->from + 1, sizeof *names, p->err);
    if (!out->files || !out->owned || !names) return TSR_E_NOMEM;
    for (size_t i = c->from; i < c->to; i++) {
        const tsr_run_file *file = file_at(p, i);
        if (file->kind == TSR_RUN_DIRECTORY) continue;
        out->files[out->count] = file;
        names[out->count++] = checkpoint->is_file ? file->name
                                                  : (tsr_str){file->name.data + checkpoint->path.size + 1,
                                                              file->name.size - checkpoint->path.size - 1};
    }
    for (size_t f = 0; f < checkpoint->file_count && out->count; f++) {
        const tsr_run_file wanted = {.name = checkpoint->files[f]}, *key = &wanted;
        const tsr_run_file **found = bsearch(&key, (void *)out->files, out->count, sizeof *out->files, by_name_of);
        if (found) out->owned[found - out->files] = true;
    }
    if (!checkpoint->is_file) tsr_run_own_companions(names, out->count, out->owned);
    return TSR_OK;
}

/* Why a whole directory cannot be removed; empty if it can. */
static tsr_status refuse_whole(const pruning *p, const candidate *c, const belongings *all, tsr_str *why)
{
    *why = c->checkpoint->is_file ? TSR_STR("the checkpoint is a file") : TSR_STR("");
    for (size_t i = c->from; i < c->to; i++)
        if (file_at(p, i)->is_mount)
            *why = tsr_arena_format(p->arena, p->err, "something is mounted at '%.*s'", TSR_STR_ARG(file_at(p, i)->name));
    for (size_t i = 0; i < all->count && !why->size; i++)
        if (!all->owned[i] && all->files[i]->kind == TSR_RUN_FILE && tsr_is_run_marker(all->files[i]->name))
            *why = tsr_arena_format(p->arena, p->err, "the directory contains another checkpoint, with '%.*s'",
                                    TSR_STR_ARG(all->files[i]->name));
    return why->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status list_removed(const pruning *p, const candidate *c, tsr_pruned *out, file_list *files)
{
    belongings all = {.count = 0};
    *out = (tsr_pruned){.left_because = TSR_STR("")};
    TSR_TRY(list_belongings(p, c, &all));
    tsr_str *left = tsr_arena_array(p->arena, all.count + 1, sizeof *left, p->err);
    *files = (file_list){tsr_arena_array(p->arena, all.count + 1, sizeof *files->items, p->err), 0, 0};
    if (!left || !files->items) return TSR_E_NOMEM;
    if (p->options->whole_directory) TSR_TRY(refuse_whole(p, c, &all, &out->left_because));
    const bool is_whole = p->options->whole_directory && !out->left_because.size;
    for (size_t i = 0; i < all.count; i++)
        if (all.owned[i]) files->items[files->count++] = all.files[i];
    sort_files(files);
    for (size_t i = 0; i < all.count; i++) {
        if (all.owned[i]) continue;
        if (is_whole) files->items[files->count++] = all.files[i];
        else if (!c->checkpoint->is_file) left[out->left_count++] = all.files[i]->name;
    }
    out->left = left;
    out->path = c->checkpoint->path;
    out->has_step = c->checkpoint->has_step;
    out->step = c->checkpoint->step;
    out->because = c->because;
    out->error = c->checkpoint->error;
    out->files = files->count;
    for (size_t i = 0; i < files->count; i++)
        if (files->items[i]->kind == TSR_RUN_FILE) out->bytes += files->items[i]->size;
    return TSR_OK;
}

static tsr_status list_unfinished(const pruning *p, const recorded *own, tsr_pruned *out, file_list *files)
{
    size_t from, to;
    *files = own->files;
    *out = (tsr_pruned){.path = own->path,
                        .has_step = own->has_step,
                        .step = own->step,
                        .because = TSR_PRUNED_UNFINISHED,
                        .error = TSR_STR(""),
                        .left_because = TSR_STR(""),
                        .files = files->count};
    for (size_t i = 0; i < files->count; i++)
        out->bytes += files->items[i]->kind == TSR_RUN_FILE ? files->items[i]->size : 0;
    find_range(p, own->path, &from, &to);
    tsr_str *left = tsr_arena_array(p->arena, to - from + 1, sizeof *left, p->err);
    bool *is_listed = tsr_arena_array(p->arena, to - from + 1, sizeof *is_listed, p->err);
    if (!left || !is_listed) return TSR_E_NOMEM;
    for (size_t i = 0; i < files->count; i++) is_listed[files->items[i] - file_at(p, from)] = true;
    for (size_t i = from; i < to; i++)
        if (!is_listed[i - from] && file_at(p, i)->kind != TSR_RUN_DIRECTORY) left[out->left_count++] = file_at(p, i)->name;
    out->left = left;
    return TSR_OK;
}

/* ---- which ones are kept ---- */

static void keep(candidate *c, tsr_str reason)
{
    c->is_removed = false;
    c->reason = reason;
}

static bool is_settled(const pruning *p, const candidate *c)
{
    for (size_t i = c->from; i < c->to; i++) {
        const tsr_run_file *file = file_at(p, i);
        const bool counts = file->kind == TSR_RUN_FILE || file->kind == TSR_RUN_OTHER;
        if (counts && file->seconds > p->now - SETTLED_SECONDS) return false;
    }
    return true;
}

static bool is_readable(const pruning *p, const candidate *c)
{
    for (size_t i = c->from; i < c->to; i++)
        if (file_at(p, i)->is_unreadable) return false;
    return true;
}

static bool is_older(const tsr_run_checkpoint *a, const tsr_run_checkpoint *b)
{
    return a->step != b->step ? a->step < b->step : a->version < b->version;
}

static tsr_status decide(pruning *p, candidate *c, const tsr_run_checkpoint *newest, uint64_t *kept,
                         const tsr_run_checkpoint **last)
{
    const tsr_run_checkpoint *own = c->checkpoint;
    const tsr_prune_options *options = p->options;
    const bool is_valid = !own->error.size;
    keep(c, TSR_STR(""));
    if (!own->has_step) {
        keep(c, TSR_STR("it has no step below 2^64"));
    } else if (is_valid && (*kept < options->keep || !is_older(own, *last))) {
        *kept += 1;
        *last = own;
        c->is_asked = true;
        keep(c, *kept == 1 ? TSR_STR("it is the newest valid one") : TSR_STR("it is one of the newest valid ones"));
    } else if (is_valid && options->keep_every && own->step % options->keep_every == 0) {
        c->is_asked = true;
        keep(c, tsr_arena_format(p->arena, p->err, "its step is a multiple of %" PRIu64, options->keep_every));
    } else if (!is_valid && own->is_unknown) {
        keep(c, tsr_arena_format(p->arena, p->err, "whether it would load is not known: %.*s", TSR_STR_ARG(own->error)));
    } else if (!is_valid && own->is_unmarked) {
        keep(c,
             tsr_arena_format(p->arena, p->err, "it has no marker, so it may be unfinished: %.*s", TSR_STR_ARG(own->error)));
    } else if (!is_valid && !is_older(own, newest)) {
        keep(c, tsr_arena_format(p->arena, p->err, "it has errors, and is not older than the newest valid one: %.*s",
                                 TSR_STR_ARG(own->error)));
    } else if (!is_readable(p, c)) {
        keep(c, TSR_STR("a directory in it cannot be read"));
    } else if (!is_settled(p, c)) {
        keep(c, TSR_STR("it was changed in the last ten minutes"));
    } else {
        c->is_removed = true;
        c->because = is_valid ? TSR_PRUNED_OLDER : TSR_PRUNED_DAMAGED;
    }
    return c->is_removed || c->reason.data ? TSR_OK : TSR_E_NOMEM;
}

/* ---- what refers to a checkpoint ---- */

/* Whether a tracker's text is only the number of a step, as Megatron and verl write it. */
static bool is_number(tsr_str text, uint64_t *number)
{
    size_t at = 0;
    *number = 0;
    while (text.size && strchr(" \t\r\n", text.data[text.size - 1])) text.size--;
    for (; at < text.size && at < 19 && tsr_is_digit(text.data[at]); at++)
        *number = *number * 10 + (uint64_t)(text.data[at] - '0');
    return at && at == text.size;
}

static tsr_status keep_mentioned(pruning *p, candidate *c, tsr_str own, const char *how, bool *changed)
{
    const bool is_itself = own.size && (tsr_str_equal(own, c->checkpoint->path) || is_below(own, c->checkpoint->path));
    if (!c->is_removed || is_itself) return TSR_OK;
    keep(c, tsr_arena_format(p->arena, p->err, "'%.*s' %s", TSR_STR_ARG(own), how));
    *changed = true;
    return c->reason.data ? TSR_OK : TSR_E_NOMEM;
}

/* Whether a path or a name in a text may end before, or begin behind, this character. */
static bool ends_name(char c)
{
    return memchr("/\\'\" \t\r\n", c, 9); /* and the end of a text in C */
}

/* Keeps what a text names, which is in the file or checkpoint `own`: the checkpoints whose last part of the path it contains as a whole, and
 * not next to other characters of a name. */
static tsr_status keep_named(pruning *p, tsr_str text, tsr_str own, const char *how, bool *changed)
{
    for (size_t at = 0; at < text.size; at++) {
        if (at && !ends_name(text.data[at - 1])) continue;
        for (size_t size = p->shortest; size <= p->longest && size <= text.size - at; size++) {
            if (size < text.size - at && !ends_name(text.data[at + size])) continue;
            uint32_t i = tsr_map_get(p->names, (tsr_str){text.data + at, size}, NONE);
            for (; i != NONE; i = p->candidates[i].next_same)
                TSR_TRY(keep_mentioned(p, &p->candidates[i], own, how, changed));
        }
    }
    return TSR_OK;
}

/* Keeps what a tracker file names. The candidates are sorted by their steps, the newest first. */
static tsr_status keep_tracked(pruning *p, tsr_str text, tsr_str own, bool *changed)
{
    uint64_t number;
    size_t from = 0, to = p->count;
    TSR_TRY(keep_named(p, text, own, "names it", changed));
    if (!is_number(text, &number)) return TSR_OK;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (p->candidates[middle].checkpoint->step > number) from = middle + 1;
        else to = middle;
    }
    for (; from < p->count && p->candidates[from].checkpoint->step == number; from++)
        TSR_TRY(keep_mentioned(p, &p->candidates[from], own, "names it", changed));
    return TSR_OK;
}

static tsr_status keep_target(pruning *p, const tsr_run_file *link, bool *changed)
{
    for (tsr_str path = link->target; path.size; path = directory_of(path)) {
        const uint32_t i = tsr_map_get(p->paths, path, NONE);
        candidate *c = i == NONE ? NULL : &p->candidates[i];
        if (!c || !c->is_removed || is_below(link->name, path)) continue;
        keep(c, tsr_arena_format(p->arena, p->err, "the symbolic link '%.*s' leads to it", TSR_STR_ARG(link->name)));
        *changed = true;
        if (!c->reason.data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* Files in which programs remember a checkpoint: DeepSpeed's latest, latest_checkpointed_iteration.txt of Megatron and verl,
 * dlrover_latest.txt, LATEST.txt and LOWEST_VAL.txt of Automodel, last_checkpoint, best.txt. */
static bool is_tracker(const tsr_run_file *file)
{
    static const char *const words[] = {"latest", "LATEST", "last", "best", "LOWEST_VAL", "tracker"};
    bool is = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        is = is || tsr_str_contains(last_part(file->name), tsr_str_from(words[i]));
    return is && file->kind == TSR_RUN_FILE && file->size && file->size <= MOST_TRACKER;
}

/* The value of "best_model_checkpoint" in a Trainer's state that is not in a step. */
static tsr_str best_in(tsr_str text)
{
    const tsr_str key = TSR_STR("\"best_model_checkpoint\"");
    for (size_t at = 0; at + key.size <= text.size; at++) {
        if (memcmp(text.data + at, key.data, key.size) != 0) continue;
        size_t end = at + key.size;
        while (end < text.size && text.data[end] != ',' && text.data[end] != '\n') end++;
        return (tsr_str){text.data + at + key.size, end - at - key.size};
    }
    return TSR_STR("");
}

/* Transformers follows paths in an index of shards, such as "../checkpoint-1/model-00001-of-00002.safetensors". Most have none. */
static bool may_be_index(const tsr_run_file *file)
{
    return file->kind == TSR_RUN_FILE && file->size <= MOST_STATE && tsr_str_ends(file->name, TSR_STR(".index.json"));
}

/* One round over everything that may refer to a checkpoint. What is in a checkpoint that is removed does not count. */
static tsr_status keep_referenced(pruning *p, bool *changed)
{
    *changed = false;
    for (size_t i = 0; i < p->files.count; i++) {
        const tsr_run_file *file = file_at(p, i);
        const bool is_state = file->kind == TSR_RUN_FILE && file->size <= MOST_STATE &&
                              tsr_str_equal(last_part(file->name), TSR_STR("trainer_state.json"));
        const bool is_link = file->kind == TSR_RUN_LINK && file->target.size;
        const bool is_index = may_be_index(file);
        if (!is_link && !is_index && !is_tracker(file) && !is_state) continue;
        const candidate *holder = p->holders[i];
        tsr_str text;
        if ((holder && (holder->is_removed || is_state)) || is_in_unfinished(p, file->name)) continue;
        if (is_link) {
            TSR_TRY(keep_target(p, file, changed));
            continue;
        }
        TSR_TRY(p->place->read(p->place, file, is_state || is_index ? MOST_STATE : MOST_TRACKER, p->arena, &text, p->err));
        if (is_state) TSR_TRY(keep_named(p, best_in(text), file->name, "refers to it", changed));
        else if (!is_index) TSR_TRY(keep_tracked(p, text, file->name, changed));
        else if (memchr(text.data, '/', text.size)) TSR_TRY(keep_named(p, text, file->name, "refers to it", changed));
    }
    for (size_t i = 0; i < p->count; i++) {
        const tsr_run_checkpoint *own = p->candidates[i].checkpoint;
        for (size_t r = 0; r < own->reference_count && !p->candidates[i].is_removed; r++)
            TSR_TRY(keep_named(p, own->references[r], own->path, "refers to it", changed));
    }
    return TSR_OK;
}

/* ---- the plan ---- */

/* Steps of two runs are not newer or older than each other. */
static tsr_status refuse_several_runs(const pruning *p)
{
    const tsr_run_checkpoint *first = NULL;
    for (size_t i = 0; i < p->count; i++) {
        const tsr_run_checkpoint *own = p->candidates[i].checkpoint;
        if (!own->holds_checkpoint) continue;
        if (!first) first = own;
        TSR_FAIL_IF(!tsr_str_equal(first->run, own->run), p->err, TSR_E_USAGE,
                    "there are several runs, with '%.*s' and '%.*s'; name one of them", TSR_STR_ARG(first->path),
                    TSR_STR_ARG(own->path));
    }
    return TSR_OK;
}

/* Makes a candidate findable by its path and by the last part of it. */
static tsr_status note_candidate(pruning *p, candidate *c)
{
    const tsr_str path = c->checkpoint->path, name = last_part(path);
    const uint32_t index = (uint32_t)(c - p->candidates);
    uint32_t *same;
    bool is_new;
    c->next_same = NONE;
    TSR_TRY(tsr_map_put(p->paths, path, index, NULL, NULL, p->err));
    TSR_TRY(tsr_map_put(p->names, name, index, &same, &is_new, p->err));
    if (!is_new) {
        c->next_same = *same;
        *same = index;
    }
    if (name.size && (!p->shortest || name.size < p->shortest)) p->shortest = name.size;
    if (name.size > p->longest) p->longest = name.size;
    return TSR_OK;
}

static tsr_status choose(pruning *p)
{
    const tsr_run_checkpoint *newest = NULL, *last = NULL;
    uint64_t kept = 0;
    bool changed;
    p->candidates = tsr_arena_array(p->arena, p->checkpoints.count + 1, sizeof *p->candidates, p->err);
    p->holders = tsr_arena_array(p->arena, p->files.count + 1, sizeof *p->holders, p->err);
    p->paths = tsr_map_new(p->host->allocator, p->checkpoints.count, p->err);
    p->names = tsr_map_new(p->host->allocator, p->checkpoints.count, p->err);
    if (!p->candidates || !p->holders || !p->paths || !p->names) return TSR_E_NOMEM;
    for (size_t i = 0; i < p->checkpoints.count; i++) {
        const tsr_run_checkpoint *own = &p->checkpoints.items[i];
        if (is_through_link(p, own->path) || is_unfinished(p, own->path)) continue;
        candidate *c = &p->candidates[p->count];
        c->checkpoint = own;
        if (own->path.size) find_range(p, own->path, &c->from, &c->to);
        if (own->path.size && c->from == c->to) continue; /* it appeared after the files were listed */
        for (size_t f = c->from; f < c->to; f++)
            if (!p->holders[f]) p->holders[f] = c;
        TSR_TRY(note_candidate(p, c));
        p->count++;
        if (!newest && !own->error.size) newest = own;
    }
    TSR_TRY(refuse_several_runs(p));
    p->out->found_valid = newest != NULL;
    for (size_t i = 0; i < p->count && newest; i++) TSR_TRY(decide(p, &p->candidates[i], newest, &kept, &last));
    for (size_t i = 0; i < p->count && !newest; i++) keep(&p->candidates[i], p->candidates[i].checkpoint->error);
    do TSR_TRY(keep_referenced(p, &changed));
    while (changed);
    return TSR_OK;
}

static tsr_status fill(pruning *p, file_list **lists)
{
    tsr_prune_result *out = p->out;
    const size_t most = p->count + p->unfinished.count;
    out->removed = tsr_arena_array(p->arena, most + 1, sizeof *out->removed, p->err);
    out->kept = tsr_arena_array(p->arena, most + 1, sizeof *out->kept, p->err);
    *lists = tsr_arena_array(p->arena, most + 1, sizeof **lists, p->err);
    if (!out->removed || !out->kept || !*lists) return TSR_E_NOMEM;
    for (size_t i = 0; i < p->unfinished.count && out->found_valid; i++) {
        const size_t at = out->removed_count++;
        TSR_TRY(list_unfinished(p, ((const recorded *const *)p->unfinished.items)[i], &out->removed[at], &(*lists)[at]));
    }
    for (size_t i = 0; i < p->count; i++) {
        const candidate *c = &p->candidates[i];
        const tsr_run_checkpoint *own = c->checkpoint;
        const size_t at = out->removed_count;
        tsr_str reason = c->reason;
        if (c->is_removed) TSR_TRY(list_removed(p, c, &out->removed[at], &(*lists)[at]));
        if (c->is_removed && !(*lists)[at].count) reason = TSR_STR("none of its files is known to belong to it");
        if (c->is_removed && (*lists)[at].count) out->removed_count++;
        else
            out->kept[out->kept_count++] =
                (tsr_prune_kept){own->path, own->has_step, own->step, !own->error.size, c->is_asked, reason};
    }
    return TSR_OK;
}

/* ---- removing ---- */

static int deepest_first(const void *left, const void *right)
{
    return -by_name_of(left, right);
}

static tsr_status remove_directories(const pruning *p, tsr_str path)
{
    size_t from, to, count = 0;
    find_range(p, path, &from, &to);
    const tsr_run_file **found = tsr_arena_array(p->arena, to - from + 1, sizeof *found, p->err);
    if (!found) return TSR_E_NOMEM;
    for (size_t i = from; i < to; i++)
        if (file_at(p, i)->kind == TSR_RUN_DIRECTORY) found[count++] = file_at(p, i);
    if (count) qsort((void *)found, count, sizeof *found, deepest_first);
    for (size_t i = 0; i < count; i++) TSR_TRY(p->place->remove_directory(p->place, found[i]->name, p->err));
    return TSR_OK;
}

/* *is_kept is set if the checkpoint was written again. On a disk its marker decides, and files that were changed stay. */
static tsr_status remove_files(const pruning *p, tsr_str path, const file_list *files, bool *is_kept)
{
    bool is_same = true;
    if (p->place->check && files->count)
        TSR_TRY(p->place->check(p->place, path, files->items, files->count, &is_same, p->err));
    *is_kept = !is_same;
    if (!is_same) return TSR_OK;
    for (size_t i = 0; i < files->count; i++) {
        tsr_run_removal removal;
        TSR_TRY(p->place->remove(p->place, files->items[i], &removal, p->err));
        *is_kept = i == 0 && removal == TSR_RUN_CHANGED;
        if (*is_kept) return TSR_OK;
        if (i < files->marker_count) TSR_TRY(p->place->settle(p->place, files->items[i]->name, p->err));
        const size_t rest = i + 1;
        if (p->place->remove_all && rest >= files->marker_count)
            return p->place->remove_all(p->place, files->items + rest, files->count - rest, p->err);
    }
    return TSR_OK;
}

static tsr_status write_record(const pruning *p, const file_list *lists)
{
    tsr_vec text = tsr_vec_of(p->host->allocator, 1);
    tsr_status status = tsr_text_add(&text, TSR_STR(TSR_PRUNE_RECORD_HEAD), p->err);
    for (size_t i = 0; i < p->out->removed_count && status == TSR_OK; i++)
        status = put_record(p, &text, p->out->removed[i].path, &p->out->removed[i], &lists[i]);
    if (status == TSR_OK) status = put_line(&text, end_of(p, text.items, text.count), p->err);
    if (status == TSR_OK) status = p->place->write_record(p->place, (tsr_str){text.items, text.count}, p->err);
    tsr_vec_free(&text);
    return status;
}

/* Whether nothing of what a record lists is left; `removed` has the paths of this run. That of a process that has ended is not needed if all
 * that is left has its marker. */
static bool is_done(const pruning *p, const record *r, const tsr_map *removed)
{
    const recorded *items = r->items.items;
    if (p->place->is_abandoned && p->place->is_abandoned(p->place, r->file)) return true;
    for (size_t i = 0; i < r->items.count; i++)
        if (items[i].files.count && tsr_map_get(removed, items[i].path, NONE) == NONE) return false;
    return r->items.count > 0;
}

static tsr_status remove_records(const pruning *p)
{
    const record *records = p->records.items;
    tsr_map *removed = tsr_map_new(p->host->allocator, 0, p->err);
    tsr_status status = removed ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < p->out->removed_count && status == TSR_OK; i++)
        status = tsr_map_put(removed, p->out->removed[i].path, 0, NULL, NULL, p->err);
    for (size_t r = 0; r < p->records.count && p->out->found_valid && status == TSR_OK; r++) {
        tsr_run_removal unused;
        if (is_done(p, &records[r], removed)) status = p->place->remove(p->place, records[r].file, &unused, p->err);
    }
    tsr_map_free(removed);
    return status;
}

/* The record may go only after what it lists is gone for good. */
static tsr_status settle(const pruning *p, tsr_str path, const file_list *files)
{
    if (files->count) TSR_TRY(p->place->settle(p->place, files->items[files->count - 1]->name, p->err));
    return p->place->settle(p->place, path, p->err);
}

static tsr_status remove_all(const pruning *p, const file_list *lists)
{
    tsr_prune_result *out = p->out;
    size_t count = 0;
    if (out->removed_count) TSR_TRY(write_record(p, lists));
    for (size_t i = 0; i < out->removed_count; i++) {
        bool is_kept;
        TSR_TRY(remove_files(p, out->removed[i].path, &lists[i], &is_kept));
        if (!is_kept) TSR_TRY(remove_directories(p, out->removed[i].path));
        if (!is_kept) TSR_TRY(settle(p, out->removed[i].path, &lists[i]));
        if (!is_kept) out->removed[count++] = out->removed[i];
        else
            out->kept[out->kept_count++] = (tsr_prune_kept){.path = out->removed[i].path,
                                                            .has_step = out->removed[i].has_step,
                                                            .step = out->removed[i].step,
                                                            .reason = TSR_STR("it was written again meanwhile")};
    }
    out->removed_count = count;
    TSR_TRY(remove_records(p));
    return p->place->drop_record(p->place, p->err);
}

/* ---- the run ---- */

static tsr_status judge(pruning *p, const char *run)
{
    tsr_store *store = NULL;
    tsr_status status = tsr_run_store_open(p->host, run, &store, p->err);
    if (status == TSR_OK) status = tsr_run_list(store, p->host, &p->options->judging, p->arena, &p->checkpoints, p->err);
    if (store) store->close(store);
    return status;
}

static tsr_status prune(pruning *p, const char *run)
{
    file_list *lists;
    /* The files are listed first: what was changed since is found to be changed when it is removed. */
    TSR_TRY(p->place->list(p->place, p->arena, &p->files, &p->now, p->err));
    if (p->files.count) qsort(p->files.items, p->files.count, sizeof(tsr_run_file), by_name);
    TSR_TRY(read_records(p));
    TSR_TRY(judge(p, run));
    p->out->unlisted = p->checkpoints.unlisted;
    p->out->unlisted_why = p->checkpoints.unlisted_why;
    TSR_TRY(choose(p));
    TSR_TRY(fill(p, &lists));
    return p->options->dry_run ? TSR_OK : remove_all(p, lists);
}

tsr_status tsr_prune_run(const tsr_host *host, const char *run, const tsr_prune_options *options, tsr_arena *arena,
                         tsr_prune_result *out, tsr_error *err)
{
    tsr_prune_options chosen;
    tsr_store *unlistable;
    *out = (tsr_prune_result){.found_valid = false};
    TSR_TRY(TSR_OPTIONS_COPY(&chosen, options, tsr_prune_options, err));
    TSR_FAIL_IF(!chosen.keep, err, TSR_E_USAGE, "at least the newest valid checkpoint is kept");
    if (tsr_is_url(run) && !tsr_is_object_url(run)) return tsr_run_store_open(host, run, &unlistable, err);
    pruning p = {.host = host,
                 .options = &chosen,
                 .arena = arena,
                 .files = tsr_vec_of(host->allocator, sizeof(tsr_run_file)),
                 .records = tsr_vec_of(host->allocator, sizeof(record)),
                 .unfinished = tsr_vec_of(host->allocator, sizeof(const recorded *)),
                 .out = out,
                 .err = err};
    out->dry_run = chosen.dry_run;
    tsr_status status = tsr_is_object_url(run) ? tsr_object_run_open(host, run, chosen.dry_run, &p.place, err)
                                               : tsr_directory_run_open(host, run, chosen.dry_run, &p.place, err);
    if (status == TSR_OK) status = prune(&p, run);
    if (p.place) p.place->close(p.place);
    record *records = p.records.items;
    for (size_t r = 0; r < p.records.count; r++) tsr_vec_free(&records[r].items);
    tsr_vec_free(&p.records);
    tsr_vec_free(&p.unfinished);
    tsr_vec_free(&p.files);
    tsr_map_free(p.unfinished_paths);
    tsr_map_free(p.paths);
    tsr_map_free(p.names);
    return status;
}
