/* See record.h. */
#include "publish/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "io/sys.h"
#include "publish/destination.h"
#include "publish/text.h"
#include "tessera/memory.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#define MAGIC "tessera.publishing/2\n"

static const char *const kinds[] = {"file ", "new ", "swap ", "into ", "move "};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- text ---- */

static tsr_status put_identity(const tsr_identity *id, tsr_vec *text, tsr_error *err)
{
    char line[128];
    const int size = snprintf(line, sizeof line, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, id->device,
                              id->inode, id->size, id->seconds, id->nanoseconds);
    return tsr_text_add(text, (tsr_str){line, (size_t)size}, err);
}

static tsr_status put_file(const tsr_recorded_file *file, tsr_vec *text, tsr_error *err)
{
    TSR_TRY(tsr_text_add(text, file->old ? TSR_STR("old ") : TSR_STR("new "), err));
    TSR_TRY(put_identity(&file->identity, text, err));
    TSR_TRY(tsr_text_add(text, TSR_STR(" "), err));
    TSR_TRY(tsr_text_add(text, file->name, err));
    return tsr_text_add(text, TSR_STR("\n"), err);
}

tsr_status tsr_record_put(const tsr_record *record, tsr_vec *text, tsr_error *err)
{
    char line[64];
    TSR_TRY(tsr_text_add(text, TSR_STR(MAGIC), err));
    TSR_TRY(tsr_text_add(text, tsr_str_from(kinds[record->kind]), err));
    TSR_TRY(tsr_text_add(text, record->marker, err));
    snprintf(line, sizeof line, "\nbeside %" PRIu64 "\nidentity ", record->device);
    TSR_TRY(tsr_text_add(text, tsr_str_from(line), err));
    TSR_TRY(put_identity(&record->identity, text, err));
    TSR_TRY(tsr_text_add(text, TSR_STR("\n"), err));
    for (size_t i = 0; i < record->count; i++) TSR_TRY(put_file(&record->files[i], text, err));
    return tsr_text_add(text, TSR_STR("\n"), err);
}

static bool parse_number(tsr_str *text, uint64_t *out)
{
    size_t digits = 0;
    *out = 0;
    for (; digits < text->size && tsr_is_digit(text->data[digits]); digits++)
        *out = *out * 10 + (uint64_t)(text->data[digits] - '0');
    *text = tsr_str_after(*text, digits);
    return digits > 0 && digits <= 20;
}

static bool parse_identity(tsr_str *text, tsr_identity *out)
{
    uint64_t *const numbers[] = {&out->device, &out->inode, &out->size, &out->seconds, &out->nanoseconds};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (i && !tsr_text_has_key(*text, TSR_STR(" "), text)) return false;
        if (!parse_number(text, numbers[i])) return false;
    }
    return true;
}

static bool parse_file(tsr_str line, tsr_recorded_file *out)
{
    tsr_str rest;
    out->old = tsr_text_has_key(line, TSR_STR("old "), &rest);
    if (!out->old && !tsr_text_has_key(line, TSR_STR("new "), &rest)) return false;
    if (!parse_identity(&rest, &out->identity) || !tsr_text_has_key(rest, TSR_STR(" "), &out->name)) return false;
    return out->name.size <= NAME_MAX && tsr_is_name_below(out->name, NAME_MAX);
}

static bool parse_head(tsr_str *text, tsr_record *out)
{
    if (!tsr_str_skip(text, TSR_STR(MAGIC))) return false;
    const tsr_str kind = tsr_str_take(text, '\n'), beside = tsr_str_take(text, '\n'), identity = tsr_str_take(text, '\n');
    size_t k = 0;
    while (k < KINDS && !tsr_text_has_key(kind, tsr_str_from(kinds[k]), &out->marker)) k++;
    out->kind = (tsr_switch)k;
    tsr_str device, id;
    return k < KINDS && tsr_text_has_key(beside, TSR_STR("beside "), &device) && parse_number(&device, &out->device) &&
           tsr_text_has_key(identity, TSR_STR("identity "), &id) && parse_identity(&id, &out->identity);
}

bool tsr_record_parse(tsr_str text, tsr_arena *arena, tsr_record *out)
{
    *out = (tsr_record){0};
    if (!parse_head(&text, out)) return false;
    size_t lines = 0;
    for (size_t i = 0; i < text.size; i++) lines += text.data[i] == '\n';
    tsr_recorded_file *files = tsr_arena_array(arena, lines + 1, sizeof *files, NULL);
    out->files = files;
    if (!files) return false;
    while (text.size) {
        const tsr_str line = tsr_str_take(&text, '\n');
        if (line.size == 0) return text.size == 0;
        if (!parse_file(line, &files[out->count++])) return false;
    }
    return false; /* the empty line at the end is missing */
}

/* ---- names ---- */

tsr_status tsr_remove_name(const tsr_sys *sys, int directory, const char *name, bool is_directory, tsr_error *err)
{
    int done;
    do done = sys->unlink(sys, directory, name, is_directory);
    while (done != 0 && errno == EINTR);
    return done == 0 || errno == ENOENT || errno == ENOTDIR ? TSR_OK : tsr_sys_raise(tsr_naming(err), "remove", name);
}

tsr_status tsr_each_name(const tsr_sys *sys, int parent, const char *directory,
                         tsr_status (*each)(void *ctx, int directory, const char *name, tsr_error *err), void *ctx,
                         tsr_error *err)
{
    const int fd = tsr_sys_open(sys, parent, directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? TSR_OK
                                                                     : tsr_sys_raise(tsr_naming(err), "list", directory);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        sys->close(sys, fd);
        return tsr_sys_raise(tsr_naming(err), "list", directory);
    }
    tsr_status status = TSR_OK;
    for (struct dirent *item; status == TSR_OK && (item = readdir(dir));) {
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0) status = each(ctx, fd, item->d_name, err);
    }
    closedir(dir);
    return status;
}

int tsr_open_parent(const tsr_sys *sys, int directory, const char **name)
{
    char part[NAME_MAX + 1];
    int at = directory;
    for (const char *slash; at >= 0 && (slash = strchr(*name, '/')) != NULL; *name = slash + 1) {
        const int from = at;
        snprintf(part, sizeof part, "%.*s", (int)(slash - *name), *name);
        at = tsr_sys_open(sys, from, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
        if (from != directory) sys->close(sys, from);
    }
    return at;
}

void tsr_remove_parents(const tsr_sys *sys, int directory, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", name);
    for (char *slash; (slash = strrchr(path, '/')) != NULL;) {
        *slash = '\0';
        const char *last = path;
        const int parent = tsr_open_parent(sys, directory, &last);
        if (parent < 0) continue;
        sys->unlink(sys, parent, last, true);
        if (parent != directory) sys->close(sys, parent);
    }
}

/* Copies a recorded name and terminates it. */
static const char *name_of(const tsr_recorded_file *file, char name[NAME_MAX + 1])
{
    memcpy(name, file->name.data, file->name.size);
    name[file->name.size] = '\0';
    return name;
}

/* Whether a file is the one that was recorded. Device numbers can be compared only if that of the record's own directory has
 * not changed. */
static bool is_identical(const tsr_record *record, const tsr_journals *journals, const tsr_identity *then,
                         const struct stat *info)
{
    struct stat beside;
    const bool comparable =
        journals->sys->stat(journals->sys, journals->directory, &beside) == 0 && (uint64_t)beside.st_dev == record->device;
    return tsr_identity_is(then, info, comparable);
}

/* Whether a name in `directory` is still the file that was recorded. */
static bool is_there(const tsr_record *record, const tsr_journals *journals, int directory, const tsr_recorded_file *file)
{
    char name[NAME_MAX + 1];
    struct stat info;
    return journals->sys->link_stat_at(journals->sys, directory, name_of(file, name), &info) == 0 &&
           is_identical(record, journals, &file->identity, &info);
}

/* ---- what is done ---- */

/* How many of the new files have their names in the destination. *all is the number of new files. */
static size_t count_new(const tsr_record *record, const tsr_journals *journals, int directory, size_t *all)
{
    size_t found = 0;
    *all = 0;
    for (size_t i = 0; i < record->count; i++) {
        if (record->files[i].old) continue;
        found += is_there(record, journals, directory, &record->files[i]);
        ++*all;
    }
    return found;
}

static bool is_switched(const tsr_record *record, const tsr_journals *journals, int directory)
{
    struct stat info;
    size_t all;
    const tsr_recorded_file marker = {record->marker, record->identity, false};
    const bool into = record->kind == TSR_SWITCH_MARKER || record->kind == TSR_SWITCH_MOVE;
    if (into && marker.name.size) return is_there(record, journals, directory, &marker);
    const size_t found = count_new(record, journals, directory, &all);
    if (into) return found == all;
    /* It must be the directory that was made. Another one that reuses its inode number contains none of the new files. */
    return journals->sys->stat(journals->sys, directory, &info) == 0 &&
           is_identical(record, journals, &record->identity, &info) && (found > 0 || all == 0);
}

bool tsr_record_is_published(const tsr_record *record, const tsr_journals *journals)
{
    struct stat info;
    const tsr_sys *sys = journals->sys;
    if (record->kind == TSR_SWITCH_FILE)
        return sys->link_stat_at(sys, journals->directory, journals->name, &info) == 0 &&
               is_identical(record, journals, &record->identity, &info);
    const int directory = tsr_journals_open_destination(journals);
    const bool published = directory >= 0 && is_switched(record, journals, directory);
    if (directory >= 0) sys->close(sys, directory);
    return published;
}

tsr_status tsr_record_written(const tsr_record *record, const tsr_journals *journals, tsr_arena *arena,
                              const tsr_str **names, size_t *count, tsr_error *err)
{
    tsr_str *list = tsr_arena_array(arena, record->count, sizeof *list, err);
    const int directory = tsr_journals_open_destination(journals);
    *names = list;
    *count = 0;
    for (size_t i = 0; list && directory >= 0 && i < record->count; i++)
        if (!record->files[i].old && is_there(record, journals, directory, &record->files[i]))
            list[(*count)++] = record->files[i].name;
    if (directory >= 0) journals->sys->close(journals->sys, directory);
    return list ? TSR_OK : TSR_E_NOMEM;
}

/* A map from the names of the recorded old or new files to their numbers. */
static tsr_status map_names(const tsr_record *record, bool old, tsr_map **out, tsr_error *err)
{
    *out = tsr_map_new(&tsr_allocator_libc, record->count, err);
    tsr_status status = *out ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < record->count && status == TSR_OK; i++)
        if (record->files[i].old == old) status = tsr_map_put(*out, record->files[i].name, (uint32_t)i, NULL, NULL, err);
    if (status != TSR_OK) tsr_map_free(*out);
    return status;
}

/* Removes the recorded old or new files that are still in the destination. An old file whose name a new one has got was replaced, unless
 * all of them were to be removed first. */
static tsr_status remove_files(const tsr_record *record, const tsr_journals *journals, bool old, tsr_error *err)
{
    char name[NAME_MAX + 1];
    tsr_map *new;
    TSR_TRY(map_names(record, false, &new, err));
    const int directory = tsr_journals_open_destination(journals);
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < record->count && status == TSR_OK && directory >= 0; i++) {
        const tsr_recorded_file *f = &record->files[i];
        const bool replaced = old && record->kind != TSR_SWITCH_MOVE && tsr_map_get(new, f->name, UINT32_MAX) != UINT32_MAX;
        if (f->old != old || replaced) continue;
        if (is_there(record, journals, directory, f))
            status = tsr_remove_name(journals->sys, directory, name_of(f, name), false, err);
        if (record->kind == TSR_SWITCH_MOVE) tsr_remove_parents(journals->sys, directory, name_of(f, name));
    }
    tsr_map_free(new);
    if (directory < 0) return TSR_OK;
    /* Before the record is removed. */
    if (status == TSR_OK) status = tsr_sys_sync(journals->sys, directory, journals->name, err);
    journals->sys->close(journals->sys, directory);
    return status;
}

typedef struct recorded {
    const tsr_record *record;
    const tsr_journals *journals;
    const tsr_map *old;
} recorded;

static bool is_recorded_old(const void *ctx, const char *name, const struct stat *info)
{
    const recorded *r = ctx;
    const uint32_t at = tsr_map_get(r->old, tsr_str_from(name), UINT32_MAX);
    return at != UINT32_MAX && is_identical(r->record, r->journals, &r->record->files[at].identity, info);
}

/* Gives the file that is published after the destination its final name. It replaces only the file that had this name when
 * the publication was recorded. */
static tsr_status end_companion(const tsr_record *record, const tsr_recorded_file *file, const tsr_journals *journals,
                                const char *tag, tsr_error *err)
{
    char name[NAME_MAX + 1], temporary[NAME_MAX + 1 + 64], stem[TSR_STEM_SIZE + 1];
    struct stat info;
    const tsr_sys *sys = journals->sys;
    bool replaces = false;
    for (size_t i = 0; i < record->count; i++)
        replaces |= record->files[i].old && is_there(record, journals, journals->directory, &record->files[i]);
    snprintf(temporary, sizeof temporary, ".%s.tessera-%s", tsr_stem_of(name_of(file, name), stem), tag);
    if (sys->link_stat_at(sys, journals->directory, temporary, &info) != 0 ||
        !is_identical(record, journals, &file->identity, &info))
        return TSR_OK;
    int done;
    do done = (replaces ? sys->rename : sys->rename_new)(sys, journals->directory, temporary, journals->directory, name);
    while (done != 0 && errno == EINTR);
    if (done != 0 && errno != EEXIST) return tsr_sys_raise(tsr_naming(err), "give its name to", name);
    return tsr_sys_sync(sys, journals->directory, name, err);
}

static tsr_status end_companions(const tsr_record *record, const tsr_journals *journals, const char *tag, tsr_error *err)
{
    for (size_t i = 0; i < record->count; i++) {
        const tsr_recorded_file *f = &record->files[i];
        if (!f->old && !tsr_str_equal(f->name, tsr_str_from(journals->name)))
            TSR_TRY(end_companion(record, f, journals, tag, err));
    }
    return TSR_OK;
}

tsr_status tsr_record_end(const tsr_record *record, const tsr_journals *journals, const char *tag, tsr_error *err)
{
    char retired[NAME_MAX + 1 + 64], stem[TSR_STEM_SIZE + 1];
    if (record->kind == TSR_SWITCH_MARKER || record->kind == TSR_SWITCH_MOVE)
        return remove_files(record, journals, true, err);
    if (record->kind == TSR_SWITCH_FILE) return end_companions(record, journals, tag, err);
    if (record->kind != TSR_SWITCH_DIRECTORIES) return TSR_OK;
    snprintf(retired, sizeof retired, ".%s.tessera-%s", tsr_stem_of(journals->name, stem), tag);
    tsr_map *names;
    TSR_TRY(map_names(record, true, &names, err));
    const recorded old = {record, journals, names};
    const tsr_status status = tsr_retire_directory(journals->sys, journals->directory, retired, journals->name,
                                                   (tsr_obsolete_test){is_recorded_old, &old}, err);
    tsr_map_free(names);
    return status;
}

/* Whether there is an old checkpoint that is still whole: its first file is removed before all others. */
static bool keeps_old(const tsr_record *record, const tsr_journals *journals)
{
    const int directory = tsr_journals_open_destination(journals);
    size_t i = 0;
    while (i < record->count && !record->files[i].old) i++;
    const bool kept = directory >= 0 && i < record->count && is_there(record, journals, directory, &record->files[i]);
    if (directory >= 0) journals->sys->close(journals->sys, directory);
    return kept;
}

tsr_status tsr_record_undo(const tsr_record *record, const tsr_journals *journals, tsr_error *err)
{
    const bool moves = record->kind == TSR_SWITCH_MOVE;
    if (moves && keeps_old(record, journals)) return TSR_OK;
    if (moves) TSR_TRY(remove_files(record, journals, true, err));
    return moves || record->kind == TSR_SWITCH_MARKER ? remove_files(record, journals, false, err) : TSR_OK;
}

/* ---- a directory that was replaced ---- */

typedef struct retiring {
    const tsr_sys *sys;
    int replacing;
    tsr_obsolete_test test;
    const char *subdirectory;
} retiring;

/* Removes a file in a subdirectory if it is obsolete. */
static tsr_status retire_inner(void *ctx, int directory, const char *name, tsr_error *err)
{
    const retiring *r = ctx;
    struct stat info;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", r->subdirectory, name);
    const bool obsolete =
        r->sys->link_stat_at(r->sys, directory, name, &info) == 0 && r->test.is_obsolete(r->test.ctx, path, &info);
    return obsolete ? tsr_remove_name(r->sys, directory, name, false, err) : TSR_OK;
}

/* Sets *gone if the subdirectory is removed, because nothing else was in it. */
static tsr_status retire_subdirectory(const retiring *r, int directory, const char *name, bool *gone, tsr_error *err)
{
    retiring inner = *r;
    inner.subdirectory = name;
    TSR_TRY(tsr_each_name(r->sys, directory, name, retire_inner, &inner, err));
    *gone = r->sys->unlink(r->sys, directory, name, true) == 0;
    return TSR_OK;
}

static tsr_status retire_file(void *ctx, int directory, const char *name, tsr_error *err)
{
    const retiring *r = ctx;
    struct stat old, new;
    bool gone = false;
    int done;
    if (r->sys->link_stat_at(r->sys, directory, name, &old) != 0)
        return errno == ENOENT ? TSR_OK : tsr_sys_raise(tsr_naming(err), "look at", name);
    if (S_ISDIR(old.st_mode)) TSR_TRY(retire_subdirectory(r, directory, name, &gone, err));
    if (gone) return TSR_OK;
    const bool twice = r->sys->link_stat_at(r->sys, r->replacing, name, &new) == 0 && tsr_is_one_file(&old, &new);
    if (twice || r->test.is_obsolete(r->test.ctx, name, &old)) return tsr_remove_name(r->sys, directory, name, false, err);
    do done = r->sys->rename_new(r->sys, directory, name, r->replacing, name);
    while (done != 0 && errno == EINTR);
    return done == 0 || errno == ENOENT ? TSR_OK : tsr_sys_raise(tsr_naming(err), "keep", name);
}

tsr_status tsr_retire_directory(const tsr_sys *sys, int parent, const char *retired, const char *replacing,
                                tsr_obsolete_test test, tsr_error *err)
{
    retiring r = {sys, tsr_sys_open(sys, parent, replacing, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0), test, NULL};
    if (r.replacing < 0) return tsr_sys_raise(tsr_naming(err), "open", replacing);
    tsr_status status = tsr_each_name(sys, parent, retired, retire_file, &r, err);
    sys->close(sys, r.replacing);
    return status == TSR_OK ? tsr_remove_name(sys, parent, retired, true, err) : status;
}
