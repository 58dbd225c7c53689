/* Directories that training loops write, opened by their framework's row: its own files are mounted as parts, and what is missing or
 * left out is reported. The rows, what recognizes the directories, and what only one framework needs. */
#include "codec/json.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "formats/parts/mount.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

/* How the files of a part are read. */
typedef enum tsr_source_form {
    TSR_SOURCE_FILE,   /* a file, or an index */
    TSR_SOURCE_DCP,    /* a directory */
    TSR_SOURCE_NAMED,  /* a directory; the names in the first one begin with the part's name already */
    TSR_SOURCE_ROOT,   /* the DCP whose .metadata this is; its names are those of the whole checkpoint */
    TSR_SOURCE_EACH,   /* a part of its own for every number, "PART_N" */
    TSR_SOURCE_RANKS,  /* one part; what rank N has is below "rank_N" */
    TSR_SOURCE_JOINED, /* one part: the files of all ranks are one checkpoint */
    TSR_SOURCE_JSON,   /* documents without tensors */
    TSR_SOURCE_PICKLE
} tsr_source_form;

/* In a pattern, '*' is a number. '#' and '~' are the number of a part that there may be several of: for the first one, '#' is 0, and
 * '~' is nothing; for the others, '~' is "_N". */
typedef struct tsr_source {
    tsr_source_form form;
    const char *pattern;
} tsr_source;

/* A part of a framework's directory. It is optional, as far as no other field says that it is required. */
typedef struct tsr_part_row {
    const char *part;    /* its name; the next ones are called "PART_1", … if a pattern has '#' or '~' */
    tsr_source from[12]; /* the first that is there counts; ends without a pattern */
    /* A name to ask a server for that cannot list its files: the next one of the part, if none was found; for TSR_SOURCE_EACH, the file
     * that the others are counted after, so that they are only asked for if it is there. */
    const char *next;
    /* Mounts what no source can describe; and then there are none. */
    tsr_status (*mounts)(tsr_checkpoint *checkpoint, tsr_error *err);
} tsr_part_row;

/* Names to ask a server for: if one of `with` is there (NULL: always), and none of `without`. All lists end with NULL. */
typedef struct tsr_implied_row {
    const char *const *with, *const *without, *const *names;
} tsr_implied_row;

/* A file without which a save is not complete if it has another one, and why. */
typedef struct tsr_needed_file {
    const char *file, *with, *because;
} tsr_needed_file;

typedef struct tsr_framework {
    tsr_format format;
    const tsr_implied_row *implied; /* ends without names; or NULL */
    const tsr_needed_file *needs;   /* ends without a file; or NULL */
    const char *unfinished;         /* the file that is there until a save is complete; or NULL */
    const tsr_part_row *parts[2];   /* in this order; each ends with a row of nothing; the second may be NULL */
    /* What is reported if it looks like a checkpoint and is not among the parts. */
    enum { TSR_LEFT_IGNORED, TSR_LEFT_FILES, TSR_LEFT_ALL } left;
} tsr_framework;

/* For functions of rows: */

/* Reports files that are missing for ranks below `ranks`; their names are BEFORE, the rank, and AFTER. */
typedef struct tsr_ranks_check {
    tsr_str before, after;
    uint64_t ranks;
    bool by_rank; /* the message counts ranks, instead of files */
    bool placed;  /* the finding names the first missing file as its place */
    bool implies; /* a server is asked for them */
} tsr_ranks_check;

/* ---- directories ---- */

/* Opens the directory of a training framework by the framework's row: mounts its parts, and reports what is missing and what is left
 * out. */

enum { MOST_RANKS = 1 << 20, MOST_NUMBERED = 1024 };

typedef struct mounting {
    tsr_checkpoint *checkpoint;
    bool in_directories; /* a part was found in a directory, so the next ones are asked for there */
    tsr_error *err;
} mounting;

/* ---- patterns ---- */

/* The name that a pattern stands for, for the part with this number; '*' stays. {NULL, 0} without memory. */
static tsr_str name_for(const mounting *m, const char *pattern, unsigned number)
{
    const size_t head = strcspn(pattern, "#~");
    if (!pattern[head]) return tsr_str_from(pattern);
    if (!number)
        return tsr_arena_format(m->checkpoint->arena, m->err, "%.*s%s%s", (int)head, pattern,
                                pattern[head] == '#' ? "0" : "", pattern + head + 1);
    return tsr_arena_format(m->checkpoint->arena, m->err, "%.*s%s%u%s", (int)head, pattern, pattern[head] == '#' ? "" : "_",
                            number, pattern + head + 1);
}

static bool is_repeated(const char *pattern)
{
    return pattern[strcspn(pattern, "#~")];
}

/* The texts before and after the number in a name with '*'. */
static void split(tsr_str name, tsr_str *before, tsr_str *after)
{
    const char *star = memchr(name.data, '*', name.size);
    *before = (tsr_str){name.data, (size_t)(star - name.data)};
    *after = (tsr_str){star + 1, name.size - before->size - 1};
}

/* ---- ranks ---- */

/* The rank that a file of accelerate belongs to by its name, "pytorch_model_fsdp_rank1.bin" or "optimizer_0_rank1.bin"; otherwise
 * TSR_NO_NUMBER. */
static uint64_t accelerate_rank_of(tsr_str name)
{
    const tsr_str mark = TSR_STR("_rank");
    const bool is_accelerates =
        tsr_str_starts(name, TSR_STR("pytorch_model_fsdp_")) || tsr_str_starts(name, TSR_STR("optimizer_"));
    for (size_t at = name.size; is_accelerates && at > mark.size; at--)
        if (memcmp(name.data + at - mark.size, mark.data, mark.size) == 0)
            return tsr_number_in(tsr_str_after(name, at), (tsr_str){"", 0}, TSR_STR(".bin"));
    return TSR_NO_NUMBER;
}

/* One more than the highest rank that any file of the directory belongs to. All files that are one per rank show how many ranks
 * there were. */
static uint64_t count_ranks(const tsr_store *store)
{
    uint64_t count = 0;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        const uint64_t ranks[] = {tsr_number_in(name, TSR_STR("random_states_"), TSR_STR(".pkl")),
                                  tsr_number_in(name, TSR_STR("rng_state_"), TSR_STR(".pth")), accelerate_rank_of(name)};
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
            if (ranks[i] < MOST_RANKS && ranks[i] >= count) count = ranks[i] + 1;
    }
    return count;
}

static tsr_status check_ranks(tsr_checkpoint *checkpoint, const tsr_numbered_files *files, const tsr_ranks_check *check,
                              tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    tsr_str first = {NULL, 0};
    uint64_t missing = check->ranks;
    uint32_t at = 0;
    for (uint32_t i = 0; i < files->count; i++)
        missing -= files->items[i].number < check->ranks && (i == 0 || files->items[i].number != files->items[i - 1].number);
    if (!missing) return TSR_OK;
    for (uint64_t rank = 0; rank < check->ranks && (check->implies || names.count < TSR_NAMES_SHOWN); rank++) {
        while (at < files->count && files->items[at].number < rank) at++;
        if (at < files->count && files->items[at].number == rank) continue;
        const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%.*s%llu%.*s", TSR_STR_ARG(check->before),
                                              (unsigned long long)rank, TSR_STR_ARG(check->after));
        if (!name.data) return TSR_E_NOMEM;
        if (!first.data) first = name;
        if (check->implies) TSR_TRY(tsr_checkpoint_implies(checkpoint, name, err));
        if (names.count < TSR_NAMES_SHOWN) tsr_shown_names_add(&names, name);
    }
    names.count = missing;
    if (!check->placed) first = (tsr_str){NULL, 0};
    if (!check->by_rank) return tsr_report_missing_files(checkpoint, first, &names, check->ranks, err);
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err,
        "the files of %llu of %llu ranks are missing: %s%s; copy them from where the checkpoint was written",
        (unsigned long long)missing, (unsigned long long)check->ranks, names.text, tsr_shown_names_rest(&names));
    return message.data ? tsr_checkpoint_is_incomplete(checkpoint, first, message, err) : TSR_E_NOMEM;
}

/* Begins the part `name`, and mounts the files of all ranks as one checkpoint, or each below "rank_N". */
static tsr_status mount_ranks(tsr_checkpoint *checkpoint, tsr_str name, tsr_source_form form,
                              const tsr_numbered_files *ranks, tsr_error *err)
{
    TSR_TRY(tsr_part_begin(checkpoint, name, false, err));
    if (form == TSR_SOURCE_JOINED) {
        uint32_t *numbers = tsr_arena_array(checkpoint->arena, ranks->count, sizeof *numbers, err);
        if (!numbers) return TSR_E_NOMEM;
        for (uint32_t i = 0; i < ranks->count; i++) numbers[i] = ranks->items[i].file;
        const tsr_form joined = {&tsr_reader_torch_ranks, numbers, ranks->count};
        const bool one = ranks->count == 1;
        const tsr_mount_place place = {.file = one ? numbers[0] : TSR_NO_FILE, .form = one ? NULL : &joined};
        return tsr_part_mount(checkpoint, &place, err);
    }
    for (uint32_t i = 0; i < ranks->count; i++) {
        const tsr_str below =
            tsr_arena_format(checkpoint->arena, err, "rank_%llu", (unsigned long long)ranks->items[i].number);
        if (!below.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_part_mount(checkpoint, &(tsr_mount_place){.below = below, .file = ranks->items[i].file}, err));
    }
    return TSR_OK;
}

/* ---- parts ---- */

static tsr_status mount_file(const mounting *m, tsr_str part, uint32_t file)
{
    TSR_TRY(tsr_part_begin(m->checkpoint, part, false, m->err));
    return tsr_part_mount(m->checkpoint, &(tsr_mount_place){.file = file}, m->err);
}

static tsr_status mount_root(const mounting *m, tsr_str part, uint32_t file)
{
    uint32_t *metadata = TSR_ARENA_NEW(m->checkpoint->arena, uint32_t, m->err);
    if (!metadata) return TSR_E_NOMEM;
    *metadata = file;
    const tsr_form form = {&tsr_reader_dcp, metadata, 1};
    TSR_TRY(tsr_part_begin(m->checkpoint, part, true, m->err));
    return tsr_part_mount(m->checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .form = &form}, m->err);
}

/* Mounts the files of a pattern with '*'. */
static tsr_status mount_numbered(const mounting *m, tsr_source_form form, tsr_str name, tsr_str part, bool *found)
{
    tsr_checkpoint *checkpoint = m->checkpoint;
    tsr_numbered_files files;
    tsr_ranks_check check = {.by_rank = true, .placed = true};
    split(name, &check.before, &check.after);
    TSR_TRY(tsr_list_numbered(checkpoint, check.before, check.after, &files, m->err));
    *found = files.count > 0;
    if (!*found) return TSR_OK;
    if (form != TSR_SOURCE_EACH) {
        TSR_TRY(mount_ranks(checkpoint, part, form, &files, m->err));
        check.ranks = count_ranks(checkpoint->store);
        return ((const tsr_mounts *)checkpoint->state)->skipped ? TSR_OK : check_ranks(checkpoint, &files, &check, m->err);
    }
    for (uint32_t i = 0; i < files.count; i++) {
        const tsr_str own = tsr_arena_format(checkpoint->arena, m->err, "%.*s_%llu", TSR_STR_ARG(part),
                                             (unsigned long long)files.items[i].number);
        if (!own.data) return TSR_E_NOMEM;
        TSR_TRY(mount_file(m, own, files.items[i].file));
    }
    return TSR_OK;
}

/* Whether there are files below a directory of the root. */
static bool has_directory(const tsr_store *store, const char *name)
{
    const tsr_str wanted = tsr_str_from(name);
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str file = store->files[f].name;
        if (file.size > wanted.size && file.data[wanted.size] == '/' && tsr_str_starts(file, wanted)) return true;
    }
    return false;
}

/* Mounts the part with this number from one of its sources, if that is there. */
static tsr_status mount_source(mounting *m, const tsr_source *from, unsigned number, tsr_str part, bool *found)
{
    tsr_checkpoint *checkpoint = m->checkpoint;
    const tsr_str name = name_for(m, from->pattern, number);
    *found = false;
    if (!name.data) return TSR_E_NOMEM;
    if (from->form == TSR_SOURCE_DCP || from->form == TSR_SOURCE_NAMED) {
        *found = has_directory(checkpoint->store, name.data);
        if (!*found) return TSR_OK;
        m->in_directories = true;
        TSR_TRY(tsr_part_begin(checkpoint, part, from->form == TSR_SOURCE_NAMED && !number, m->err));
        return tsr_part_mount(checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .directory = name}, m->err);
    }
    if (from->form == TSR_SOURCE_EACH || from->form == TSR_SOURCE_RANKS || from->form == TSR_SOURCE_JOINED)
        return mount_numbered(m, from->form, name, part, found);
    const uint32_t file = tsr_store_find(checkpoint->store, name);
    *found = file != TSR_NO_FILE;
    if (!*found) return TSR_OK;
    if (from->form == TSR_SOURCE_FILE) return mount_file(m, part, file);
    if (from->form == TSR_SOURCE_ROOT) return mount_root(m, part, file);
    TSR_TRY(tsr_part_begin(checkpoint, part, false, m->err));
    return tsr_part_mount_value(checkpoint, file, from->form == TSR_SOURCE_JSON ? TSR_FORMAT_JSON : TSR_FORMAT_PICKLE,
                                m->err);
}

static tsr_status imply_name(const mounting *m, tsr_str name)
{
    return name.data ? tsr_checkpoint_implies(m->checkpoint, name, m->err) : TSR_E_NOMEM;
}

/* Records further numbers of files that are there: after a first one without a number, the next one. Otherwise as many as there are
 * files, so the files of many ranks are found in a few rounds, each of which doubles their number. */
static tsr_status imply_numbers(const mounting *m, const tsr_part_row *row, const tsr_source *from)
{
    tsr_str before, after;
    tsr_numbered_files files;
    split(tsr_str_from(from->pattern), &before, &after);
    TSR_TRY(tsr_list_numbered(m->checkpoint, before, after, &files, m->err));
    const uint64_t last = files.count ? files.items[files.count - 1].number : 0;
    uint64_t next = files.count, end = 2 * next;
    if (row->next) {
        if (!tsr_has_file(m->checkpoint->store, row->next)) return TSR_OK;
        next = last + 1;
        end = next + 1;
    } else if (last >= files.count) {
        return TSR_OK;
    }
    for (; next < end; next++)
        TSR_TRY(imply_name(m, tsr_arena_format(m->checkpoint->arena, m->err, "%.*s%llu%.*s", TSR_STR_ARG(before),
                                               (unsigned long long)next, TSR_STR_ARG(after))));
    return TSR_OK;
}

/* Mounts a part and those that are numbered after it, and records the name of the first that was not found. */
static tsr_status mount_row(mounting *m, const tsr_part_row *row)
{
    const char *next = row->next;
    bool repeated = false, found = true;
    unsigned number = 0;
    if (row->mounts) return row->mounts(m->checkpoint, m->err);
    for (const tsr_source *from = row->from; from->pattern; from++) {
        repeated = repeated || is_repeated(from->pattern);
        if (from->form == TSR_SOURCE_RANKS || from->form == TSR_SOURCE_EACH) TSR_TRY(imply_numbers(m, row, from));
    }
    for (; found && number < MOST_NUMBERED && (repeated || number == 0); number++) {
        const tsr_str part =
            number ? tsr_arena_format(m->checkpoint->arena, m->err, "%s_%u", row->part, number) : tsr_str_from(row->part);
        if (!part.data) return TSR_E_NOMEM;
        found = false;
        for (const tsr_source *from = row->from; from->pattern && !found; from++) {
            if (number && !is_repeated(from->pattern)) continue;
            TSR_TRY(mount_source(m, from, number, part, &found));
            if (found && from->form == TSR_SOURCE_FILE) next = from->pattern;
        }
    }
    if (!repeated || found) return TSR_OK;
    if (!m->in_directories) return next ? imply_name(m, name_for(m, next, number - 1)) : TSR_OK;
    const tsr_str directory = name_for(m, row->from[0].pattern, number - 1);
    if (!directory.data) return TSR_E_NOMEM;
    return imply_name(m, tsr_arena_format(m->checkpoint->arena, m->err, "%.*s/.metadata", TSR_STR_ARG(directory)));
}

/* ---- what is left out ---- */

static bool is_checkpoint_file(tsr_str path)
{
    static const char *const endings[] = {".safetensors", ".bin", ".pt", ".pth", ".pkl", ".ckpt", ".distcp", ".index.json"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (tsr_str_ends(path, tsr_str_from(endings[i]))) return true;
    return false;
}

/* The directory of a path, up to and including the first slash; empty for a file of the root. */
static tsr_str directory_of(tsr_str path)
{
    const char *slash = memchr(path.data, '/', path.size);
    return (tsr_str){path.data, slash ? (size_t)(slash + 1 - path.data) : 0};
}

/* Reports what looks like a checkpoint and was not mounted, unless a part was requested: files of the root, and unless `only_files`
 * directories of which no file is in use. */
static tsr_status report_left(tsr_checkpoint *checkpoint, bool only_files, tsr_error *err)
{
    const tsr_mounts *mounts = checkpoint->state;
    const tsr_store *store = checkpoint->store;
    const uint32_t *files = mounts->files.items;
    tsr_shown_names names = {.used = 0};
    /* What DeepSpeed's "latest" names is reported already. */
    if (checkpoint->options.part.data || tsr_has_file(store, "latest")) return TSR_OK;
    bool *used = tsr_arena_array(checkpoint->arena, store->file_count, sizeof *used, err);
    if (!used) return TSR_E_NOMEM;
    memset(used, 0, store->file_count * sizeof *used);
    for (size_t i = 0; i < mounts->files.count; i++) used[files[i]] = true;
    for (uint32_t f = 0, end; f < store->file_count; f = end) {
        const tsr_str directory = directory_of(store->files[f].name);
        bool in_use = used[f], is_checkpoint = is_checkpoint_file(store->files[f].name);
        for (end = f + 1; directory.size && end < store->file_count && tsr_str_starts(store->files[end].name, directory);
             end++) {
            in_use = in_use || used[end];
            is_checkpoint = is_checkpoint || is_checkpoint_file(store->files[end].name);
        }
        if (is_checkpoint && !in_use && !(only_files && directory.size))
            tsr_shown_names_add(&names, directory.size ? directory : store->files[f].name);
    }
    if (!names.count) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "parts/left-out", (tsr_place){{NULL, 0}, TSR_NO_POSITION, {NULL, 0}}, err,
                           "%s%s %s not among the parts; open %s by its path", names.text, tsr_shown_names_rest(&names),
                           names.count == 1 ? "is" : "are", names.count == 1 ? "it" : "each of them");
}

/* ---- the whole directory ---- */

static tsr_status check_complete(tsr_checkpoint *checkpoint, const tsr_framework *of, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    for (const tsr_needed_file *needed = of->needs; needed && needed->file; needed++)
        if (tsr_has_file(store, needed->with) && !tsr_has_file(store, needed->file))
            TSR_TRY(
                tsr_checkpoint_is_incomplete(checkpoint, tsr_str_from(needed->file), tsr_str_from(needed->because), err));
    if (!of->unfinished || !tsr_has_file(store, of->unfinished)) return TSR_OK;
    const tsr_str message = tsr_arena_format(
        checkpoint->arena, err,
        "'%s' is there, which the framework removes once a save is complete: the save was interrupted", of->unfinished);
    return tsr_checkpoint_is_incomplete(checkpoint, tsr_str_from(of->unfinished), message, err);
}

/* Mounts the parts of a framework's directory by its row (tsr_mounts_fill). */
static tsr_status framework_mount(tsr_checkpoint *checkpoint, const tsr_framework *of, tsr_error *err)
{
    mounting m = {.checkpoint = checkpoint, .err = err};
    for (const tsr_implied_row *row = of->implied; row && row->names; row++) {
        const bool with = !row->with || tsr_has_any(checkpoint->store, row->with),
                   without = row->without && tsr_has_any(checkpoint->store, row->without);
        for (const char *const *name = row->names; *name && with && !without; name++)
            TSR_TRY(tsr_checkpoint_implies(checkpoint, tsr_str_from(*name), err));
    }
    for (size_t i = 0; i < 2; i++)
        for (const tsr_part_row *row = of->parts[i]; row && (row->part || row->mounts); row++) TSR_TRY(mount_row(&m, row));
    if (of->left) TSR_TRY(report_left(checkpoint, of->left == TSR_LEFT_FILES, err));
    return check_complete(checkpoint, of, err);
}

/* ---- frameworks ---- */

static tsr_status open_framework(tsr_checkpoint *checkpoint, tsr_error *err);
#define READER(name, id) \
    extern const tsr_reader name; \
    const tsr_reader name = {.format = id, .is_rare = true, .open = open_framework, TSR_MOUNTS_READER}

/* The names that the Trainer's model may have, either as a file or as an index. */
#define MODELS \
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json", \
        "adapter_model.safetensors", "adapter_model.bin"

static const tsr_place nowhere = {{NULL, 0}, TSR_NO_POSITION, {NULL, 0}};

/* ---- what the Trainer of transformers, and accelerate's save_state, write next to a model and an optimizer ---- */

static const char *const of_engine[] = {"mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"};

/* Reads the name in DeepSpeed's marker. Empty if there is none, or if the store has no files of that directory. */
static tsr_status read_latest(tsr_checkpoint *checkpoint, tsr_str *directory, tsr_error *err)
{
    const uint32_t marker = tsr_store_find(checkpoint->store, TSR_STR("latest"));
    *directory = (tsr_str){NULL, 0};
    if (marker != TSR_NO_FILE) TSR_TRY(tsr_marker_read(checkpoint, marker, directory, err));
    if (!directory->size || directory->data[0] == '.') return TSR_OK;
    for (size_t i = 0; i < sizeof of_engine / sizeof *of_engine; i++) {
        const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%.*s/%s", TSR_STR_ARG(*directory), of_engine[i]);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_implies(checkpoint, name, err));
    }
    return TSR_OK;
}

/* Under DeepSpeed the Trainer writes 16-bit weights next to the engine's checkpoint, which has float32 weights and the states of the
 * optimizer. The directory is opened for the Trainer's files, so this reports what is left out, unless a part was requested. */
static tsr_status report_deepspeed(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_str directory;
    TSR_TRY(read_latest(checkpoint, &directory, err));
    const bool is_there = directory.size && has_directory(checkpoint->store, directory.data);
    if (!is_there || checkpoint->options.part.size) return TSR_OK;
    return tsr_finding_add(
        checkpoint->findings, "parts/left-out", (tsr_place){TSR_STR("latest"), TSR_NO_POSITION, {NULL, 0}}, err,
        "DeepSpeed's checkpoint '%.*s', with the float32 weights and the optimizer states, is not among the parts; open "
        "it with --step %.*s",
        TSR_STR_ARG(directory), TSR_STR_ARG(directory));
}

/* Both write a scheduler's state only together with an optimizer's, and the Trainer then restores neither. DeepSpeed stores the
 * optimizer elsewhere. */
static tsr_status check_optimizer(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    uint32_t scheduler = tsr_store_find(store, TSR_STR("scheduler.pt"));
    if (scheduler == TSR_NO_FILE) scheduler = tsr_store_find(store, TSR_STR("scheduler.bin"));
    if (scheduler == TSR_NO_FILE || checkpoint->options.part.data || tsr_has_file(store, "latest")) return TSR_OK;
    for (uint32_t f = 0; f < store->file_count; f++)
        if (tsr_str_starts(store->files[f].name, TSR_STR("optimizer"))) return TSR_OK;
    const tsr_str name = store->files[scheduler].name;
    return tsr_finding_add_at(
        checkpoint->findings, (tsr_rated_rule){"parts/incomplete-save", TSR_WARNING},
        (tsr_place){name, TSR_NO_POSITION, {NULL, 0}}, err,
        "'%.*s' was written together with the state of an optimizer, which is not there: it was removed or "
        "not copied, so training would begin with a new optimizer",
        TSR_STR_ARG(name));
}

/* A single process writes one file of random states, several write one per rank. Objects that a program registered are in
 * custom_checkpoint_N.pkl. */
static const tsr_part_row training_state[] = {
    {.mounts = report_deepspeed},
    {.mounts = check_optimizer},
    {.part = "scheduler", .from = {{TSR_SOURCE_FILE, "scheduler.pt"}, {TSR_SOURCE_FILE, "scheduler.bin"}}},
    {.part = "rng_state",
     .from = {{TSR_SOURCE_RANKS, "rng_state_*.pth"},
              {TSR_SOURCE_RANKS, "random_states_*.pkl"},
              {TSR_SOURCE_FILE, "rng_state.pth"}}},
    {.part = "scaler", .from = {{TSR_SOURCE_FILE, "scaler.pt"}}},
    {.part = "sampler", .from = {{TSR_SOURCE_FILE, "sampler.bin"}}},
    {.part = "dl_state_dict", .from = {{TSR_SOURCE_FILE, "dl_state_dict.bin"}}},
    {.part = "scheduler", .from = {{TSR_SOURCE_EACH, "scheduler_*.bin"}}, .next = "scheduler.bin"},
    {.part = "sampler", .from = {{TSR_SOURCE_EACH, "sampler_*.bin"}}, .next = "sampler.bin"},
    {.part = "dl_state_dict", .from = {{TSR_SOURCE_EACH, "dl_state_dict_*.bin"}}, .next = "dl_state_dict.bin"},
    {.part = "custom_checkpoint", .from = {{TSR_SOURCE_EACH, "custom_checkpoint_*.pkl"}}},
    {.part = "trainer_state", .from = {{TSR_SOURCE_JSON, "trainer_state.json"}}},
    {.part = "training_args", .from = {{TSR_SOURCE_FILE, "training_args.bin"}}},
    {.part = NULL},
};

static const tsr_needed_file trainer_needs[] = {
    {"trainer_state.json", "optimizer.pt",
     "'trainer_state.json' is missing next to 'training_args.bin' and 'optimizer.pt': the Trainer writes it "
     "last, so the save was interrupted, or the file was not copied"},
    {.file = NULL},
};

/* ---- the Trainer: a model as save_pretrained writes it, and the training state next to it. Source of the names:
 * transformers/trainer.py, trainer_utils.py ---- */

/* A model, and then either file: the final model that save_model writes has training_args.bin, but no training state. */
static const char *const trainer_files[] = {MODELS, NULL, "trainer_state.json", "training_args.bin", NULL, NULL};
READER(tsr_reader_trainer, TSR_FORMAT_HF_TRAINER);

/* from_pretrained, and the Trainer when it resumes, read these documents before any weights. Whether one must be there cannot be
 * seen: a Trainer of a plain nn.Module writes no config.json. */
static tsr_status check_configs(tsr_checkpoint *checkpoint, tsr_error *err)
{
    static const char *const models[] = {MODELS, NULL}, *const configs[] = {"config.json", "adapter_config.json"};
    const tsr_store *store = checkpoint->store;
    if (checkpoint->options.purpose != TSR_FOR_FINDINGS || store->primary != TSR_NO_FILE || !tsr_has_any(store, models))
        return TSR_OK;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const tsr_str name = tsr_str_from(configs[i]);
        const uint32_t file = tsr_store_find(store, name);
        tsr_error why = {0};
        if (file == TSR_NO_FILE || tsr_part_check_dict(checkpoint, file, &why) == TSR_OK) continue;
        const tsr_place place = {name, why.byte_position, {NULL, 0}};
        TSR_TRY(tsr_finding_add_failure(checkpoint->findings, "file/unreadable", place, &why, err));
    }
    return TSR_OK;
}

const tsr_directory tsr_directory_trainer = {
    .reader = &tsr_reader_trainer, .requires = trainer_files, .has_no_marker = true, .checks = check_configs};

#ifndef TSR_SMALL
static tsr_status mount_trained_modules(tsr_checkpoint *checkpoint, tsr_error *err);
#endif

static const tsr_part_row trainer_parts[] = {
    {.part = "model",
     .from = {{TSR_SOURCE_FILE, "model.safetensors"},
              {TSR_SOURCE_FILE, "model.safetensors.index.json"},
              {TSR_SOURCE_FILE, "pytorch_model.bin"},
              {TSR_SOURCE_FILE, "pytorch_model.bin.index.json"},
              {TSR_SOURCE_FILE, "adapter_model.safetensors"},
              {TSR_SOURCE_FILE, "adapter_model.bin"}}},
#ifndef TSR_SMALL
    {.mounts = mount_trained_modules},
#endif
    {.part = "optimizer",
     .from = {{TSR_SOURCE_FILE, "optimizer.pt"},
              {TSR_SOURCE_FILE, "optimizer.bin"},
              {TSR_SOURCE_DCP, "optimizer"},
              {TSR_SOURCE_NAMED, "optimizer_0"}}},
    {.part = NULL},
};

static const char *const by_trainer[] = {"optimizer.pt",    "scheduler.pt",       "scaler.pt",         "rng_state.pth",
                                         "rng_state_0.pth", "trainer_state.json", "training_args.bin", NULL};
static const char *const states[] = {"scheduler.pt", "rng_state.pth", "rng_state_0.pth", NULL};
static const char *const optimizer[] = {"optimizer.pt", NULL};
/* Under FSDP with full state dicts, and under DeepSpeed: only asked for where there is a training state without optimizer.pt. */
static const char *const instead[] = {"optimizer.bin", "latest", NULL};
static const tsr_implied_row trainer_implied[] = {
    {NULL, NULL, by_trainer}, {states, optimizer, instead}, {NULL, NULL, NULL}};

/* ---- accelerate's save_state: with FSDP, a DCP directory, a file, or a file per rank for each model and optimizer; without FSDP, a
 * file for each. Source of the names: accelerate/checkpointing.py, utils/fsdp_utils.py, constants.py ---- */

static const char *const random_states[] = {"random_states_*.pkl", NULL};

/* A model in one file or in one per rank may have any other files next to it, so the training state must be there too. */
static bool has_fsdp_files(const tsr_store *store)
{
    bool model = tsr_has_file(store, "pytorch_model_fsdp.bin"),
         state = tsr_has_file(store, "optimizer.bin") || tsr_has_file(store, "trainer_state.json");
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        const bool of_rank = accelerate_rank_of(name) != TSR_NO_NUMBER,
                   is_model = tsr_str_starts(name, TSR_STR("pytorch_model_fsdp"));
        model = model || (of_rank && is_model);
        state = state || (of_rank && !is_model) || tsr_str_starts(name, TSR_STR("optimizer_0/"));
    }
    return model && (state || tsr_has_any(store, random_states));
}

static tsr_status is_fsdp(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    (void)err;
    *is = has_directory(store, "pytorch_model_fsdp_0") || (!tsr_has_any(store, trainer_files) && has_fsdp_files(store));
    return TSR_OK;
}

static bool is_beside_deepspeed(tsr_str name)
{
    static const char *const parts[] = {"random_states_", "scheduler", "sampler",
                                        "dl_state_dict",  "scaler.pt", "custom_checkpoint_"};
    bool is = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !is; i++) is = tsr_str_starts(name, tsr_str_from(parts[i]));
    return is && !memchr(name.data, '/', name.size) &&
           (tsr_str_ends(name, TSR_STR(".bin")) || tsr_str_ends(name, TSR_STR(".pkl")) ||
            tsr_str_ends(name, TSR_STR(".pt")));
}

/* Adds a finding for accelerate's files next to the DeepSpeed checkpoint of a step, which are not among its parts. */
static tsr_status check_accelerate(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *around = checkpoint->given;
    tsr_shown_names names = {.used = 0};
    const bool is_step = around != checkpoint->store && !memchr(checkpoint->step.data, '/', checkpoint->step.size);
    if (!is_step || checkpoint->catalog.format != TSR_FORMAT_DEEPSPEED || checkpoint->options.part.data ||
        !tsr_has_any(around, random_states))
        return TSR_OK;
    for (uint32_t f = 0; f < around->file_count; f++)
        if (is_beside_deepspeed(around->files[f].name)) tsr_shown_names_add(&names, around->files[f].name);
    return tsr_finding_add(checkpoint->findings, "parts/left-out", nowhere, err,
                           "%s%s, which accelerate saved next to '%.*s', %s not among the parts; open %s by its path",
                           names.text, tsr_shown_names_rest(&names), TSR_STR_ARG(checkpoint->step),
                           names.count == 1 ? "is" : "are", names.count == 1 ? "it" : "each of them");
}

/* A program may have accelerate save its models in another way, so an optimizer is enough. */
static const char *const accelerate_files[] = {"random_states_*.pkl", NULL, MODELS, "optimizer.bin", NULL, NULL};
READER(tsr_reader_accelerate_fsdp, TSR_FORMAT_ACCELERATE_FSDP);
READER(tsr_reader_accelerate, TSR_FORMAT_ACCELERATE);
const tsr_directory tsr_directory_accelerate_fsdp = {
    .reader = &tsr_reader_accelerate_fsdp, .recognizes = is_fsdp, .has_no_marker = true, .checks = check_accelerate};
const tsr_directory tsr_directory_accelerate = {
    .reader = &tsr_reader_accelerate, .requires = accelerate_files, .has_no_marker = true};

/* The first model and the first optimizer have no number. A program may have accelerate save its models in another way, but then all of
 * them. */
static tsr_status check_first(tsr_checkpoint *checkpoint, tsr_error *err)
{
    static const struct {
        const char *what, *first[5], *second[5];
    } rows[] = {
        {"model",
         {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"},
         {"model_1.safetensors", "model_1.safetensors.index.json", "pytorch_model_1.bin", "pytorch_model_1.bin.index.json"}},
        {"optimizer", {"optimizer.bin"}, {"optimizer_1.bin"}}};
    if (checkpoint->options.part.data) return TSR_OK;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        if (tsr_has_any(checkpoint->store, rows[r].first)) continue;
        for (size_t i = 0; rows[r].second[i]; i++)
            if (tsr_has_file(checkpoint->store, rows[r].second[i]))
                return tsr_checkpoint_is_incomplete(
                    checkpoint, tsr_str_from(rows[r].first[i]),
                    tsr_arena_format(checkpoint->arena, err,
                                     "'%s' is missing next to '%s', which is the second %s: it was removed or not copied",
                                     rows[r].first[i], rows[r].second[i], rows[r].what),
                    err);
    }
    return TSR_OK;
}

/*   model.safetensors, model_1.safetensors          without FSDP; or pytorch_model.bin, or an index
 *   pytorch_model_fsdp.bin, …_fsdp_1.bin            FULL_STATE_DICT
 *   pytorch_model_fsdp_0/, …_fsdp_1/                SHARDED_STATE_DICT: DCPs whose names begin with "model." and "optimizer."
 *   pytorch_model_fsdp_0_rank1.bin                  the same with one file per rank
 *   pytorch_model_fsdp_rank1.bin, …_1_rank1.bin     LOCAL_STATE_DICT, with optimizers in DCPs */
static const tsr_part_row accelerate_parts[] = {
    {.mounts = check_first},
    {.part = "model",
     .from = {{TSR_SOURCE_NAMED, "pytorch_model_fsdp_#"},
              {TSR_SOURCE_FILE, "model~.safetensors"},
              {TSR_SOURCE_FILE, "model~.safetensors.index.json"},
              {TSR_SOURCE_FILE, "pytorch_model~.bin"},
              {TSR_SOURCE_FILE, "pytorch_model~.bin.index.json"},
              {TSR_SOURCE_FILE, "pytorch_model_fsdp~.bin"},
              {TSR_SOURCE_FILE, "adapter_model~.safetensors"},
              {TSR_SOURCE_FILE, "adapter_model~.bin"},
              {TSR_SOURCE_JOINED, "pytorch_model_fsdp_#_rank*.bin"},
              {TSR_SOURCE_JOINED, "pytorch_model_fsdp_rank*.bin"}}},
    {.part = "optimizer",
     .from = {{TSR_SOURCE_NAMED, "optimizer_#"},
              {TSR_SOURCE_FILE, "optimizer~.bin"},
              {TSR_SOURCE_JOINED, "optimizer_#_rank*.bin"},
              {TSR_SOURCE_JOINED, "optimizer_rank*.bin"}},
     .next = "optimizer~.bin"},
    {.part = NULL},
};

/* A server is asked for random_states_0.pkl together with the first files. It shows that accelerate wrote the directory. */
static const char *const first_states[] = {"random_states_0.pkl", NULL};
static const char *const of_accelerate[] = {
    "scheduler.bin",           "sampler.bin",       "scaler.pt", "random_states_0.pkl",
    "custom_checkpoint_0.pkl", "dl_state_dict.bin", NULL};
static const char *const of_trainer[] = {"trainer_state.json", NULL};
static const char *const with_trainer[] = {"scheduler.pt",    "scaler.pt",         "rng_state.pth",
                                           "rng_state_0.pth", "training_args.bin", NULL};
static const tsr_implied_row accelerate_implied[] = {{first_states, NULL, of_accelerate},
                                                     {NULL, first_states, of_trainer},
                                                     {of_trainer, first_states, with_trainer},
                                                     {NULL, NULL, NULL}};

/* ---- Lightning's distributed checkpoints (ModelParallelStrategy, FSDP with sharded state dicts): a DCP, and meta.pt with everything
 * that is not a tensor, which is written last. Source of the names: lightning/fabric/strategies/model_parallel.py, fsdp.py ---- */

/* Whether the name begins like "optimizer_0.state.…", which is how Lightning names the optimizers of a Trainer. */
static bool is_of_optimizer(tsr_str fqn)
{
    const tsr_str before = TSR_STR("optimizer_");
    size_t at = before.size;
    if (!tsr_str_starts(fqn, before)) return false;
    while (at < fqn.size && tsr_is_digit(fqn.data[at])) at++;
    return at > before.size && at < fqn.size && fqn.data[at] == '.';
}

/* Adds a finding for a DCP with Lightning's names but without meta.pt. */
static tsr_status check_lightning(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    bool weights = false, optimizers = false;
    if (catalog->format != TSR_FORMAT_DCP || checkpoint->is_probe || checkpoint->store->primary != TSR_NO_FILE)
        return TSR_OK;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_str fqn = catalog->entries[i].fqn;
        if (tsr_str_starts(fqn, TSR_STR("state_dict."))) weights = true;
        else if (is_of_optimizer(fqn)) optimizers = true;
        else return TSR_OK;
    }
    if (!weights || !optimizers || tsr_has_file(checkpoint->store, "meta.pt")) return TSR_OK;
    const tsr_str message =
        TSR_STR("'meta.pt' is missing: Lightning writes it last, so the save was interrupted, or the file was not copied");
    return tsr_checkpoint_is_incomplete(checkpoint, TSR_STR("meta.pt"), message, err);
}

static const char *const lightning_files[] = {".metadata", NULL, "meta.pt", NULL, NULL};
READER(tsr_reader_lightning, TSR_FORMAT_LIGHTNING_DIST);
const tsr_directory tsr_directory_lightning = {
    .reader = &tsr_reader_lightning, .requires = lightning_files, .checks = check_lightning};

static const tsr_part_row lightning_parts[] = {
    {.part = "", .from = {{TSR_SOURCE_ROOT, ".metadata"}}},
    {.part = "meta", .from = {{TSR_SOURCE_FILE, "meta.pt"}}},
    {.part = NULL},
};

/* ---- verl's FSDP checkpoints: model, optimizer and other state, each as one torch.save file per rank. The name of every file states
 * the number of ranks. Source of the names: verl/utils/checkpoint/fsdp_checkpoint_manager.py ---- */

enum { FRAMEWORKS_MOST_RANKS = 1 << 20 };

typedef struct kind {
    const char *part;
    const char *before; /* file name up to the number of ranks */
    tsr_source_form form;
} kind;
static const kind kinds[] = {{"model", "model_world_size_", TSR_SOURCE_JOINED},
                             {"optim", "optim_world_size_", TSR_SOURCE_JOINED},
                             {"extra_state", "extra_state_world_size_", TSR_SOURCE_RANKS}};

/* The number of ranks in "model_world_size_3_rank_0.pt"; 0 for any other name. */
static uint64_t world_of(tsr_str name, tsr_str before)
{
    uint64_t world = 0;
    size_t at = before.size;
    if (!tsr_str_starts(name, before)) return 0;
    for (; at < name.size && tsr_is_digit(name.data[at]) && world < FRAMEWORKS_MOST_RANKS; at++)
        world = world * 10 + (uint64_t)(name.data[at] - '0');
    const tsr_str rest = {name.data + at, name.size - at};
    return tsr_str_starts(rest, TSR_STR("_rank_")) && tsr_str_ends(rest, TSR_STR(".pt")) ? world : 0;
}

/* The number of ranks that most files of a kind state in their names; 0 if there are no such files. */
static uint64_t find_world(const tsr_store *store, const kind *k)
{
    tsr_majority world = {0};
    for (uint32_t f = 0; f < store->file_count; f++)
        tsr_majority_vote(&world, world_of(store->files[f].name, tsr_str_from(k->before)));
    return world.value;
}

/* The first file of a kind whose name states a number of ranks other than `world`, or TSR_NO_FILE. */
static uint32_t find_stranger(const tsr_store *store, const kind *k, uint64_t world)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        const uint64_t own = world_of(store->files[f].name, tsr_str_from(k->before));
        if (own && own != world) return f;
    }
    return TSR_NO_FILE;
}

/* Parses a document. *out is NULL if it is not there, or is not JSON. */
static tsr_status read_document(tsr_checkpoint *checkpoint, tsr_str name, cJSON **out, tsr_error *err)
{
    const uint32_t file = tsr_store_find(checkpoint->store, name);
    tsr_bytes text;
    tsr_error why = {0};
    *out = NULL;
    if (file == TSR_NO_FILE) return TSR_OK;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &text, err));
    const tsr_status status = tsr_json_parse(text.data, checkpoint->host, out, &why);
    tsr_bytes_free(&text);
    if (status != TSR_OK) *out = NULL;
    return status == TSR_E_NOMEM ? tsr_raise_again(err, status, &why) : TSR_OK;
}

/* Sets *world to the number of ranks in fsdp_config.json, or to 0 if it does not exist or states none. */
static tsr_status stated_world(tsr_checkpoint *checkpoint, uint64_t *world, tsr_error *err)
{
    cJSON *root;
    *world = 0;
    TSR_TRY(read_document(checkpoint, TSR_STR("fsdp_config.json"), &root, err));
    const cJSON *stated = cJSON_GetObjectItemCaseSensitive(root, "world_size");
    if (cJSON_IsNumber(stated) && stated->valuedouble >= 1 && stated->valuedouble <= FRAMEWORKS_MOST_RANKS)
        *world = (uint64_t)stated->valuedouble;
    cJSON_Delete(root);
    return TSR_OK;
}

/* Recognizes verl by the models' files. If the store is a server that cannot list its files, fsdp_config.json may be the
 * only file known. */
static tsr_status is_verl(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    uint64_t world = find_world(checkpoint->store, &kinds[0]);
    if (!world && checkpoint->store->file_count == 1) TSR_TRY(stated_world(checkpoint, &world, err));
    *is = world > 0;
    return TSR_OK;
}

/* Reports a file from a save with another number of ranks: other than most files of its kind, or than the kinds before
 * it. */
static tsr_status check_world(tsr_checkpoint *checkpoint, const kind *k, uint64_t world, uint64_t common, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    const uint32_t mixed = find_stranger(store, k, world),
                   stranger = mixed == TSR_NO_FILE ? find_stranger(store, k, common) : mixed;
    if (stranger == TSR_NO_FILE) return TSR_OK;
    const tsr_str name = store->files[stranger].name;
    const tsr_str message = tsr_arena_format(checkpoint->arena, err,
                                             "'%.*s' comes from %llu ranks, but other files from %llu: two saves are mixed",
                                             TSR_STR_ARG(name), (unsigned long long)world_of(name, tsr_str_from(k->before)),
                                             (unsigned long long)(mixed == TSR_NO_FILE ? common : world));
    return message.data ? tsr_checkpoint_is_incomplete(checkpoint, name, message, err) : TSR_E_NOMEM;
}

/* Records rank 0's file of a kind that verl writes only on request. If a server has it, those of the other ranks are found
 * too. */
static tsr_status imply_first(tsr_checkpoint *checkpoint, const kind *k, uint64_t world, tsr_error *err)
{
    const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%s%llu_rank_0.pt", k->before, (unsigned long long)world);
    return name.data ? tsr_checkpoint_implies(checkpoint, name, err) : TSR_E_NOMEM;
}

static tsr_status mount_kind(tsr_checkpoint *checkpoint, const kind *k, uint64_t *common, tsr_error *err)
{
    tsr_numbered_files files;
    uint64_t world = find_world(checkpoint->store, k);
    if (!world && k == kinds) TSR_TRY(stated_world(checkpoint, &world, err));
    if (!world) return imply_first(checkpoint, k, *common, err);
    if (!*common) *common = world;
    TSR_TRY(check_world(checkpoint, k, world, *common, err));
    const tsr_str before = tsr_arena_format(checkpoint->arena, err, "%s%llu_rank_", k->before, (unsigned long long)world);
    if (!before.data) return TSR_E_NOMEM;
    const tsr_ranks_check check = {
        .before = before, .after = TSR_STR(".pt"), .ranks = world, .placed = true, .implies = true};
    TSR_TRY(tsr_list_numbered(checkpoint, check.before, check.after, &files, err));
    TSR_TRY(check_ranks(checkpoint, &files, &check, err));
    return files.count ? mount_ranks(checkpoint, tsr_str_from(k->part), k->form, &files, err) : TSR_OK;
}

static tsr_status mount_verl(tsr_checkpoint *checkpoint, tsr_error *err)
{
    uint64_t world = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) TSR_TRY(mount_kind(checkpoint, &kinds[k], &world, err));
    return TSR_OK;
}

static const tsr_part_row verl_parts[] = {{.mounts = mount_verl}, {.part = NULL}};
READER(tsr_reader_verl, TSR_FORMAT_VERL);
const tsr_directory tsr_directory_verl = {.reader = &tsr_reader_verl, .recognizes = is_verl, .has_no_marker = true};

/* ---- the package torch_checkpointing: a torch.save file per item and rank ("model_0.pt"), and metadata.pkl, a plain pickle. Source of
 * the names: torch_checkpointing/checkpoint_layout.py, metadata_serialization.py ---- */

/* "model" for a file "model_0.pt" in the root; empty for any other name. */
static tsr_str item_of(tsr_str name)
{
    const tsr_str after = TSR_STR(".pt");
    size_t at = name.size > after.size && tsr_str_ends(name, after) ? name.size - after.size : 0;
    const size_t end = at;
    while (at && tsr_is_digit(name.data[at - 1])) at--;
    const bool is = at > 1 && at < end && name.data[at - 1] == '_' && !memchr(name.data, '/', name.size);
    return is ? (tsr_str){name.data, at - 1} : (tsr_str){NULL, 0};
}

static tsr_status is_torch_checkpointing(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    (void)err;
    *is = false;
    for (uint32_t f = 0; f < checkpoint->store->file_count && !*is; f++)
        *is = item_of(checkpoint->store->files[f].name).size > 0;
    return TSR_OK;
}

static tsr_status mount_item(tsr_checkpoint *checkpoint, tsr_str item, tsr_error *err)
{
    tsr_numbered_files files;
    const tsr_str before = tsr_arena_format(checkpoint->arena, err, "%.*s_", TSR_STR_ARG(item));
    if (!before.data) return TSR_E_NOMEM;
    tsr_ranks_check check = {.before = before, .after = TSR_STR(".pt")};
    TSR_TRY(tsr_list_numbered(checkpoint, check.before, check.after, &files, err));
    if (!files.count) return TSR_OK;
    check.ranks = files.items[files.count - 1].number + 1; /* every rank below the highest one wrote the item, too */
    TSR_TRY(check_ranks(checkpoint, &files, &check, err));
    return mount_ranks(checkpoint, item, TSR_SOURCE_JOINED, &files, err);
}

static bool is_earlier(const tsr_store *store, uint32_t before, tsr_str item)
{
    for (uint32_t f = 0; f < before; f++)
        if (tsr_str_equal(item_of(store->files[f].name), item)) return true;
    return false;
}

static tsr_status mount_items(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    tsr_str last = {NULL, 0};
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str item = item_of(store->files[f].name);
        if (!item.size || tsr_str_equal(item, last) || is_earlier(store, f, item)) continue;
        last = item;
        TSR_TRY(mount_item(checkpoint, item, err));
    }
    return TSR_OK;
}

static const char *const torch_checkpointing_files[] = {"metadata.pkl", NULL, NULL};
READER(tsr_reader_torch_checkpointing, TSR_FORMAT_TORCH_CHECKPOINTING);
const tsr_directory tsr_directory_torch_checkpointing = {.reader = &tsr_reader_torch_checkpointing,
                                                         .requires = torch_checkpointing_files,
                                                         .recognizes = is_torch_checkpointing,
                                                         .has_no_marker = true};

static const tsr_part_row torch_checkpointing_parts[] = {
    {.mounts = mount_items},
    {.part = "metadata", .from = {{TSR_SOURCE_PICKLE, "metadata.pkl"}}},
    {.part = NULL},
};

/* ---- directories of DCPs: a model, an optimizer or a whole trainer in a directory of its own each, with what else belongs to the step.
 * The names are so general that the DCP's .metadata has to be where the framework puts it. ---- */

/* NeMo 2. The weights are Megatron-Core's. Source of the names: nemo/lightning/ckpt_utils.py, io/mixin.py */
static const char *const nemo_files[] = {"weights/.metadata", NULL, "context/io.json", "context/model.yaml", NULL, NULL};
READER(tsr_reader_nemo, TSR_FORMAT_NEMO);
const tsr_directory tsr_directory_nemo = {.reader = &tsr_reader_nemo, .requires = nemo_files, .has_no_marker = true};
static const tsr_part_row nemo_parts[] = {
    {.part = "model", .from = {{TSR_SOURCE_DCP, "weights"}}},
    {.part = "context", .from = {{TSR_SOURCE_JSON, "context/io.json"}}},
    {.part = NULL},
};

/* NeMo Automodel. Next to the shards that every rank writes of the model is a script that joins them. Source of the names:
 * nemo_automodel/components/checkpoint/checkpointing.py, recipes/base_recipe.py */
#define AUTOMODEL_UNFINISHED ".incomplete"
static const char *const automodel_files[] = {"optim/.metadata",
                                              AUTOMODEL_UNFINISHED,
                                              NULL,
                                              "model/.metadata",
                                              "model/model.safetensors.index.json",
                                              "model/model.safetensors",
                                              "model/adapter_model.safetensors",
                                              "model/consolidate.sh",
                                              AUTOMODEL_UNFINISHED,
                                              NULL,
                                              "config.yaml",
                                              "losses.json",
                                              AUTOMODEL_UNFINISHED,
                                              NULL,
                                              NULL};
READER(tsr_reader_automodel, TSR_FORMAT_AUTOMODEL);
const tsr_directory tsr_directory_automodel = {
    .reader = &tsr_reader_automodel, .requires = automodel_files, .has_no_marker = true};
static const tsr_part_row automodel_parts[] = {
    {.part = "model", .from = {{TSR_SOURCE_DCP, "model"}}},
    {.part = "optim", .from = {{TSR_SOURCE_DCP, "optim"}}},
    {.part = "rng",
     .from = {{TSR_SOURCE_RANKS, "rng/rng_global_rank_*.pt"},
              {TSR_SOURCE_RANKS, "rng/rng_dp_rank_*.pt"},
              {TSR_SOURCE_FILE, "rng.pt"}}},
    {.part = "dataloader", .from = {{TSR_SOURCE_RANKS, "dataloader/dataloader_dp_rank_*.pt"}}},
    {.part = "step_scheduler", .from = {{TSR_SOURCE_FILE, "step_scheduler.pt"}}},
    {.part = "lr_scheduler", .from = {{TSR_SOURCE_FILE, "lr_scheduler.pt"}}},
    {.part = NULL},
};

/* OLMo-core: the names in the DCP, "model.…" and "optim.…", are those of the whole checkpoint. Source of the names:
 * olmo_core/train/checkpoint.py */
static const char *const olmo_files[] = {"model_and_optim/.metadata", NULL, NULL};
READER(tsr_reader_olmo, TSR_FORMAT_OLMO_CORE);
const tsr_directory tsr_directory_olmo = {.reader = &tsr_reader_olmo, .requires = olmo_files, .has_no_marker = true};
static const tsr_part_row olmo_parts[] = {
    {.part = "", .from = {{TSR_SOURCE_NAMED, "model_and_optim"}}},
    {.part = "train", .from = {{TSR_SOURCE_RANKS, "train/rank*.pt"}}},
    {.part = "config", .from = {{TSR_SOURCE_JSON, "config.json"}}},
    {.part = NULL},
};

static const tsr_needed_file olmo_needs[] = {
    {".metadata.json", "train/rank0.pt",
     "'.metadata.json' is missing next to 'train/rank0.pt': OLMo-core writes it last, so the save was interrupted, or the file was "
     "not copied"},
    {"train/rank0.pt", ".metadata.json",
     "'train/rank0.pt' is missing next to '.metadata.json', and OLMo-core finds no checkpoint without it: copy it from where the "
     "checkpoint was written"},
    {.file = NULL},
};

/* prime-rl. Source of the names: prime_rl/trainer/ckpt.py, orchestrator/ckpt.py */
static const char *const prime_files[] = {"trainer/.metadata", NULL, "orchestrator/progress.pt", NULL, NULL};
READER(tsr_reader_prime, TSR_FORMAT_PRIME_RL);
const tsr_directory tsr_directory_prime = {.reader = &tsr_reader_prime, .requires = prime_files, .has_no_marker = true};
static const tsr_part_row prime_parts[] = {
    {.part = "trainer", .from = {{TSR_SOURCE_DCP, "trainer"}}},
    {.part = "orchestrator", .from = {{TSR_SOURCE_FILE, "orchestrator/progress.pt"}}},
    {.part = NULL},
};

/* ---- pipelines of diffusers: model_index.json names the directories of the models, of schedulers and of tokenizers ---- */

#define PIPELINE "model_index.json"

/* Whether a directory of the pipeline has the weights of a model. */
static bool has_weights(const tsr_store *store, tsr_str directory)
{
    uint32_t at = tsr_store_find_from(store, directory), file;
    while ((file = tsr_store_next_below(store, directory, &at)) != TSR_NO_FILE) {
        const tsr_str name = store->files[file].name;
        if (tsr_str_ends(name, TSR_STR(".safetensors")) || tsr_str_ends(name, TSR_STR(".bin"))) return true;
    }
    return false;
}

/* Calls `each` for the directories, in the order of the document, and finds out whether any has weights. A document that cannot be read is
 * not a pipeline's. */
static tsr_status each_component(tsr_checkpoint *checkpoint, tsr_status (*each)(tsr_checkpoint *, tsr_str, tsr_error *),
                                 bool *any, tsr_error *err)
{
    const cJSON *component;
    cJSON *root;
    tsr_status status = TSR_OK;
    *any = false;
    TSR_TRY(read_document(checkpoint, TSR_STR(PIPELINE), &root, err));
    cJSON_ArrayForEach(component, root)
    {
        const tsr_str name = tsr_json_key_of(component);
        if (status != TSR_OK || !name.size || !cJSON_IsArray(component)) continue;
        *any = *any || has_weights(checkpoint->store, name);
        if (each) status = each(checkpoint, name, err);
    }
    cJSON_Delete(root);
    return status;
}

static tsr_status is_pipeline(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    return each_component(checkpoint, NULL, is, err);
}

/* Only models have a config.json: schedulers, tokenizers and processors call theirs differently, and have no weights. */
static tsr_status mount_model(tsr_checkpoint *checkpoint, tsr_str name, tsr_error *err)
{
    const tsr_str config = tsr_arena_format(checkpoint->arena, err, "%.*s/config.json", TSR_STR_ARG(name));
    if (!config.data) return TSR_E_NOMEM;
    if (!has_weights(checkpoint->store, name)) {
        if (!tsr_has_file(checkpoint->store, config.data)) return TSR_OK;
        return tsr_checkpoint_is_incomplete(
            checkpoint, config,
            tsr_arena_format(checkpoint->arena, err,
                             PIPELINE
                             " names the model '%.*s', whose directory has no weights: they were removed or not copied",
                             TSR_STR_ARG(name)),
            err);
    }
    const tsr_str part = tsr_arena_str(checkpoint->arena, name, err);
    if (!part.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_part_begin(checkpoint, part, false, err));
    return tsr_part_mount(checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .directory = part}, err);
}

static tsr_status mount_pipeline(tsr_checkpoint *checkpoint, tsr_error *err)
{
    bool any;
    return each_component(checkpoint, mount_model, &any, err);
}

static const char *const pipeline_files[] = {PIPELINE, NULL, NULL};
READER(tsr_reader_diffusers, TSR_FORMAT_DIFFUSERS);
const tsr_directory tsr_directory_diffusers = {
    .reader = &tsr_reader_diffusers, .requires = pipeline_files, .recognizes = is_pipeline, .has_no_marker = true};
static const tsr_part_row pipeline_parts[] = {{.mounts = mount_pipeline}, {.part = NULL}};

#ifndef TSR_SMALL /* the browser's module has no room for them */
/* ---- models of sentence-transformers: modules.json lists the modules that a model consists of, each with its directory; the first one is
 * usually in the root. A Router has modules, too, in directories that its config lists. Source of the names:
 * sentence_transformers/base/model.py, base/modules/router.py ---- */

#define MODULES "modules.json"

typedef struct sentence_module {
    tsr_str part, class, directory; /* the directory is empty for the root */
} sentence_module;

static bool is_class(tsr_str class, const char *const *names)
{
    while (*names && !tsr_str_equal(class, tsr_str_from(*names))) names++;
    return *names;
}

static bool is_router(tsr_str class)
{
    static const char *const routers[] = {"Router", "Asym", NULL};
    return is_class(class, routers);
}

/* Adds the module in the directory `name` of `above`, both of which may be empty. `type` is the name of a class with its module. */
static tsr_status add_module(tsr_checkpoint *checkpoint, tsr_vec *modules, tsr_str above, tsr_str name, const cJSON *type,
                             tsr_error *err)
{
    if (!cJSON_IsString(type) || modules->count == MOST_NUMBERED) return TSR_OK;
    tsr_arena *arena = checkpoint->arena;
    sentence_module *module = tsr_vec_push(modules, err);
    if (!module) return TSR_E_NOMEM;
    module->class = tsr_arena_str(arena, tsr_last_component(tsr_json_text_of(type)), err);
    while (name.size && name.data[name.size - 1] == '/') name.size--;
    module->directory =
        tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(above), above.size ? "/" : "", TSR_STR_ARG(name));
    /* Older versions call the directory of the first module so, too. */
    module->part = module->directory.size
                       ? tsr_arena_str(arena, module->directory, err)
                       : tsr_arena_format(arena, err, "%zu_%.*s", modules->count - 1, TSR_STR_ARG(module->class));
    if (!module->class.data || !module->directory.data || !module->part.data) return TSR_E_NOMEM;
    for (size_t i = 0; i < module->part.size; i++)
        if (module->part.data[i] == '/') ((char *)(uintptr_t)module->part.data)[i] = '_';
    return TSR_OK;
}

/* Adds the modules of a Router. Its config had a more general name before. */
static tsr_status add_routed(tsr_checkpoint *checkpoint, tsr_vec *modules, const sentence_module *router, tsr_error *err)
{
    static const char *const configs[] = {"router_config.json", "config.json"};
    const tsr_str above = router->directory;
    tsr_status status = TSR_OK;
    cJSON *root = NULL;
    const cJSON *type, *types;
    for (size_t i = 0; i < sizeof configs / sizeof *configs && !root; i++) {
        const tsr_str name =
            tsr_arena_format(checkpoint->arena, err, "%.*s%s%s", TSR_STR_ARG(above), above.size ? "/" : "", configs[i]);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(read_document(checkpoint, name, &root, err));
    }
    types = cJSON_GetObjectItemCaseSensitive(root, "types");
    cJSON_ArrayForEach(type, types)
    {
        if (status == TSR_OK) status = add_module(checkpoint, modules, above, tsr_json_key_of(type), type, err);
    }
    cJSON_Delete(root);
    return status;
}

/* Adds the modules of the document, and then those of the Routers among them. Without the document there are none. */
static tsr_status list_modules(tsr_checkpoint *checkpoint, tsr_vec *modules, tsr_error *err)
{
    cJSON *root;
    const cJSON *item;
    tsr_status status = TSR_OK;
    TSR_TRY(read_document(checkpoint, TSR_STR(MODULES), &root, err));
    const cJSON *list = cJSON_IsArray(root) ? root : NULL;
    cJSON_ArrayForEach(item, list)
    {
        const cJSON *path = cJSON_GetObjectItemCaseSensitive(item, "path");
        if (status != TSR_OK || !cJSON_IsString(path)) continue;
        status = add_module(checkpoint, modules, (tsr_str){"", 0}, tsr_json_text_of(path),
                            cJSON_GetObjectItemCaseSensitive(item, "type"), err);
    }
    cJSON_Delete(root);
    for (size_t i = 0; i < modules->count && status == TSR_OK; i++) {
        const sentence_module module = ((const sentence_module *)modules->items)[i]; /* the list may move */
        if (is_router(module.class)) status = add_routed(checkpoint, modules, &module, err);
    }
    return status;
}

/* A model whose weights are all in the root is opened like any other. */
static tsr_status is_sentence_model(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    tsr_vec modules = tsr_vec_of(checkpoint->host->allocator, sizeof(sentence_module));
    const tsr_status status = list_modules(checkpoint, &modules, err);
    const sentence_module *items = modules.items;
    *is = false;
    for (size_t i = 0; i < modules.count && !*is; i++)
        *is = items[i].directory.size && has_weights(checkpoint->store, items[i].directory);
    tsr_vec_free(&modules);
    return status;
}

static tsr_status mount_module(tsr_checkpoint *checkpoint, const sentence_module *module, tsr_error *err)
{
    static const char *const models[] = {MODELS, NULL};
    /* Others, such as Pooling and Normalize, have no weights, or not always. */
    static const char *const weighty[] = {
        "Transformer",          "MLMTransformer",    "CLIPModel", "StaticEmbedding", "Dense", "LayerNorm", "LSTM", "CNN",
        "WeightedLayerPooling", "SparseAutoEncoder", NULL};
    const tsr_str directory = module->directory;
    const bool is_root = !directory.size,
               has = is_root ? tsr_has_any(checkpoint->store, models) : has_weights(checkpoint->store, directory);
    if (is_router(module->class)) return TSR_OK;
    if (has && is_root) {
        tsr_part_row row = trainer_parts[0];
        row.part = module->part.data;
        return mount_row(&(mounting){.checkpoint = checkpoint, .err = err}, &row);
    }
    if (has) {
        TSR_TRY(tsr_part_begin(checkpoint, module->part, false, err));
        return tsr_part_mount(checkpoint, &(tsr_mount_place){.file = TSR_NO_FILE, .directory = directory}, err);
    }
    if (!is_class(module->class, weighty)) return TSR_OK;
    return tsr_checkpoint_is_incomplete(
        checkpoint, TSR_STR(MODULES),
        tsr_arena_format(checkpoint->arena, err,
                         MODULES " names a module '%.*s', which has no weights %s%.*s%s: they were removed or not copied",
                         TSR_STR_ARG(module->class), is_root ? "in the root" : "in '", TSR_STR_ARG(directory),
                         is_root ? "" : "'"),
        err);
}

/* Mounts the modules, those in the root only with `root`. */
static tsr_status mount_modules(tsr_checkpoint *checkpoint, bool root, tsr_error *err)
{
    tsr_vec modules = tsr_vec_of(checkpoint->host->allocator, sizeof(sentence_module));
    tsr_status status = list_modules(checkpoint, &modules, err);
    const sentence_module *items = modules.items;
    for (size_t i = 0; i < modules.count && status == TSR_OK; i++)
        if (root || items[i].directory.size) status = mount_module(checkpoint, &items[i], err);
    tsr_vec_free(&modules);
    return status;
}

static tsr_status mount_sentence_model(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return mount_modules(checkpoint, true, err);
}

/* The Trainer of sentence-transformers saves such a model, too: its part `model` is what is in the root. */
static tsr_status mount_trained_modules(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return mount_modules(checkpoint, false, err);
}

static const char *const sentence_files[] = {MODULES, NULL, NULL};
READER(tsr_reader_sentence, TSR_FORMAT_SENTENCE_TRANSFORMERS);
const tsr_directory tsr_directory_sentence = {
    .reader = &tsr_reader_sentence, .requires = sentence_files, .recognizes = is_sentence_model, .has_no_marker = true};
static const tsr_part_row sentence_parts[] = {{.mounts = mount_sentence_model}, {.part = NULL}};
#endif

/* ---- the table ---- */

static const tsr_framework frameworks[] = {
    {TSR_FORMAT_ACCELERATE_FSDP, accelerate_implied, trainer_needs, .parts = {accelerate_parts, training_state},
     TSR_LEFT_ALL},
    {TSR_FORMAT_ACCELERATE, accelerate_implied, trainer_needs, .parts = {accelerate_parts, training_state}, TSR_LEFT_ALL},
    /* The directories may be checkpoints of earlier steps. */
    {TSR_FORMAT_HF_TRAINER, trainer_implied, trainer_needs, .parts = {trainer_parts, training_state}, TSR_LEFT_FILES},
    {TSR_FORMAT_LIGHTNING_DIST, .parts = {lightning_parts}},
    {TSR_FORMAT_VERL, .parts = {verl_parts}},
    {TSR_FORMAT_TORCH_CHECKPOINTING, .parts = {torch_checkpointing_parts}},
    {TSR_FORMAT_NEMO, .parts = {nemo_parts}, TSR_LEFT_ALL},
    {TSR_FORMAT_AUTOMODEL, .unfinished = AUTOMODEL_UNFINISHED, .parts = {automodel_parts}, TSR_LEFT_ALL},
    {TSR_FORMAT_OLMO_CORE, .needs = olmo_needs, .parts = {olmo_parts}, TSR_LEFT_ALL},
    {TSR_FORMAT_PRIME_RL, .parts = {prime_parts}, TSR_LEFT_ALL},
    {TSR_FORMAT_DIFFUSERS, .parts = {pipeline_parts}, TSR_LEFT_FILES},
#ifndef TSR_SMALL
    {TSR_FORMAT_SENTENCE_TRANSFORMERS, .parts = {sentence_parts}, TSR_LEFT_FILES},
#endif
    {.format = TSR_FORMAT_NONE},
};

static tsr_status mount(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_framework *of = frameworks;
    while (of->format != checkpoint->catalog.format) of++;
    return framework_mount(checkpoint, of, err);
}

static tsr_status open_framework(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return tsr_mounts_fill(checkpoint, mount, err);
}

/* ---- the directories of parts ---- */

/* Whether `directory` is what the pattern "HEAD#" stands for, for the part of the row that is called `part`. */
static bool is_directory_of(const tsr_part_row *row, const char *pattern, tsr_str directory, tsr_str part)
{
    const tsr_str head = {pattern, strcspn(pattern, "#")}, name = tsr_str_from(row->part);
    if (!tsr_str_starts(directory, head) || !tsr_str_starts(part, name)) return false;
    const tsr_str tail = {directory.data + head.size, directory.size - head.size},
                  number = {part.data + name.size, part.size - name.size};
    if (!number.size) return tsr_str_equal(tail, TSR_STR("0"));
    return number.data[0] == '_' && !tsr_str_equal(number, TSR_STR("_0")) && tsr_str_equal(tail, tsr_str_after(number, 1));
}

tsr_status tsr_part_directory(const tsr_store *store, tsr_str part, tsr_str *out, tsr_error *err)
{
    for (uint32_t f = 0; f < store->file_count; f++) {
        *out = store->files[f].name;
        const char *slash = memchr(out->data, '/', out->size);
        if (!slash) continue;
        out->size = (size_t)(slash - out->data);
        for (const tsr_framework *of = frameworks; of->format; of++)
            for (const tsr_part_row *row = of->parts[0]; row->part || row->mounts; row++)
                for (const tsr_source *from = row->from; from->pattern; from++)
                    if (strchr(from->pattern, '#') && from->form == TSR_SOURCE_NAMED &&
                        is_directory_of(row, from->pattern, *out, part))
                        return TSR_OK;
    }
    return tsr_fail(
        err, TSR_E_NOT_FOUND,
        "no part '%.*s' has a .metadata of its own; those that do are the directories pytorch_model_fsdp_N and optimizer_N "
        "of accelerate (model, model_N, optimizer, optimizer_N)",
        TSR_STR_ARG(part));
}
