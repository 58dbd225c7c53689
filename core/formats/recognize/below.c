/* Recognizes directories as if they had been opened: `recognize` gets a store that shows only what is below the directory. A
 * store's files are sorted by name, so those below one directory are contiguous. */
#include "formats/recognize/below.h"

#include "formats/common/incomplete.h"
#include "formats/recognize/foreign.h"
#include "formats/recognize/recognize.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

enum { MOST_PROBED = 256 };

void tsr_below_add(tsr_below *below, tsr_str path, const char *form)
{
    const size_t form_size = strlen(form), needed = path.size + form_size + 5;
    const bool full = below->shown < below->count || below->used + needed + 1 > sizeof below->text;
    if (below->count++ == 0) below->first = path;
    if (full) return;
    tsr_str parts[] = {tsr_str_from(below->used ? ", " : ""), path, TSR_STR(" ("), {form, form_size}, TSR_STR(")")};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i].size) memcpy(below->text + below->used, parts[i].data, parts[i].size);
        below->used += parts[i].size;
    }
    below->text[below->used] = '\0';
    below->shown++;
}

const char *tsr_below_rest(const tsr_below *below)
{
    return below->shown < below->count ? ", …" : "";
}

const char *tsr_below_deeper(const tsr_below *below)
{
    return below->deeper ? "; nothing was found within three levels, and there are directories further down: open the one "
                           "that contains the checkpoint"
                         : "";
}

/* A directory of another store as a store of its own. tsr_store_view_below keeps the files' numbers, so it copies the whole
 * list of files for each directory. That is too slow for a store with many directories, so here the first file gets the
 * number 0. */
typedef struct part_store {
    tsr_store base; /* first */
    tsr_store *inner;
    uint32_t first; /* the inner store's file that is file 0 of this store */
    bool worth;     /* worth examining: one of its file names is typical of checkpoints */
    bool deeper;    /* it has subdirectories */
} part_store;

static tsr_status read_part(tsr_store *base, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const part_store *part = (const part_store *)base;
    return part->inner->read_at(part->inner, part->first + file, offset, buffer, size, err);
}

/* Whether a file name is typical of checkpoints. Directories without such a file are not examined. */
static bool is_checkpoint_name(tsr_str path)
{
    static const char *const endings[] = {
        ".metadata", ".distcp", ".safetensors", ".index.json",     ".pt",
        ".pth",      ".ckpt",   ".bin",         "fsdp_config.json"}; /* written by verl next to its files */
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (tsr_str_ends(path, tsr_str_from(endings[i]))) return true;
    return false;
}

typedef struct search {
    tsr_checkpoint *checkpoint;
    tsr_recognize_fn *recognize;
    tsr_below *below;
    unsigned probed;
    tsr_error *err;
} search;

static const char *form_of(tsr_content content)
{
    switch (content) {
    case TSR_CONTENT_SAFETENSORS: return tsr_format_name(TSR_FORMAT_SAFETENSORS);
    case TSR_CONTENT_TORCH_ZIP: return tsr_format_name(TSR_FORMAT_TORCH_ZIP);
    case TSR_CONTENT_TORCH_LEGACY: return tsr_format_name(TSR_FORMAT_TORCH_LEGACY);
    default: return NULL;
    }
}

/* The format of a directory's files, if they do not form one checkpoint. */
static tsr_status form_of_files(part_store *part, const char **form, tsr_error *err)
{
    *form = NULL;
    for (uint32_t f = 0; f < part->base.file_count; f++) {
        tsr_content content;
        const char *foreign;
        const tsr_str name = part->base.files[f].name;
        if (memchr(name.data, '/', name.size) || !is_checkpoint_name(name)) continue;
        TSR_TRY(tsr_content_of(&part->base, f, &content, &foreign, err));
        const bool is_index = tsr_str_ends(name, TSR_STR(".index.json"));
        const char *of_file = is_index ? "index" : form_of(content);
        if (of_file && *form && !is_index) *form = "several files";
        else if (of_file) *form = of_file;
        if (is_index) return TSR_OK;
    }
    return TSR_OK;
}

/* Sets *form to NULL if the directory does not contain a checkpoint. Sets *whole if it is a checkpoint, so that what is
 * below belongs to it. */
static tsr_status probe(search *s, part_store *part, const char **form, bool *whole)
{
    tsr_error why = {0};
    const tsr_reader *reader;
    tsr_checkpoint guess = {
        .store = &part->base, .host = s->checkpoint->host, .arena = s->checkpoint->arena, .is_probe = true};
    TSR_TRY(tsr_foreign_form(&guess, form, s->err));
    *whole = *form;
    if (*form) return TSR_OK;
    const tsr_status status = s->recognize(&guess, &reader, &why);
    /* A single torch.save file may be something next to the steps of a run, such as its arguments. */
    *whole = status == TSR_OK && reader != &tsr_reader_torch_zip && reader != &tsr_reader_torch_legacy;
    if (status == TSR_OK) {
        const bool unfinished = reader == &tsr_reader_dcp_without_metadata || reader == &tsr_reader_torch_without_index;
        *form = unfinished ? "interrupted save" : tsr_format_name(reader->format);
        return TSR_OK;
    }
    if (status == TSR_E_NOMEM || status == TSR_E_IO) return tsr_fail(s->err, status, "%s", why.message);
    return form_of_files(part, form, s->err);
}

/* Makes a store of the files [from, to), whose names begin with the same `prefix` bytes, the last of which is '/'. */
static tsr_status part_of(search *s, uint32_t from, uint32_t to, size_t prefix, part_store *part)
{
    tsr_store *inner = s->checkpoint->store;
    tsr_store_file *files = tsr_arena_array(s->checkpoint->arena, to - from, sizeof *files, s->err);
    if (!files) return TSR_E_NOMEM;
    bool worth = false, deeper = false;
    for (uint32_t f = from; f < to; f++) {
        const tsr_str name = inner->files[f].name, rest = {name.data + prefix, name.size - prefix};
        files[f - from] = (tsr_store_file){rest, inner->files[f].size};
        worth = worth || (!memchr(rest.data, '/', rest.size) && is_checkpoint_name(rest));
        deeper = deeper || memchr(rest.data, '/', rest.size);
    }
    *part = (part_store){.base = {.file_count = to - from, .files = files, .primary = TSR_NO_FILE, .read_at = read_part},
                         .inner = inner,
                         .first = from,
                         .worth = worth,
                         .deeper = deeper};
    return TSR_OK;
}

/* Probes every directory among the files [from, to), whose names begin with the same `prefix` bytes, and those below them,
 * down to TSR_BELOW_LEVELS. It may be loaded on demand (wasm/later.txt). */
tsr_status tsr_look_below(search *s, uint32_t from, uint32_t to, size_t prefix, unsigned level);
tsr_status tsr_look_below(search *s, uint32_t from, uint32_t to, size_t prefix, unsigned level)
{
    const tsr_store *store = s->checkpoint->store;
    for (uint32_t f = from, end; f < to; f = end) {
        const tsr_str name = store->files[f].name;
        const char *slash = memchr(name.data + prefix, '/', name.size - prefix);
        const size_t size = slash ? (size_t)(slash - name.data) + 1 : name.size;
        for (end = f + 1; slash && end < to && tsr_str_starts(store->files[end].name, (tsr_str){name.data, size}); end++) {
        }
        if (!slash) continue;
        part_store part;
        bool whole = false;
        const char *form = NULL;
        TSR_TRY(part_of(s, f, end, size, &part));
        const bool worth =
            part.worth && (!s->below->wanted || s->below->wanted(s->below->wanted_ctx, (tsr_str){name.data, size - 1}));
        if (worth && ++s->probed > MOST_PROBED) s->below->cut = true;
        else if (worth) TSR_TRY(probe(s, &part, &form, &whole));
        if (form) tsr_below_add(s->below, (tsr_str){name.data, size - 1}, form);
        if (!whole && level == TSR_BELOW_LEVELS) s->below->deeper |= part.deeper;
        if (!whole && level < TSR_BELOW_LEVELS) TSR_TRY(tsr_look_below(s, f, end, size, level + 1));
    }
    return TSR_OK;
}

static bool has_folders(const tsr_store *store)
{
    for (uint32_t f = 0; f < store->file_count; f++)
        if (memchr(store->files[f].name.data, '/', store->files[f].name.size)) return true;
    return false;
}

tsr_status tsr_list_below(tsr_checkpoint *checkpoint, tsr_recognize_fn *recognize, tsr_below *below, tsr_error *err)
{
    tsr_store *store = checkpoint->store;
    search s = {.checkpoint = checkpoint, .recognize = recognize, .below = below, .err = err};
    if (checkpoint->is_probe) return TSR_OK;
    if (store->deepen) TSR_TRY(store->deepen(store, TSR_BELOW_LEVELS, &below->cut, &below->deeper, err));
    if (!has_folders(store)) return TSR_OK;
    TSR_TRY(tsr_host_load(checkpoint->host, err));
    return tsr_look_below(&s, 0, store->file_count, 0, 1);
}
