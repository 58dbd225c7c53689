/* See saves.h. Also holds directories for replacements. */
#include "publish/saves.h"

#include "publish/destination.h"
#include "publish/directory_output.h"
#include "publish/record.h"
#include "publish/text.h"
#include "tessera/native_host.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/try.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HOLD_TRIES = 100 }; /* 10 ms apart: one second */

#define START        ".tessera-save-"
#define JOB          TSR_STR(TSR_JOURNAL_MAGIC "a save of ranks in place\n")
#define JOB_OF_FILES TSR_STR(TSR_JOURNAL_MAGIC "a save of files by ranks\n")

static const char journal_end[] = ".journal", marker_end[] = ".metadata", record_end[] = ".publishing";

typedef struct old_file {
    tsr_str name;
    tsr_identity identity; /* an inode of 0: it did not exist */
} old_file;

struct tsr_save {
    tsr_save_request options;
    tsr_arena *arena;
    tsr_journals journals; /* `held` is the directory, locked or shared */
    int lock;              /* descriptor of the lock file */
    char lock_name[64];
    char prefix[9];  /* of tokens that may be cleaned; "" for all */
    old_file *found; /* the marker first */
    size_t found_count;
};

/* ---- holding a directory ---- */

/* Locks the directory that has the destination's name now. Sets *again if another job has locked it, or has replaced it in
 * the meantime. */
static void try_to_hold(tsr_journals *j, int (*lock)(const tsr_sys *sys, int fd), bool *again)
{
    struct stat locked, named;
    const tsr_sys *sys = j->sys;
    const int fd = tsr_sys_open(sys, j->directory, j->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    *again = false;
    if (fd < 0) return; /* there is no old checkpoint about which two jobs could decide differently */
    /* Other errors: the file system has no locks. */
    const bool taken = lock(sys, fd) != 0 && (errno == EWOULDBLOCK || errno == EINTR);
    const bool same = sys->stat(sys, fd, &locked) == 0 && sys->link_stat_at(sys, j->directory, j->name, &named) == 0 &&
                      tsr_is_one_file(&locked, &named);
    *again = taken || !same;
    if (*again) sys->close(sys, fd);
    else j->held = fd;
}

static tsr_status hold(tsr_journals *journals, int (*lock)(const tsr_sys *sys, int fd), tsr_error *err)
{
    bool again = true;
    for (unsigned tries = 0; tries < HOLD_TRIES; tries++) {
        try_to_hold(journals, lock, &again);
        if (!again) return TSR_OK;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "another process is replacing '%s'; wait until it has finished, or write to another directory",
                    journals->name);
}

/* ---- what killed saves left ---- */

typedef struct clearing {
    const tsr_journals *journals;
    const char *prefix;
    tsr_arena *arena;
    tsr_vec tokens; /* of char[TSR_SAVE_TOKEN_SIZE + 1]: those of files that are there */
    bool is_alone;  /* ranks have saved on their own */
    const tsr_str *kept;
    size_t kept_count;
} clearing;

/* The token in the name of a journal, a marker or a record; NULL for other names. */
static const char *token_in(const char *name)
{
    static const char *const ends[] = {journal_end, marker_end, record_end};
    const size_t start = sizeof START - 1;
    if (strncmp(name, START, start) != 0 || strspn(name + start, "0123456789abcdef") != TSR_SAVE_TOKEN_SIZE) return NULL;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(name + start + TSR_SAVE_TOKEN_SIZE, ends[i]) == 0) return name + start;
    return NULL;
}

static const char *name_of(const char *token, const char *end, char name[64])
{
    snprintf(name, 64, START "%.*s%s", TSR_SAVE_TOKEN_SIZE, token, end);
    return name;
}

static tsr_status add_token(void *ctx, int directory, const char *name, tsr_error *err)
{
    clearing *c = ctx;
    const tsr_str text = tsr_str_from(name);
    const char *token = token_in(name);
    (void)directory;
    c->is_alone |= name[0] != '.' && tsr_str_ends(text, TSR_STR(".metadata"));
    if (!token || strncmp(token, c->prefix, strlen(c->prefix)) != 0) return TSR_OK;
    const char *known = c->tokens.items;
    for (size_t i = 0; i < c->tokens.count; i++)
        if (memcmp(known + i * (TSR_SAVE_TOKEN_SIZE + 1), token, TSR_SAVE_TOKEN_SIZE) == 0) return TSR_OK;
    char *own = tsr_vec_push(&c->tokens, err);
    if (!own) return TSR_E_NOMEM;
    memcpy(own, token, TSR_SAVE_TOKEN_SIZE);
    own[TSR_SAVE_TOKEN_SIZE] = '\0';
    return TSR_OK;
}

/* Reads a journal or a record; *text is empty if it is not a file of this user. */
static tsr_status read_own(const clearing *c, int directory, const char *name, tsr_str *text, tsr_error *err)
{
    const tsr_sys *sys = c->journals->sys;
    struct stat info;
    *text = TSR_STR("");
    const int fd = tsr_sys_open(sys, directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0) return TSR_OK;
    tsr_status status = TSR_OK;
    if (tsr_is_own_file(sys, fd) && sys->stat(sys, fd, &info) == 0) {
        char *memory = tsr_arena_array(c->arena, (size_t)info.st_size, 1, err);
        status = memory ? tsr_sys_read((tsr_sys_file){sys, fd, name}, 0, memory, (size_t)info.st_size, err) : TSR_E_NOMEM;
        if (status == TSR_OK) *text = (tsr_str){memory, (size_t)info.st_size};
    }
    sys->close(sys, fd);
    return status;
}

static bool is_kept(const clearing *c, tsr_str name)
{
    for (size_t i = 0; i < c->kept_count; i++)
        if (tsr_str_equal(c->kept[i], name)) return true;
    return false;
}

/* Removes a regular file of this user; anything else stays. */
static tsr_status remove_own(const clearing *c, int directory, const char *name, tsr_error *err)
{
    struct stat info;
    const tsr_sys *sys = c->journals->sys;
    const bool is_own =
        sys->link_stat_at(sys, directory, name, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
    return is_own ? tsr_remove_name(sys, directory, name, false, err) : TSR_OK;
}

/* Removes the files that a journal lists. A journal in a checkpoint from somebody else may name any file, so only names that have its
 * token count. */
static tsr_status remove_listed(const clearing *c, int directory, const char *token, tsr_str text, tsr_error *err)
{
    char copy[NAME_MAX + 1];
    tsr_str name;
    while (text.size) {
        if (!tsr_text_has_key(tsr_str_take(&text, '\n'), TSR_STR("file "), &name) || name.size > NAME_MAX) continue;
        memcpy(copy, name.data, name.size);
        copy[name.size] = '\0';
        if (strchr(copy, '/') || !strstr(copy, token) || is_kept(c, name)) continue;
        TSR_TRY(remove_own(c, directory, copy, err));
    }
    return TSR_OK;
}

/* Whether bytes begin like a file of ours, or were cut off in such a beginning. */
static bool begins_like(tsr_str text, tsr_str beginning)
{
    return memcmp(text.data, beginning.data, text.size < beginning.size ? text.size : beginning.size) == 0;
}

/* Removes what a save replaced that was killed after its marker got its name. */
static tsr_status end_recorded(const clearing *c, tsr_str text, tsr_error *err)
{
    tsr_record record;
    if (!tsr_record_parse(text, c->arena, &record) || !tsr_record_is_published(&record, c->journals)) return TSR_OK;
    tsr_recorded_file *files = tsr_arena_array(c->arena, record.count + 1, sizeof *files, err);
    size_t count = 0;
    if (!files) return TSR_E_NOMEM;
    for (size_t i = 0; i < record.count; i++)
        if (!is_kept(c, record.files[i].name)) files[count++] = record.files[i];
    record.files = files;
    record.count = count;
    return tsr_record_end(&record, c->journals, "", err);
}

/* The record is removed last, because it states what the others are. A journal of another form is not ours, and stays. */
static tsr_status clear_one(const clearing *c, int directory, const char *token, tsr_error *err)
{
    char name[64];
    tsr_str text;
    TSR_TRY(read_own(c, directory, name_of(token, journal_end, name), &text, err));
    if (!begins_like(text, JOB)) return TSR_OK;
    TSR_TRY(remove_listed(c, directory, token, text, err));
    TSR_TRY(read_own(c, directory, name_of(token, record_end, name), &text, err));
    TSR_TRY(end_recorded(c, text, err));
    TSR_TRY(remove_own(c, directory, name_of(token, marker_end, name), err));
    TSR_TRY(remove_own(c, directory, name_of(token, journal_end, name), err));
    return remove_own(c, directory, name_of(token, record_end, name), err);
}

static tsr_status clear_all(const clearing *c, tsr_error *err)
{
    const char *tokens = c->tokens.items;
    const int directory = c->tokens.count ? tsr_journals_open_destination(c->journals) : -1;
    tsr_status status = TSR_OK;
    if (directory < 0) return TSR_OK;
    for (size_t i = 0; i < c->tokens.count && status == TSR_OK; i++)
        status = clear_one(c, directory, tokens + i * (TSR_SAVE_TOKEN_SIZE + 1), err);
    if (status == TSR_OK) status = tsr_sys_sync(c->journals->sys, directory, c->journals->name, err);
    c->journals->sys->close(c->journals->sys, directory);
    return status;
}

static tsr_status start_clearing(const tsr_journals *journals, const char *prefix, clearing *out, tsr_error *err)
{
    *out = (clearing){.journals = journals,
                      .prefix = prefix,
                      .arena = tsr_arena_new(journals->allocator, 0, err),
                      .tokens = tsr_vec_of(journals->allocator, TSR_SAVE_TOKEN_SIZE + 1)};
    return out->arena ? tsr_each_name(journals->sys, journals->directory, journals->name, add_token, out, err) : TSR_E_NOMEM;
}

static void end_clearing(clearing *c)
{
    tsr_vec_free(&c->tokens);
    tsr_arena_free(c->arena);
}

/* ---- before a replacement ---- */

static tsr_status list_own(clearing *c, tsr_store *store, const tsr_host *host, bool *is_known, tsr_error *err)
{
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_NAMES, .stay = true};
    tsr_checkpoint *old = NULL;
    tsr_error ignored = {0};
    bool *owned = tsr_arena_array(c->arena, store->file_count + 1, sizeof *owned, err);
    tsr_str *kept = tsr_arena_array(c->arena, store->file_count + 1, sizeof *kept, err);
    if (!owned || !kept) return TSR_E_NOMEM;
    *is_known = tsr_checkpoint_open(store, host, &options, &old, &ignored) == TSR_OK &&
                tsr_checkpoint_own_files(old, owned, &ignored) == TSR_OK;
    for (uint32_t f = 0; f < store->file_count && *is_known; f++) {
        if (!owned[f]) continue;
        kept[c->kept_count] = tsr_arena_str(c->arena, store->files[f].name, err);
        if (!kept[c->kept_count++].data) return TSR_E_NOMEM;
    }
    c->kept = kept;
    tsr_checkpoint_close(old);
    return TSR_OK;
}

/* The files of the checkpoint that is there stay. Sets *is_known to false if it has a marker and cannot be read: then all files stay,
 * and the replacement is refused. */
static tsr_status keep_checkpoint(clearing *c, const char *path, bool *is_known, tsr_error *err)
{
    tsr_native_host native;
    tsr_store *store;
    tsr_native_host_open(&native, 1);
    tsr_status status = tsr_directory_store_open(NULL, native.host.allocator, path, &store, err);
    if (status == TSR_OK) {
        bool has_marker = false;
        for (uint32_t f = 0; f < store->file_count; f++)
            has_marker |= tsr_str_equal(store->files[f].name, TSR_STR(".metadata"));
        *is_known = true;
        if (has_marker) status = list_own(c, store, &native.host, is_known, err);
        store->close(store);
    }
    tsr_native_host_close(&native);
    return status;
}

tsr_status tsr_journals_hold(tsr_journals *journals, const char *path, uint64_t *cleared, tsr_error *err)
{
    clearing c;
    bool is_known = false;
    *cleared = 0;
    TSR_TRY(hold(journals, journals->sys->lock, err));
    tsr_status status = start_clearing(journals, "", &c, err);
    if (status == TSR_OK && c.tokens.count && !c.is_alone) status = keep_checkpoint(&c, path, &is_known, err);
    if (status == TSR_OK && is_known) status = clear_all(&c, err);
    if (status == TSR_OK && is_known) *cleared = c.tokens.count;
    end_clearing(&c);
    return status;
}

/* ---- a save ---- */

/* Where warnings go, and the directory that they are about. */
typedef struct warning {
    const char *path;
    void (*say)(void *ctx, const char *text); /* may be NULL */
    void *ctx;
} warning;

__attribute__((format(printf, 2, 3))) static void warn(warning w, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (w.say) w.say(w.ctx, text);
}

/* Opens the directory's parent. This user may not be able to write to it, as long as it can write to the directory. */
static tsr_status open_parent(tsr_save *s, tsr_error *err)
{
    tsr_destination place;
    tsr_journals *j = &s->journals;
    TSR_TRY(tsr_destination_of(s->options.path, &place, err));
    memcpy(j->name, place.name, sizeof place.name);
    j->directory = tsr_sys_open(j->sys, AT_FDCWD, place.parent, O_RDONLY | O_DIRECTORY, 0);
    return j->directory >= 0 ? TSR_OK : tsr_sys_raise(tsr_naming(err), "open the directory", place.parent);
}

/* Locks the file of the coordinator, or of a rank on its own. Its last holder removes it, so it may have to be made again. */
static tsr_status lock_file(tsr_save *s, tsr_error *err)
{
    struct stat open, named;
    const tsr_sys *sys = s->journals.sys;
    const int directory = tsr_journals_open_destination(&s->journals);
    if (directory < 0) return tsr_sys_raise(tsr_naming(err), "open the directory", s->options.path);
    tsr_status status = TSR_OK;
    for (bool done = false; !done && status == TSR_OK;) {
        const int fd = tsr_sys_open(sys, directory, s->lock_name, O_RDWR | O_CREAT | O_NOFOLLOW, 0666);
        if (fd < 0) status = tsr_sys_raise(tsr_naming(err), "create", s->lock_name);
        else if (sys->lock(sys, fd) != 0 && errno == EWOULDBLOCK) /* other errors: the file system has no locks */
            status = tsr_fail(err, TSR_E_EXISTS, "another process is saving to this directory");
        else
            done = sys->stat(sys, fd, &open) == 0 && sys->link_stat_at(sys, directory, s->lock_name, &named) == 0 &&
                   tsr_is_one_file(&open, &named);
        if (done) s->lock = fd;
        else if (fd >= 0) sys->close(sys, fd);
    }
    sys->close(sys, directory);
    return status;
}

/* The rule is that of another job (job_directory.c). */
static tsr_status clear_listed(const tsr_journals *j, warning w, tsr_arena *arena, tsr_error *err)
{
    tsr_leftover *found;
    size_t count;
    tsr_error ignored = {0};
    TSR_TRY(tsr_journals_list(j, arena, &found, &count, err));
    for (size_t i = 0, size; i < count; i += size) {
        const tsr_left_job left = tsr_journals_group(found + i, count - i);
        size = left.size;
        if (left.is_busy || !left.has_journal) continue; /* without a journal, nothing shows whose it is */
        if (left.shares) {
            warn(w,
                 "'%s' has an unfinished job of %" PRIu64
                 " shares of a plan; its files '.%s.tessera-%s…' are kept; `tessera "
                 "exec --discard-parts` removes them",
                 w.path, left.shares, j->name, found[i].tag);
            continue;
        }
        warn(w, "removing the remains of an interrupted run for '%s'", w.path);
        if (tsr_journals_discard(j, found[i].tag, &ignored) != TSR_OK)
            warn(w, "'.%s.tessera-%s…' could not be removed: %s", j->name, found[i].tag, ignored.message);
    }
    return TSR_OK;
}

/* Removes what killed jobs left next to a destination. */
static tsr_status clear_jobs(const tsr_journals *journals, warning w, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(journals->allocator, 0, err);
    const tsr_status status = arena ? clear_listed(journals, w, arena, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}

static tsr_status open_save(tsr_save *s, tsr_error *err)
{
    TSR_TRY(open_parent(s, err));
    TSR_TRY(lock_file(s, err));
    const tsr_sys *sys = s->journals.sys;
    TSR_TRY(hold(&s->journals, s->options.rank < 0 ? sys->lock : sys->share, err));
    TSR_FAIL_IF(s->journals.held < 0, err, TSR_E_NOT_FOUND, "the directory is gone");
    return clear_jobs(&s->journals, (warning){s->options.path, s->options.warn, s->options.ctx}, err);
}

tsr_status tsr_save_open(const tsr_save_request *options, tsr_save **out, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    tsr_save *s = arena ? TSR_ARENA_NEW(arena, tsr_save, err) : NULL;
    if (!s) {
        tsr_arena_free(arena);
        return TSR_E_NOMEM;
    }
    *s = (tsr_save){.options = *options,
                    .arena = arena,
                    .journals = {.sys = options->sys ? options->sys : &tsr_sys_posix,
                                 .allocator = &tsr_allocator_libc,
                                 .directory = -1,
                                 .held = -1},
                    .lock = -1};
    s->options.path = tsr_arena_str(arena, tsr_str_from(options->path), err).data;
    if (options->rank < 0) snprintf(s->lock_name, sizeof s->lock_name, ".tessera-save.lock");
    else snprintf(s->lock_name, sizeof s->lock_name, START "%" PRId64 ".lock", options->rank);
    if (options->rank >= 0) snprintf(s->prefix, sizeof s->prefix, "%08x", (unsigned)options->rank);
    const tsr_status status = s->options.path ? open_save(s, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = s;
    else tsr_save_close(s);
    return status;
}

static tsr_identity identity_of(const tsr_save *s, int directory, tsr_str name)
{
    struct stat info;
    const tsr_sys *sys = s->journals.sys;
    return sys->link_stat_at(sys, directory, name.data, &info) == 0 ? tsr_identity_of(&info) : (tsr_identity){0};
}

tsr_status tsr_save_begin(tsr_save *s, const char *marker, const tsr_str *replaced, size_t count, tsr_error *err)
{
    clearing c;
    s->found = tsr_arena_array(s->arena, count + 1, sizeof *s->found, err);
    if (!s->found) return TSR_E_NOMEM;
    s->found[s->found_count++].name = tsr_arena_str(s->arena, tsr_str_from(marker), err);
    for (size_t i = 0; i < count; i++)
        if (!tsr_str_equal(replaced[i], tsr_str_from(marker)))
            s->found[s->found_count++].name = tsr_arena_str(s->arena, replaced[i], err);
    for (size_t i = 0; i < s->found_count; i++) {
        if (!s->found[i].name.data) return TSR_E_NOMEM;
        s->found[i].identity = identity_of(s, s->journals.held, s->found[i].name);
    }
    tsr_status status = start_clearing(&s->journals, s->prefix, &c, err);
    c.kept = replaced;
    c.kept_count = count;
    if (status == TSR_OK) status = clear_all(&c, err);
    end_clearing(&c);
    return status;
}

tsr_status tsr_save_unchanged(const tsr_save *s, tsr_error *err)
{
    struct stat info;
    const tsr_sys *sys = s->journals.sys;
    for (size_t i = 0; i < s->found_count; i++) {
        const old_file *f = &s->found[i];
        if (sys->link_stat_at(sys, s->journals.held, f->name.data, &info) != 0 || tsr_identity_is(&f->identity, &info, true))
            continue;
        return tsr_fail(tsr_naming(err), TSR_E_CHANGED,
                        "another program has written '%s' during the save, so nothing was published", f->name.data);
    }
    return TSR_OK;
}

static bool is_among(tsr_str name, const tsr_str *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (tsr_str_equal(names[i], name)) return true;
    return false;
}

static tsr_status write_new(const tsr_sys *sys, int directory, const char *name, tsr_str text, bool is_durable,
                            tsr_error *err)
{
    const int fd = tsr_sys_open(sys, directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (fd < 0) return tsr_sys_raise(tsr_naming(err), "create", name);
    tsr_status status = tsr_sys_write((tsr_sys_file){sys, fd, name}, 0, text.data, text.size, err);
    if (status == TSR_OK && is_durable) status = tsr_sys_sync(sys, fd, name, err);
    sys->close(sys, fd);
    if (status == TSR_OK && is_durable) status = tsr_sys_sync(sys, directory, name, err);
    if (status != TSR_OK) sys->unlink(sys, directory, name, false);
    return status;
}

tsr_status tsr_save_record(const tsr_save *s, const char *token, const tsr_str *files, size_t count, tsr_error *err)
{
    char name[64];
    struct stat parent;
    const tsr_sys *sys = s->journals.sys;
    tsr_recorded_file *old = tsr_arena_array(s->arena, s->found_count, sizeof *old, err);
    if (!old) return TSR_E_NOMEM;
    if (sys->stat(sys, s->journals.directory, &parent) != 0)
        return tsr_sys_raise(tsr_naming(err), "look at", s->options.path);
    tsr_record record = {.kind = TSR_SWITCH_MARKER,
                         .marker = s->found[0].name,
                         .device = (uint64_t)parent.st_dev,
                         .identity = identity_of(s, s->journals.held, tsr_str_from(name_of(token, marker_end, name))),
                         .files = old};
    for (size_t i = 1; i < s->found_count; i++)
        if (s->found[i].identity.inode && !is_among(s->found[i].name, files, count))
            old[record.count++] = (tsr_recorded_file){s->found[i].name, s->found[i].identity, true};
    tsr_vec text = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_status status = tsr_record_put(&record, &text, err);
    if (status == TSR_OK)
        status = write_new(sys, s->journals.held, name_of(token, record_end, name), (tsr_str){text.items, text.count},
                           s->options.is_durable, err);
    tsr_vec_free(&text);
    return status;
}

/* The token in a rank's file: the end of its name without the extension. */
static bool token_of_file(tsr_str file, char token[TSR_SAVE_TOKEN_SIZE + 1])
{
    const size_t end = sizeof ".distcp" - 1;
    if (file.size < TSR_SAVE_TOKEN_SIZE + end) return false;
    memcpy(token, file.data + file.size - end - TSR_SAVE_TOKEN_SIZE, TSR_SAVE_TOKEN_SIZE);
    token[TSR_SAVE_TOKEN_SIZE] = '\0';
    return strspn(token, "0123456789abcdef") == TSR_SAVE_TOKEN_SIZE;
}

tsr_status tsr_save_end(const tsr_save *s, const char *token, const tsr_str *files, size_t count, tsr_error *err)
{
    char name[64], of_file[TSR_SAVE_TOKEN_SIZE + 1];
    const clearing c = {.journals = &s->journals, .arena = s->arena, .kept = files, .kept_count = count};
    const int directory = s->journals.held;
    tsr_str text;
    TSR_TRY(read_own(&c, directory, name_of(token, record_end, name), &text, err));
    TSR_TRY(end_recorded(&c, text, err));
    for (size_t i = 0; i < count; i++)
        if (token_of_file(files[i], of_file))
            TSR_TRY(tsr_remove_name(s->journals.sys, directory, name_of(of_file, journal_end, name), false, err));
    TSR_TRY(tsr_remove_name(s->journals.sys, directory, name_of(token, record_end, name), false, err));
    return s->options.is_durable ? tsr_sys_sync(s->journals.sys, directory, s->journals.name, err) : TSR_OK;
}

void tsr_save_close(tsr_save *s)
{
    if (!s) return;
    const tsr_sys *sys = s->journals.sys;
    const int directory = s->lock >= 0 ? tsr_journals_open_destination(&s->journals) : -1;
    if (directory >= 0) {
        sys->unlink(sys, directory, s->lock_name, false);
        sys->close(sys, directory);
    }
    if (s->lock >= 0) sys->close(sys, s->lock);
    tsr_journals_close(&s->journals);
    tsr_arena_free(s->arena);
}

tsr_status tsr_save_journal(const tsr_sys *sys, const char *path, const char *token, const tsr_str *names, size_t count,
                            bool is_durable, tsr_error *err)
{
    char name[64];
    tsr_str text;
    if (!sys) sys = &tsr_sys_posix;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    if (!arena) return TSR_E_NOMEM;
    const int directory = tsr_sys_open(sys, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    tsr_status status = directory >= 0 ? tsr_journal_text(arena, JOB, 0, (tsr_journal_files){names, count}, &text, err)
                                       : tsr_sys_raise(tsr_naming(err), "open the directory", path);
    if (status == TSR_OK) status = write_new(sys, directory, name_of(token, journal_end, name), text, is_durable, err);
    if (directory >= 0) sys->close(sys, directory);
    tsr_arena_free(arena);
    return status;
}

/* ---- files next to the directory ---- */

struct tsr_rank_files {
    tsr_rank_files_request request;
    tsr_sys unsynced; /* the calls, if nothing is waited for */
    tsr_arena *arena;
    tsr_journals journals;
    tsr_journal *journal;
    tsr_output *output;
    bool is_within; /* everything is made in the directory, not next to it */
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
};

static int do_not_sync(const tsr_sys *sys, int fd)
{
    (void)sys, (void)fd;
    return 0;
}

static void name_of_directory(const char *name, const char *tag, char directory[NAME_MAX + 64])
{
    char stem[TSR_STEM_SIZE + 1];
    snprintf(directory, NAME_MAX + 64, ".%s.tessera-%s", tsr_stem_of(name, stem), tag);
}

/* Whether new files are written to the directory itself: it is a mount point, or the directory that holds it is not writable. One that
 * does not exist yet will be made. */
static bool is_within(const tsr_sys *sys, const tsr_destination *place, const char *path)
{
    struct stat info;
    if (!sys) sys = &tsr_sys_posix;
    if (sys->stat_at(sys, AT_FDCWD, path, &info) != 0) return false;
    if (faccessat(AT_FDCWD, place->parent, R_OK | W_OK | X_OK, AT_EACCESS) != 0) return errno == EACCES || errno == EROFS;
    return !tsr_is_one_mount(sys, AT_FDCWD, place->parent, AT_FDCWD, path);
}

static tsr_status place_of(const tsr_sys *sys, const char *path, tsr_destination *out, bool *within, tsr_error *err)
{
    tsr_destination inner;
    TSR_TRY(tsr_destination_of(path, out, err));
    TSR_TRY(tsr_destination_within(path, &inner, err));
    *within = is_within(sys, out, inner.parent);
    if (*within) *out = inner;
    return TSR_OK;
}

tsr_status tsr_rank_files_directory(const char *path, char directory[PATH_MAX], tsr_error *err)
{
    tsr_destination place;
    bool within;
    char tag[TSR_JOURNAL_TAG_SIZE + 1], name[NAME_MAX + 64];
    TSR_TRY(place_of(NULL, path, &place, &within, err));
    tsr_journal_tag(JOB_OF_FILES, tag);
    name_of_directory(place.name, tag, name);
    const int size = snprintf(directory, PATH_MAX, "%s/%s", place.parent, name);
    TSR_FAIL_IF(size >= PATH_MAX, tsr_naming(err), TSR_E_USAGE, "the name '%s' is too long", path);
    return TSR_OK;
}

static tsr_status open_journals(const tsr_rank_files_request *request, tsr_journals *out, bool *within, tsr_error *err)
{
    tsr_destination place;
    *out = (tsr_journals){.directory = -1, .held = -1};
    TSR_TRY(place_of(request->sys, request->path, &place, within, err));
    return tsr_journals_open_at(request->sys, &tsr_allocator_libc, &place, out, err);
}

/* `rank` is from 0; the coordinator's journal follows those of all ranks. */
static tsr_status begin_journal(const tsr_journals *journals, const char *tag, tsr_journal_share share,
                                tsr_journal_files files, tsr_journal **out, tsr_error *err)
{
    tsr_str text;
    tsr_arena *arena = tsr_arena_new(journals->allocator, 0, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_journal_text(arena, JOB_OF_FILES, 0, files, &text, err);
    if (status == TSR_OK) status = tsr_journal_begin(journals, tag, share, text, out, err);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_rank_files_journal(const tsr_rank_files_request *request, uint64_t rank, tsr_journal_files files,
                                  tsr_error *err)
{
    tsr_journals journals;
    tsr_journal *journal = NULL;
    bool within;
    char tag[TSR_JOURNAL_TAG_SIZE + 1];
    tsr_journal_tag(JOB_OF_FILES, tag);
    tsr_status status = open_journals(request, &journals, &within, err);
    if (status == TSR_OK)
        status =
            begin_journal(&journals, tag, (tsr_journal_share){rank + 1, request->ranks + 1, true}, files, &journal, err);
    tsr_journal_close(journal);
    tsr_journals_close(&journals);
    return status;
}

static tsr_status open_files(tsr_rank_files *f, tsr_error *err)
{
    uint64_t cleared;
    tsr_journal_tag(JOB_OF_FILES, f->tag);
    TSR_TRY(open_journals(&f->request, &f->journals, &f->is_within, err));
    TSR_TRY(tsr_journals_hold(&f->journals, f->request.path, &cleared, err));
    TSR_FAIL_IF(f->journals.held < 0, err, TSR_E_NOT_FOUND, "the directory is gone");
    return clear_jobs(&f->journals, (warning){f->request.path, f->request.warn, f->request.ctx}, err);
}

tsr_status tsr_rank_files_open(const tsr_rank_files_request *request, tsr_rank_files **out, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    tsr_rank_files *f = arena ? TSR_ARENA_NEW(arena, tsr_rank_files, err) : NULL;
    if (!f) {
        tsr_arena_free(arena);
        return TSR_E_NOMEM;
    }
    *f = (tsr_rank_files){.request = *request, .arena = arena};
    f->request.path = tsr_arena_str(arena, tsr_str_from(request->path), err).data;
    if (!request->is_durable) {
        f->unsynced = request->sys ? *request->sys : tsr_sys_posix;
        f->unsynced.sync = do_not_sync;
        f->request.sys = &f->unsynced;
    }
    const tsr_status status = f->request.path ? open_files(f, err) : TSR_E_NOMEM;
    if (status == TSR_OK) *out = f;
    else tsr_rank_files_close(f);
    return status;
}

/* Nothing of this name may be there when the journals of killed saves are gone: somebody else has made it. */
static tsr_status refuse_foreign(const tsr_rank_files *f, tsr_error *err)
{
    struct stat info;
    char name[NAME_MAX + 64];
    name_of_directory(f->journals.name, f->tag, name);
    if (f->journals.sys->link_stat_at(f->journals.sys, f->journals.directory, name, &info) != 0) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_EXISTS,
                    "'%s' prevents '%s' from being written, and no save created it; move it away", name, f->request.path);
}

tsr_status tsr_rank_files_begin(tsr_rank_files *f, tsr_journal_files own, const tsr_str *replaced, size_t count,
                                tsr_error *err)
{
    tsr_str *old = tsr_arena_array(f->arena, count, sizeof *old, err);
    if (!old) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        old[i] = tsr_arena_str(f->arena, replaced[i], err);
        if (!old[i].data) return TSR_E_NOMEM;
    }
    TSR_TRY(refuse_foreign(f, err));
    const tsr_journal_share share = {f->request.ranks + 1, f->request.ranks + 1, true};
    TSR_TRY(begin_journal(&f->journals, f->tag, share, own, &f->journal, err));
    const tsr_directory_output_options options = {.is_directory = true,
                                                  .existing = TSR_EXISTING_EITHER,
                                                  .is_within = f->is_within,
                                                  .tag = f->tag,
                                                  .begun = TSR_BEGUN_JOINED,
                                                  .unfinished = TSR_UNFINISHED_KEPT, /* until it is closed */
                                                  .obsolete = old,
                                                  .obsolete_count = count,
                                                  .parent = tsr_journals_parent(&f->journals)};
    return tsr_directory_output_open(f->request.sys, &tsr_allocator_libc, f->request.path, &options, &f->output, err);
}

tsr_output *tsr_rank_files_output(tsr_rank_files *f)
{
    return f->output;
}

/* Takes up a file that a rank has written to `directory`. */
static tsr_status take_up(tsr_rank_files *f, const char *directory, tsr_str name, uint32_t *file, tsr_error *err)
{
    struct stat info;
    const tsr_str path = tsr_arena_format(f->arena, err, "%s/%.*s", directory, TSR_STR_ARG(name));
    if (!path.data) return TSR_E_NOMEM;
    if (f->journals.sys->link_stat_at(f->journals.sys, AT_FDCWD, path.data, &info) != 0)
        return tsr_sys_raise(tsr_naming(err), "look at", path.data);
    return f->output->create(f->output, name, (uint64_t)info.st_size, file, err);
}

tsr_status tsr_rank_files_publish(tsr_rank_files *f, const tsr_str *names, size_t count, uint32_t marker, tsr_error *err)
{
    tsr_error ignored = {0}; /* what is published counts */
    uint32_t file, marker_file = TSR_NO_FILE;
    char directory[PATH_MAX];
    TSR_TRY(tsr_rank_files_directory(f->request.path, directory, err));
    for (size_t i = 0; i < count; i++) {
        TSR_TRY(take_up(f, directory, names[i], &file, err));
        if (i == marker) marker_file = file;
    }
    TSR_TRY(tsr_directory_output_choose(f->output, err));
    TSR_TRY(f->output->sync(f->output, err));
    TSR_TRY(tsr_journals_publishing_output(&f->journals, f->tag, f->output, marker_file, NULL, true, err));
    const tsr_status status = f->output->publish(f->output, marker_file, err);
    if (status == TSR_OK) tsr_journals_remove(&f->journals, f->tag, NULL, &ignored);
    return status;
}

void tsr_rank_files_leave(tsr_rank_files *f)
{
    if (!f) return;
    if (f->output) f->output->close(f->output);
    tsr_journal_close(f->journal);
    tsr_journals_close(&f->journals);
    tsr_arena_free(f->arena);
}

void tsr_rank_files_close(tsr_rank_files *f)
{
    tsr_error ignored = {0};
    if (!f) return;
    if (f->output) {
        tsr_directory_output_drop(f->output);
        f->output->close(f->output);
        f->output = NULL;
    }
    if (f->journal) tsr_journals_discard(&f->journals, f->tag, &ignored); /* also ends or undoes a publication that failed */
    tsr_rank_files_leave(f);
}
