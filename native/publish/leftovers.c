/* Lists and removes what earlier runs left next to a destination. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/sys.h"
#include "publish/destination.h"
#include "publish/directory_output.h"
#include "publish/record.h"
#include "publish/text.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/try.h"

static const char note[] = ".publishing";

/* ---- the place ---- */

/* Whether files can be created in the destination's parent. The first of them would be a hidden one, whose name means nothing to the
 * user. */
static tsr_status check_parent(const tsr_journals *j, const char *parent, tsr_error *err)
{
    struct stat info;
    if (faccessat(j->directory, ".", W_OK | X_OK, AT_EACCESS) == 0 || (errno != EACCES && errno != EROFS)) return TSR_OK;
    const char *why = errno == EROFS ? "the file system is read-only" : "permission denied";
    const bool exists = j->sys->link_stat_at(j->sys, j->directory, j->name, &info) == 0;
    return tsr_fail(tsr_naming(err), TSR_E_IO, "cannot write to the directory '%s'%s%s%s: %s", parent,
                    exists ? ", where '" : "", exists ? j->name : "", exists ? "' exists" : "", why);
}

tsr_status tsr_journals_open_at(const tsr_sys *sys, const tsr_allocator *allocator, const tsr_destination *place,
                                tsr_journals *out, tsr_error *err)
{
    *out = (tsr_journals){.sys = sys ? sys : &tsr_sys_posix, .allocator = allocator, .directory = -1, .held = -1};
    memcpy(out->name, place->name, sizeof place->name);
    out->directory = out->sys->open_at(out->sys, AT_FDCWD, place->parent, O_RDONLY | O_DIRECTORY, 0);
    return out->directory >= 0 ? check_parent(out, place->parent, err)
                               : tsr_sys_raise(tsr_naming(err), "open the directory", place->parent);
}

tsr_status tsr_journals_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *destination, tsr_journals *out,
                             tsr_error *err)
{
    tsr_destination place;
    *out = (tsr_journals){.directory = -1, .held = -1};
    TSR_TRY(tsr_destination_of(destination, &place, err));
    return tsr_journals_open_at(sys, allocator, &place, out, err);
}

void tsr_journals_close(tsr_journals *journals)
{
    if (journals->sys && journals->directory >= 0 && journals->held >= 0)
        journals->sys->close(journals->sys, journals->held);
    if (journals->sys && journals->directory >= 0) journals->sys->close(journals->sys, journals->directory);
    *journals = (tsr_journals){0};
}

/* ---- names ---- */

/* The rest of a name after ".NAME.tessera-TAG", and its tag; NULL for other names. */
static const char *behind_tag(const tsr_journals *journals, const char *name, char tag[TSR_JOURNAL_TAG_SIZE + 1])
{
    char start[TSR_STEM_SIZE + 16], stem[TSR_STEM_SIZE + 1];
    snprintf(start, sizeof start, ".%s.tessera-w", tsr_stem_of(journals->name, stem));
    const size_t size = strlen(start);
    if (strncmp(name, start, size) != 0 || strspn(name + size, "0123456789abcdef") != TSR_JOURNAL_TAG_SIZE - 1) return NULL;
    memcpy(tag, name + size - 1, TSR_JOURNAL_TAG_SIZE);
    tag[TSR_JOURNAL_TAG_SIZE] = '\0';
    const char *rest = name + size + TSR_JOURNAL_TAG_SIZE - 1;
    return *rest == '\0' || *rest == '.' ? rest : NULL;
}

/* Parses ".2-of-8" or ".2-by-8". */
static bool is_part(const char *rest, tsr_leftover *out)
{
    char *end;
    if (*rest != '.') return false;
    out->share = strtoull(rest + 1, &end, 10);
    out->by_ranks = strncmp(end, "-by-", 4) == 0;
    if (!out->by_ranks && strncmp(end, "-of-", 4) != 0) return false;
    out->shares = strtoull(end + 4, &end, 10);
    return *end == '\0' && out->share >= 1 && out->share <= out->shares;
}

/* ---- listing ---- */

typedef struct listing {
    const tsr_journals *journals;
    tsr_arena *arena;
    tsr_vec found; /* of tsr_leftover */
} listing;

static void split_text(tsr_leftover *l, tsr_str bytes)
{
    for (size_t i = 1; i < bytes.size; i++) {
        if (bytes.data[i - 1] != '\n' || bytes.data[i] != '\n') continue;
        l->text = (tsr_str){bytes.data, i};
        l->records = tsr_str_after(bytes, i + 1);
        return;
    }
}

/* Reads a file into out->text and finds out whether somebody has locked it. *ours is false if it is not a regular file of
 * this user. */
static tsr_status read_own(const listing *l, int directory, const char *name, tsr_leftover *out, bool *ours, tsr_error *err)
{
    const tsr_sys *sys = l->journals->sys;
    struct stat info;
    const int fd = tsr_sys_open(sys, directory, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK, 0);
    *ours = fd >= 0 && tsr_is_own_file(sys, fd);
    if (fd < 0)
        return errno == EIO || errno == ENFILE || errno == EMFILE ? tsr_sys_raise(tsr_naming(err), "open", name) : TSR_OK;
    tsr_status status = TSR_OK;
    out->text = (tsr_str){"", 0};
    if (*ours) {
        out->busy = sys->lock(sys, fd) != 0 && errno == EWOULDBLOCK;
        status = sys->stat(sys, fd, &info) == 0 ? TSR_OK : tsr_sys_raise(tsr_naming(err), "read", name);
        const size_t size = status == TSR_OK ? (size_t)info.st_size : 0;
        char *memory = status == TSR_OK ? tsr_arena_array(l->arena, size, 1, err) : NULL;
        if (status == TSR_OK && !memory) status = TSR_E_NOMEM;
        if (status == TSR_OK) status = tsr_sys_read((tsr_sys_file){sys, fd, name}, 0, memory, size, err);
        out->text = (tsr_str){memory, size};
    }
    sys->close(sys, fd);
    return status;
}

/* Whether bytes begin like a journal, or are a part of such a beginning. */
static bool begins_like(tsr_str bytes, tsr_str magic)
{
    const size_t size = bytes.size < magic.size ? bytes.size : magic.size;
    return size == 0 || memcmp(bytes.data, magic.data, size) == 0;
}

static tsr_status look_at(const listing *l, int directory, const char *name, tsr_leftover *out, bool *ours, tsr_error *err)
{
    struct stat info;
    if (!out->publishing && !out->share) {
        *ours = l->journals->sys->link_stat_at(l->journals->sys, directory, name, &info) == 0 && !S_ISLNK(info.st_mode) &&
                info.st_uid == geteuid();
        return TSR_OK;
    }
    tsr_status status = read_own(l, directory, name, out, ours, err);
    if (status != TSR_OK || !*ours) return status;
    *ours = begins_like(out->text, out->publishing ? TSR_STR("tessera.publishing/") : TSR_STR(TSR_JOURNAL_MAGIC));
    if (out->publishing) return TSR_OK;
    const tsr_str bytes = out->text;
    out->text = (tsr_str){NULL, 0};
    split_text(out, bytes);
    return TSR_OK;
}

static tsr_status add_name(void *ctx, int directory, const char *name, tsr_error *err)
{
    listing *l = ctx;
    tsr_leftover found = {.share = 0};
    bool ours = false;
    const char *rest = behind_tag(l->journals, name, found.tag);
    if (!rest) return TSR_OK;
    found.publishing = strcmp(rest, note) == 0;
    if (*rest && !found.publishing && !is_part(rest, &found)) return TSR_OK;
    TSR_TRY(look_at(l, directory, name, &found, &ours, err));
    if (!ours) return TSR_OK;
    tsr_leftover *own = tsr_vec_push(&l->found, err);
    if (own) *own = found;
    return own ? TSR_OK : TSR_E_NOMEM;
}

/* Adds an unpublished file in an existing destination: ".tessera-TAG-0". */
static tsr_status add_inner(void *ctx, int directory, const char *name, tsr_error *err)
{
    static const char start[] = ".tessera-w";
    listing *l = ctx;
    (void)directory;
    if (strncmp(name, start, sizeof start - 1) != 0 || strlen(name) < sizeof start + TSR_JOURNAL_TAG_SIZE) return TSR_OK;
    tsr_leftover *own = tsr_vec_push(&l->found, err);
    if (!own) return TSR_E_NOMEM;
    memcpy(own->tag, name + sizeof start - 2, TSR_JOURNAL_TAG_SIZE);
    return TSR_OK;
}

static int by_tag(const void *a, const void *b)
{
    const tsr_leftover *x = a, *y = b;
    const int order = strcmp(x->tag, y->tag);
    return order ? order : (x->share > y->share) - (x->share < y->share);
}

tsr_status tsr_journals_list(const tsr_journals *journals, tsr_arena *arena, tsr_leftover **out, size_t *count,
                             tsr_error *err)
{
    listing l = {journals, arena, tsr_vec_of(journals->allocator, sizeof(tsr_leftover))};
    tsr_status status = tsr_each_name(journals->sys, journals->directory, ".", add_name, &l, err);
    if (status == TSR_OK) status = tsr_each_name(journals->sys, journals->directory, journals->name, add_inner, &l, err);
    if (l.found.count) qsort(l.found.items, l.found.count, sizeof(tsr_leftover), by_tag);
    *count = l.found.count;
    *out = tsr_arena_array(arena, l.found.count, sizeof **out, err);
    if (status == TSR_OK && !*out) status = TSR_E_NOMEM;
    if (status == TSR_OK && l.found.count) memcpy(*out, l.found.items, l.found.count * sizeof **out);
    tsr_vec_free(&l.found);
    return status;
}

tsr_left_job tsr_journals_group(const tsr_leftover *found, size_t count)
{
    tsr_left_job job = {0};
    for (const tsr_leftover *l = found; job.size < count && strcmp(l->tag, found->tag) == 0; l++, job.size++) {
        job.is_busy |= l->busy;
        job.has_journal |= l->share || l->publishing;
        if (l->by_ranks || l->shares == 1) job.run = l->text.size || !job.run ? l : job.run;
        else if (l->shares > job.shares) job.shares = l->shares;
    }
    return job;
}

bool tsr_journal_is_of(tsr_str text, tsr_str job, uint32_t *generation)
{
    tsr_str value;
    if (!tsr_str_starts(text, job)) return false;
    tsr_str rest = {text.data + job.size, text.size - job.size};
    if (!tsr_text_has_key(tsr_str_take(&rest, '\n'), TSR_STR("generation "), &value)) return false;
    *generation = (uint32_t)strtoul(value.data, NULL, 10); /* a newline ends the number */
    return true;
}

/* ---- removing ---- */

typedef struct removal {
    const tsr_journals *journals;
    const char *tag, *except;
    bool notes; /* remove the record of the publication, too */
    tsr_arena *arena;
    tsr_vec files; /* of tsr_str: the files that the journals list */
    bool is_ours;  /* there is a complete journal or a record, so the output was made by this program */
} removal;

/* Removes a regular file; leaves links and directories alone. */
static tsr_status remove_file(const removal *r, int directory, const char *name, tsr_error *err)
{
    struct stat info;
    const tsr_sys *sys = r->journals->sys;
    const int parent = tsr_open_parent(sys, directory, &name);
    if (parent < 0) return TSR_OK;
    const bool is_file = sys->link_stat_at(sys, parent, name, &info) == 0 && S_ISREG(info.st_mode);
    const tsr_status status = is_file ? tsr_remove_name(sys, parent, name, false, err) : TSR_OK;
    if (parent != directory) sys->close(sys, parent);
    return status;
}

static tsr_status list_files(removal *r, tsr_str text, tsr_error *err)
{
    tsr_str name;
    while (text.size) {
        if (!tsr_text_has_key(tsr_str_take(&text, '\n'), TSR_STR("file "), &name)) continue;
        if (name.size >= PATH_MAX || !tsr_is_name_below(name, NAME_MAX)) continue;
        const tsr_str copy = tsr_arena_str(r->arena, name, err);
        tsr_str *item = copy.data ? tsr_vec_push(&r->files, err) : NULL;
        if (!item) return TSR_E_NOMEM;
        *item = copy;
    }
    return TSR_OK;
}

/* Completes or undoes an interrupted publication. */
static tsr_status settle(const removal *r, tsr_str text, tsr_error *err)
{
    tsr_record record;
    if (!tsr_record_parse(text, r->arena, &record)) return TSR_OK;
    if (tsr_record_is_published(&record, r->journals)) return tsr_record_end(&record, r->journals, r->tag, err);
    return tsr_record_undo(&record, r->journals, err);
}

static tsr_status read_lists(removal *r, tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    TSR_TRY(tsr_journals_list(r->journals, r->arena, &found, &count, err));
    for (size_t i = 0; i < count; i++) {
        if (strcmp(found[i].tag, r->tag) != 0) continue;
        if (found[i].publishing) TSR_TRY(settle(r, found[i].text, err));
        else TSR_TRY(list_files(r, found[i].text, err));
        r->is_ours |= found[i].publishing || found[i].text.size;
    }
    return TSR_OK;
}

/* Removes the second name that a file which stays was given in the new directory. */
static tsr_status remove_link(void *ctx, int directory, const char *name, tsr_error *err)
{
    const removal *r = ctx;
    const tsr_sys *sys = r->journals->sys;
    struct stat here, there;
    if (sys->link_stat_at(sys, directory, name, &here) != 0 || here.st_nlink < 2) return TSR_OK;
    const int kept = tsr_sys_open(sys, r->journals->directory, r->journals->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (kept < 0) return TSR_OK;
    const bool twice = sys->link_stat_at(sys, kept, name, &there) == 0 && tsr_is_one_file(&here, &there);
    sys->close(sys, kept);
    return twice ? tsr_remove_name(sys, directory, name, false, err) : TSR_OK;
}

static tsr_status remove_directory(const removal *r, const char *name, tsr_error *err)
{
    const tsr_sys *sys = r->journals->sys;
    const tsr_str *files = r->files.items;
    const int directory = tsr_sys_open(sys, r->journals->directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (directory < 0) return TSR_OK;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < r->files.count && status == TSR_OK; i++) status = remove_file(r, directory, files[i].data, err);
    for (size_t i = 0; i < r->files.count && status == TSR_OK; i++) tsr_remove_parents(sys, directory, files[i].data);
    for (int i = 0; i < 2 && status == TSR_OK; i++) {
        const char *const trial = i ? TSR_TRIAL_B : TSR_TRIAL_A;
        if (sys->unlink(sys, directory, trial, true) != 0 && errno == EIO)
            status = tsr_sys_raise(tsr_naming(err), "remove", trial);
    }
    sys->close(sys, directory);
    if (status == TSR_OK) status = tsr_each_name(sys, r->journals->directory, name, remove_link, (void *)(uintptr_t)r, err);
    if (status != TSR_OK || sys->unlink(sys, r->journals->directory, name, true) == 0) return status;
    return errno == EIO ? tsr_sys_raise(tsr_naming(err), "remove", name) : TSR_OK; /* it stays if it holds files of others */
}

/* Removes the unpublished output and sidecar next to the destination. */
static tsr_status remove_output(const removal *r, tsr_error *err)
{
    struct stat info;
    char sidecar[NAME_MAX + 32], name[NAME_MAX + 64], stem[TSR_STEM_SIZE + 1];
    const tsr_journals *j = r->journals;
    snprintf(sidecar, sizeof sidecar, "%s.objects.json", j->name);
    snprintf(name, sizeof name, ".%s.tessera-%s", tsr_stem_of(sidecar, stem), r->tag);
    TSR_TRY(remove_file(r, j->directory, name, err));
    snprintf(name, sizeof name, ".%s.tessera-%s", tsr_stem_of(j->name, stem), r->tag);
    if (j->sys->link_stat_at(j->sys, j->directory, name, &info) != 0) return TSR_OK;
    return S_ISDIR(info.st_mode) ? remove_directory(r, name, err) : remove_file(r, j->directory, name, err);
}

/* Removes temporary files in an existing directory. They are numbered in the order of creation, so there are no more than
 * the journals list. */
static tsr_status remove_inner(const removal *r, tsr_error *err)
{
    char name[64];
    const tsr_journals *j = r->journals;
    const int directory = tsr_sys_open(j->sys, j->directory, j->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (directory < 0) return TSR_OK;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < r->files.count && status == TSR_OK; i++) {
        snprintf(name, sizeof name, ".tessera-%s-%zu", r->tag, i);
        status = remove_file(r, directory, name, err);
    }
    j->sys->close(j->sys, directory);
    return status;
}

static tsr_status remove_journal(void *ctx, int directory, const char *name, tsr_error *err)
{
    const removal *r = ctx;
    tsr_leftover found = {.share = 0};
    bool ours = false;
    const listing l = {r->journals, r->arena, {0}};
    const char *rest = behind_tag(r->journals, name, found.tag);
    if (!rest || !*rest || strcmp(found.tag, r->tag) != 0 || (r->except && strcmp(name, r->except) == 0)) return TSR_OK;
    found.publishing = strcmp(rest, note) == 0;
    if (found.publishing ? !r->notes : !is_part(rest, &found)) return TSR_OK;
    TSR_TRY(look_at(&l, directory, name, &found, &ours, err));
    return ours ? tsr_remove_name(r->journals->sys, directory, name, false, err) : TSR_OK;
}

static tsr_status remove_journals(removal *r, tsr_error *err)
{
    const tsr_journals *j = r->journals;
    r->notes = false;
    TSR_TRY(tsr_each_name(j->sys, j->directory, ".", remove_journal, r, err));
    r->notes = true; /* last, because it says what the other files are */
    return tsr_each_name(j->sys, j->directory, ".", remove_journal, r, err);
}

tsr_status tsr_journals_remove(const tsr_journals *journals, const char *tag, const char *except, tsr_error *err)
{
    removal r = {.journals = journals, .tag = tag, .except = except, .arena = tsr_arena_new(journals->allocator, 0, err)};
    const tsr_status status = r.arena ? remove_journals(&r, err) : TSR_E_NOMEM;
    tsr_arena_free(r.arena);
    return status;
}

/* Removes the output before its journals: a journal without an output does no harm, but an output without a journal would
 * never be removed. */
static tsr_status discard(removal *r, tsr_error *err)
{
    TSR_TRY(read_lists(r, err));
    if (r->is_ours) TSR_TRY(remove_inner(r, err));
    if (r->is_ours) TSR_TRY(remove_output(r, err));
    return remove_journals(r, err);
}

tsr_status tsr_journals_discard(const tsr_journals *journals, const char *tag, tsr_error *err)
{
    removal r = {.journals = journals,
                 .tag = tag,
                 .arena = tsr_arena_new(journals->allocator, 0, err),
                 .files = tsr_vec_of(journals->allocator, sizeof(tsr_str))};
    const tsr_status status = r.arena ? discard(&r, err) : TSR_E_NOMEM;
    tsr_vec_free(&r.files);
    tsr_arena_free(r.arena);
    return status;
}

tsr_status tsr_journals_publishing(const tsr_journals *journals, const char *tag, tsr_str record, bool durable,
                                   tsr_error *err)
{
    const tsr_sys *sys = journals->sys;
    char name[NAME_MAX + 64], stem[TSR_STEM_SIZE + 1];
    snprintf(name, sizeof name, ".%s.tessera-%s%s", tsr_stem_of(journals->name, stem), tag, note);
    TSR_TRY(tsr_remove_name(sys, journals->directory, name, false, err)); /* of a run that was killed while it wrote it */
    const int fd = tsr_sys_open(sys, journals->directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (fd < 0) return tsr_sys_raise(tsr_naming(err), "create", name);
    tsr_status status = tsr_sys_write((tsr_sys_file){sys, fd, name}, 0, record.data, record.size, err);
    if (status == TSR_OK && durable) status = tsr_sys_sync(sys, fd, name, err);
    if (status == TSR_OK && durable) status = tsr_sys_sync(sys, journals->directory, name, err);
    sys->close(sys, fd);
    return status;
}

tsr_status tsr_journals_publishing_output(const tsr_journals *journals, const char *tag, tsr_output *output, uint32_t marker,
                                          tsr_output *companion, bool durable, tsr_error *err)
{
    tsr_vec record = tsr_vec_of(journals->allocator, 1);
    tsr_status status = tsr_directory_output_record(output, marker, companion, &record, err);
    if (status == TSR_OK)
        status = tsr_journals_publishing(journals, tag, (tsr_str){record.items, record.count}, durable, err);
    tsr_vec_free(&record);
    return status;
}
