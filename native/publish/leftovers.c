/* What runs left beside a destination: listed, and removed. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "publish/journal.h"
#include "publish/place.h"

static const char note[] = ".publishing";

/* ---- the place ---- */

tsr_status tsr_journals_open(const tsr_sys *sys, const tsr_allocator *allocator, const char *destination, tsr_journals *out,
                             tsr_error *err)
{
    tsr_place place;
    *out = (tsr_journals){.sys = sys ? sys : &tsr_sys_posix, .allocator = allocator, .folder = -1};
    tsr_status status = tsr_place_of(destination, &place, err);
    if (status != TSR_OK) return status;
    memcpy(out->name, place.name, sizeof place.name);
    out->folder = out->sys->open_at(out->sys, AT_FDCWD, place.parent, O_RDONLY | O_DIRECTORY, 0);
    return out->folder >= 0 ? TSR_OK : tsr_sys_raise(err, "open the folder", place.parent);
}

void tsr_journals_close(tsr_journals *journals)
{
    if (journals->sys && journals->folder >= 0) journals->sys->close(journals->sys, journals->folder);
    *journals = (tsr_journals){0};
}

/* ---- names ---- */

/* Calls `each` for every name in a folder until it fails. `folder` is a name in the parent, or ".". */
static tsr_status for_each_name(const tsr_journals *journals, const char *folder,
                                tsr_status (*each)(void *ctx, int folder, const char *name, tsr_error *err), void *ctx,
                                tsr_error *err)
{
    const tsr_sys *sys = journals->sys;
    int fd = sys->open_at(sys, journals->folder, folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? TSR_OK : tsr_sys_raise(err, "list", folder);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        sys->close(sys, fd);
        return tsr_sys_raise(err, "list", folder);
    }
    tsr_status status = TSR_OK;
    for (struct dirent *item; status == TSR_OK && (item = readdir(dir));) status = each(ctx, fd, item->d_name, err);
    closedir(dir);
    return status;
}

/* What follows ".NAME.tessera-TAG" in a name, and the tag; NULL for other names. */
static const char *behind_tag(const tsr_journals *journals, const char *name, char tag[TSR_JOURNAL_TAG_SIZE + 1])
{
    char start[240];
    snprintf(start, sizeof start, ".%.200s.tessera-w", journals->name);
    const size_t size = strlen(start);
    if (strncmp(name, start, size) != 0 || strspn(name + size, "0123456789abcdef") != TSR_JOURNAL_TAG_SIZE - 1) return NULL;
    memcpy(tag, name + size - 1, TSR_JOURNAL_TAG_SIZE);
    tag[TSR_JOURNAL_TAG_SIZE] = '\0';
    const char *rest = name + size + TSR_JOURNAL_TAG_SIZE - 1;
    return *rest == '\0' || *rest == '.' ? rest : NULL;
}

/* ".2-of-8", ".2-by-8" */
static bool is_part(const char *rest, tsr_leftover *out)
{
    char *end;
    if (*rest != '.') return false;
    out->part = strtoull(rest + 1, &end, 10);
    out->by_ranks = strncmp(end, "-by-", 4) == 0;
    if (!out->by_ranks && strncmp(end, "-of-", 4) != 0) return false;
    out->parts = strtoull(end + 4, &end, 10);
    return *end == '\0' && out->part >= 1 && out->part <= out->parts;
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
        l->records = (tsr_str){bytes.data + i + 1, bytes.size - i - 1};
        return;
    }
}

static tsr_status read_journal(const listing *l, int folder, const char *name, tsr_leftover *out, tsr_error *err)
{
    const tsr_sys *sys = l->journals->sys;
    struct stat info;
    int fd = sys->open_at(sys, folder, name, O_RDWR, 0);
    if (fd < 0) return errno == ENOENT ? TSR_OK : tsr_sys_raise(err, "open", name);
    out->busy = sys->lock(sys, fd) != 0 && errno == EWOULDBLOCK;
    tsr_status status = sys->stat(sys, fd, &info) == 0 ? TSR_OK : tsr_sys_raise(err, "read", name);
    const size_t size = status == TSR_OK ? (size_t)info.st_size : 0;
    char *bytes = status == TSR_OK ? tsr_arena_array(l->arena, size, 1, err) : NULL;
    if (status == TSR_OK && !bytes) status = TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_sys_read(sys, fd, name, 0, bytes, size, err);
    if (status == TSR_OK) split_text(out, (tsr_str){bytes, size});
    sys->close(sys, fd);
    return status;
}

static tsr_status add_name(void *ctx, int folder, const char *name, tsr_error *err)
{
    listing *l = ctx;
    tsr_leftover found = {.part = 0};
    const char *rest = behind_tag(l->journals, name, found.tag);
    if (!rest) return TSR_OK;
    found.publishing = strcmp(rest, note) == 0;
    if (found.publishing || is_part(rest, &found)) {
        tsr_status status = read_journal(l, folder, name, &found, err);
        if (status != TSR_OK) return status;
        if (found.publishing && found.text.size) found.identity = strtoull(found.text.data, NULL, 10);
    }
    tsr_leftover *own = tsr_vec_push(&l->found, err);
    if (own) *own = found;
    return own ? TSR_OK : TSR_E_NOMEM;
}

/* ".tessera-TAG-0" in an existing destination. */
static tsr_status add_inner(void *ctx, int folder, const char *name, tsr_error *err)
{
    static const char start[] = ".tessera-w";
    listing *l = ctx;
    (void)folder;
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
    return order ? order : (x->part > y->part) - (x->part < y->part);
}

tsr_status tsr_journals_list(const tsr_journals *journals, tsr_arena *arena, tsr_leftover **out, size_t *count,
                             tsr_error *err)
{
    listing l = {journals, arena, tsr_vec_of(journals->allocator, sizeof(tsr_leftover))};
    tsr_status status = for_each_name(journals, ".", add_name, &l, err);
    if (status == TSR_OK) status = for_each_name(journals, journals->name, add_inner, &l, err);
    if (l.found.count) qsort(l.found.items, l.found.count, sizeof(tsr_leftover), by_tag);
    *count = l.found.count;
    *out = tsr_arena_array(arena, l.found.count, sizeof **out, err);
    if (status == TSR_OK && !*out) status = TSR_E_NOMEM;
    if (status == TSR_OK && l.found.count) memcpy(*out, l.found.items, l.found.count * sizeof **out);
    tsr_vec_free(&l.found);
    return status;
}

/* ---- removing ---- */

typedef struct removal {
    const tsr_journals *journals;
    const char *tag, *except;
    bool notes; /* the note of publishing too */
} removal;

static tsr_status remove_name(const removal *r, int folder, const char *name, bool is_folder, tsr_error *err)
{
    const tsr_sys *sys = r->journals->sys;
    int done;
    do done = sys->unlink(sys, folder, name, is_folder);
    while (done != 0 && errno == EINTR);
    return done == 0 || errno == ENOENT ? TSR_OK : tsr_sys_raise(err, "remove", name);
}

static tsr_status remove_inner(void *ctx, int folder, const char *name, tsr_error *err)
{
    const bool dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
    return dots ? TSR_OK : remove_name(ctx, folder, name, false, err);
}

/* Files that were to go into an existing folder. */
static tsr_status remove_from_destination(void *ctx, int folder, const char *name, tsr_error *err)
{
    const removal *r = ctx;
    char start[64];
    snprintf(start, sizeof start, ".tessera-%s-", r->tag);
    return strncmp(name, start, strlen(start)) == 0 ? remove_name(r, folder, name, false, err) : TSR_OK;
}

static tsr_status remove_journal(void *ctx, int folder, const char *name, tsr_error *err)
{
    const removal *r = ctx;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    const char *rest = behind_tag(r->journals, name, tag);
    if (!rest || !*rest || strcmp(tag, r->tag) != 0 || (r->except && strcmp(name, r->except) == 0)) return TSR_OK;
    return strcmp(rest, note) != 0 || r->notes ? remove_name(r, folder, name, false, err) : TSR_OK;
}

tsr_status tsr_journals_remove(const tsr_journals *journals, const char *tag, const char *except, tsr_error *err)
{
    removal r = {journals, tag, except, false};
    tsr_status status = for_each_name(journals, ".", remove_journal, &r, err);
    r.notes = true; /* last: it tells what the others are about */
    return status == TSR_OK ? for_each_name(journals, ".", remove_journal, &r, err) : status;
}

/* The output first: a journal without one is nothing, an output without one would lie there for ever. */
tsr_status tsr_journals_discard(const tsr_journals *journals, const char *tag, tsr_error *err)
{
    removal r = {journals, tag, NULL, true};
    char name[320];
    snprintf(name, sizeof name, ".%.200s.tessera-%s", journals->name, tag);
    struct stat info;
    tsr_status status = for_each_name(journals, journals->name, remove_from_destination, &r, err);
    if (status == TSR_OK && journals->sys->stat_at(journals->sys, journals->folder, name, &info) == 0) {
        if (S_ISDIR(info.st_mode)) status = for_each_name(journals, name, remove_inner, &r, err);
        if (status == TSR_OK) status = remove_name(&r, journals->folder, name, S_ISDIR(info.st_mode), err);
    }
    return status == TSR_OK ? tsr_journals_remove(journals, tag, NULL, err) : status;
}

uint64_t tsr_journals_destination(const tsr_journals *journals)
{
    struct stat info;
    const tsr_sys *sys = journals->sys;
    return sys->stat_at(sys, journals->folder, journals->name, &info) == 0 ? (uint64_t)info.st_ino : 0;
}

tsr_status tsr_journals_publishing(const tsr_journals *journals, const char *tag, uint64_t identity, bool durable,
                                   tsr_error *err)
{
    const tsr_sys *sys = journals->sys;
    char name[320];
    int fd, done = 0;
    snprintf(name, sizeof name, ".%.200s.tessera-%s%s", journals->name, tag, note);
    do fd = sys->open_at(sys, journals->folder, name, O_RDWR | O_CREAT, 0666);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return tsr_sys_raise(err, "create", name);
    char text[32];
    snprintf(text, sizeof text, "%020" PRIu64 "\n\n", identity);
    tsr_status status = tsr_sys_write(sys, fd, name, 0, text, strlen(text), err);
    if (status == TSR_OK && durable) {
        do done = sys->sync(sys, fd);
        while (done != 0 && errno == EINTR);
        if (done == 0) {
            do done = sys->sync(sys, journals->folder);
            while (done != 0 && errno == EINTR);
        }
        if (done != 0) status = tsr_sys_raise(err, "sync", name);
    }
    sys->close(sys, fd);
    return status;
}
