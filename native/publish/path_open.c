/* Opens a checkpoint by its path. An HTTP server does not list directories. The data files that a remote checkpoint's
 * metadata names are therefore requested after it was read, and the checkpoint is opened again with all of them. */
#include "tessera/path.h"

#include "publish/job_state.h"
#include "tessera/document_read.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/document.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/options.h"
#include "tessera/sys/path.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"
#include "tessera/sys/work.h"
#include "tessera/sys/write_tree.h"
#include "tessera/version.h"

/* The names that a server was asked for. */
typedef struct asking {
    tsr_arena *arena; /* holds the names: those that a checkpoint owns are freed when it is closed */
    tsr_map *asked;
    tsr_vec names; /* of tsr_str: to ask for next */
} asking;

/* `directory` is the checkpoint's directory below the root, or empty. */
static tsr_status add_names(asking *a, tsr_str directory, const tsr_str *names, size_t count, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        bool fresh;
        const tsr_str name = tsr_arena_format(a->arena, err, "%.*s%s%.*s", TSR_STR_ARG(directory), directory.size ? "/" : "",
                                              TSR_STR_ARG(names[i]));
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(a->asked, name, 1, NULL, &fresh, err));
        tsr_str *next = fresh ? tsr_vec_push(&a->names, err) : NULL;
        if (fresh && !next) return TSR_E_NOMEM;
        if (next) *next = name;
    }
    return TSR_OK;
}

/* Asks the server for files that the checkpoint lacks, and opens the checkpoint again. *done if there are none that it was
 * not asked for yet. */
static tsr_status open_again(asking *a, const tsr_host *host, tsr_checkpoint **checkpoint, const tsr_open_options *options,
                             bool *done, tsr_error *err)
{
    tsr_store *store = tsr_checkpoint_given_store(*checkpoint);
    size_t count, added;
    const char *marker;
    const tsr_str *names = tsr_checkpoint_missing(*checkpoint, &count), step = tsr_checkpoint_step(*checkpoint, &marker);
    TSR_TRY(add_names(a, step, names, count, err));
    names = tsr_checkpoint_implied(*checkpoint, &count);
    TSR_TRY(add_names(a, step, names, count, err));
    *done = a->names.count == 0;
    if (*done) return TSR_OK;
    const bool has_headers =
        tsr_checkpoint_catalog(*checkpoint)->format != TSR_FORMAT_DCP; /* which are read when it is opened */
    tsr_checkpoint_close(*checkpoint);
    *checkpoint = NULL;
    TSR_TRY(tsr_remote_store_add(store, a->names.items, a->names.count, has_headers, &added, err));
    a->names.count = 0;
    *done = added == 0;
    return tsr_checkpoint_open(store, host, options, checkpoint, err);
}

/* A file that was found may imply others, such as Megatron files that its .metadata does not name. Until the server was
 * asked for all of them, the checkpoint may lack existing files; only then is it judged by its purpose. */
static tsr_status ask_for_all(const tsr_host *host, tsr_checkpoint **checkpoint, const tsr_open_options *options,
                              tsr_error *err)
{
    const tsr_allocator *allocator = host->allocator;
    asking a = {tsr_arena_new(allocator, 0, err), tsr_map_new(allocator, 0, err), tsr_vec_of(allocator, sizeof(tsr_str))};
    tsr_status status = a.arena && a.asked ? TSR_OK : TSR_E_NOMEM;
    bool done = false;
    while (status == TSR_OK && !done) status = open_again(&a, host, checkpoint, options, &done, err);
    tsr_vec_free(&a.names);
    tsr_map_free(a.asked);
    tsr_arena_free(a.arena);
    return status;
}

static tsr_status open_all(tsr_store *store, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                           tsr_error *err)
{
    tsr_open_options whole = *options;
    whole.purpose = TSR_FOR_FINDINGS;
    TSR_TRY(tsr_checkpoint_open(store, host, &whole, out, err));
    TSR_TRY(ask_for_all(host, out, &whole, err));
    return tsr_checkpoint_require(*out, options->purpose, err);
}

tsr_status tsr_remote_list_checkpoint(tsr_store *store, const tsr_host *host, tsr_error *err)
{
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_FINDINGS};
    tsr_checkpoint *checkpoint = NULL;
    const tsr_status status = open_all(store, host, &options, &checkpoint, err);
    tsr_checkpoint_close(checkpoint);
    return status;
}

static tsr_status open_store(const tsr_store_opener *opener, const char *const *paths, size_t count, tsr_store **out,
                             tsr_error *err)
{
    return count == 1 ? opener->open(opener, paths[0], out, err) : tsr_joined_store_open(opener, paths, count, out, err);
}

tsr_status tsr_paths_store_open(const char *const *paths, size_t count, const tsr_host *host, tsr_store **out,
                                tsr_error *err)
{
    const tsr_store_opener opener = {.open = tsr_path_store_open_by, .host = host};
    return open_store(&opener, paths, count, out, err);
}

tsr_status tsr_paths_open_by(const tsr_store_opener *opener, const char *const *paths, size_t count,
                             const tsr_open_options *options, tsr_checkpoint **out, tsr_error *err)
{
    tsr_store *store = NULL;
    *out = NULL;
    TSR_TRY(open_store(opener, paths, count, &store, err));
    const bool lists_nothing = count == 1 && tsr_is_address(paths[0]);
    const tsr_status status = (lists_nothing ? open_all : tsr_checkpoint_open)(store, opener->host, options, out, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_checkpoint_close(*out);
    *out = NULL;
    store->close(store);
    return status;
}

tsr_status tsr_path_open(const char *path, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                         tsr_error *err)
{
    const tsr_store_opener opener = {.open = tsr_path_store_open_by, .host = host};
    return tsr_paths_open_by(&opener, &path, 1, options, out, err);
}

tsr_status tsr_path_open_compared(const tsr_store_opener *opener, const char *path, const tsr_open_options *options,
                                  tsr_checkpoint **out, tsr_error *err)
{
    tsr_error plain = {0};
    tsr_open_options whole = *options;
    whole.part = whole.step = (tsr_str){NULL, 0};
    const tsr_status status = tsr_paths_open_by(opener, &path, 1, options, out, err);
    if (status == TSR_OK || (!options->part.data && !options->step.data)) return status;
    if (tsr_paths_open_by(opener, &path, 1, &whole, out, &plain) != TSR_OK) return status;
    const bool has_parts = tsr_checkpoint_catalog(*out)->part_count != 0;
    const bool is_file = tsr_checkpoint_store(*out)->primary != TSR_NO_FILE;
    if (!has_parts && (is_file || !options->step.data)) return TSR_OK;
    tsr_path_close(*out);
    *out = NULL;
    return status;
}

/* A path for messages: URLs without their secrets. */
static tsr_status shown_path(const char *path, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const tsr_str given = tsr_str_from(path);
    char *shown = tsr_arena_array(arena, given.size, 3, err);
    if (!shown) return TSR_E_NOMEM;
    *out = (tsr_str){shown, tsr_uri_redact(given, shown, 3 * given.size)};
    return TSR_OK;
}

tsr_status tsr_path_load_shards(const char *given, const tsr_host *host, tsr_arena *arena, tsr_shards *out, tsr_error *err)
{
    const tsr_shards *built_in = tsr_shards_built_in(tsr_str_from(given));
    tsr_error why = {0};
    tsr_str text, name;
    if (built_in) {
        *out = *built_in;
        return TSR_OK;
    }
    if (tsr_is_document(given)) name = TSR_STR("the map");
    else TSR_TRY(shown_path(given, arena, &name, err));
    tsr_status status = tsr_path_load(given, host, arena, &text, &why);
    if (status == TSR_OK) status = tsr_shards_read(text, host, arena, out, &why);
    out->name = name;
    out->document = text;
    if (status == TSR_OK) return TSR_OK;
    TSR_FAIL_IF(status == TSR_E_NOT_FOUND, tsr_naming(err), status,
                "'%.*s' is neither a file nor one of the built-in maps meta-llama, megatron-gpt and vllm",
                TSR_STR_ARG(name));
    tsr_error_subject(&why, "%.*s", TSR_STR_ARG(name));
    return tsr_raise_again(err, status, &why);
}

void tsr_path_close(tsr_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    tsr_store *store = tsr_checkpoint_given_store(checkpoint);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
}

tsr_status tsr_path_load(const char *path, const tsr_host *host, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    tsr_store *store;
    tsr_bytes bytes = {0};
    TSR_TRY(tsr_document_store_open(host, path, &store, err));
    const uint32_t file = store->primary;
    tsr_status status = TSR_OK;
    if (file == TSR_NO_FILE) status = tsr_fail(err, TSR_E_USAGE, "'%s' is a directory, not a file", path);
    else status = tsr_range_load(tsr_whole_file(store, file), host, &bytes, err);
    if (status == TSR_OK) *out = tsr_arena_str(arena, bytes.data, err);
    if (status == TSR_OK && !out->data) status = TSR_E_NOMEM;
    tsr_bytes_free(&bytes);
    store->close(store);
    return status;
}

/* Writes a checkpoint to a path or a URL, by one process or by ranks that share the work, as a job (job_state.h). */

typedef struct writing {
    tsr_checkpoint *checkpoint;
    tsr_convert_options convert;
    tsr_job job;
} writing;

/* ---- what is written ---- */

/* All numbers that decide where which bytes of tensors go. What surrounds the tensors is written by the run that publishes. */
typedef struct numbers {
    tsr_vec bytes;
    tsr_error *err;
} numbers;

static tsr_status put_number(numbers *n, uint64_t number)
{
    return tsr_vec_append(&n->bytes, &number, sizeof number, n->err);
}

static tsr_status put_text(numbers *n, tsr_str text)
{
    TSR_TRY(put_number(n, text.size));
    return tsr_vec_append(&n->bytes, text.data, text.size, n->err);
}

static tsr_status put_shard(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    numbers *n = ctx;
    (void)err;
    TSR_TRY(put_number(n, tensor));
    TSR_TRY(put_number(n, owner));
    for (uint64_t b = 0; b < shard->box_count; b++) {
        for (uint32_t d = 0; d < shard->ndim; d++) {
            TSR_TRY(put_number(n, shard->boxes[b].offsets[d]));
            TSR_TRY(put_number(n, shard->boxes[b].sizes[d]));
        }
    }
    return TSR_OK;
}

/* The layout of the output. The plan of the conversion has the effects of all options. */
static tsr_status put_conversion(numbers *n, const tsr_conversion *c)
{
    for (uint32_t f = 0; f < c->file_count; f++) {
        TSR_TRY(put_text(n, c->files[f]));
        TSR_TRY(put_number(n, c->file_sizes[f]));
    }
    for (uint64_t r = 0; r < c->row_count; r++) {
        const tsr_converted *row = &c->rows[r];
        const uint64_t facts[] = {row->dtype, row->bytes, row->file, row->written, row->cast};
        TSR_TRY(put_text(n, row->name));
        for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) TSR_TRY(put_number(n, facts[i]));
    }
    return TSR_OK;
}

static tsr_status describe(void *ctx, tsr_str *text, tsr_error *err)
{
    writing *w = ctx;
    tsr_file_id id;
    tsr_plan_source source = {0};
    const tsr_host *host = tsr_checkpoint_host(w->checkpoint);
    tsr_store *store = tsr_checkpoint_store(w->checkpoint);
    const bool is_remote = store->file_count && !tsr_directory_store_identify(store, 0, &id);
    const uint64_t flags = (uint64_t)w->convert.raw_cast << 1 | w->convert.no_checksums;
    numbers n = {tsr_vec_of(host->allocator, 1), err};
    *text = TSR_STR(TSR_JOURNAL_MAGIC);
    TSR_TRY(tsr_job_add_line(w->job.arena, text, "tessera", TSR_STR(TSR_VERSION), err));
    TSR_TRY(tsr_plan_source_describe(tsr_checkpoint_catalog(w->checkpoint), &(tsr_command_options){0}, host, w->job.arena,
                                     &source, err));
    TSR_TRY(tsr_job_date_source(store, is_remote, &source, w->job.arena, err));
    TSR_TRY(tsr_job_add_source(w->job.arena, text, &source, err));
    TSR_TRY(tsr_job_add_line(w->job.arena, text, "to", tsr_str_from(tsr_container_words[w->convert.to]), err));
    tsr_status status = put_number(&n, flags);
    if (status == TSR_OK) status = put_conversion(&n, &w->job.conversion);
    if (status == TSR_OK && w->convert.plan) status = tsr_plan_each_write(w->convert.plan, put_shard, &n, err);
    if (status == TSR_OK)
        status = tsr_job_add_hash(w->job.arena, text, "layout", (tsr_str){n.bytes.items, n.bytes.count}, err);
    tsr_vec_free(&n.bytes);
    return status;
}

static tsr_status list_inputs(void *ctx, tsr_inputs *inputs, tsr_error *err)
{
    const writing *w = ctx;
    return tsr_inputs_add(inputs, tsr_checkpoint_store(w->checkpoint), w->checkpoint, err);
}

static tsr_status unchanged(void *ctx, tsr_error *err)
{
    const writing *w = ctx;
    return tsr_directory_store_unchanged(tsr_checkpoint_store(w->checkpoint), err);
}

/* ---- the job ---- */

tsr_status tsr_path_write(tsr_checkpoint *checkpoint, const char *path, const tsr_path_write_options *options,
                          tsr_arena *arena, tsr_conversion *out, tsr_error *err)
{
    tsr_path_write_options own;
    writing w = {.checkpoint = checkpoint};
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_path_write_options, err));
    TSR_FAIL_IF(!own.convert, err, TSR_E_USAGE, "tsr_path_write_options.convert is required");
    TSR_TRY(TSR_OPTIONS_COPY(&w.convert, own.convert, tsr_convert_options, err));
    const tsr_convert_options *convert = &w.convert;
    const tsr_job_form form = tsr_job_form_of(convert, path);
    if (form.file_name.size) w.convert.file_name = form.file_name;
    tsr_comm *ranks = own.comm && own.comm->size > 1 ? own.comm : NULL;
    w.job = (tsr_job){.environment = {.ranks = ranks},
                      .host = tsr_checkpoint_host(checkpoint),
                      .arena = arena,
                      .destination = path,
                      .is_directory = form.is_directory,
                      .file_name = form.file_name,
                      .marker = form.marker,
                      .source = checkpoint,
                      .options = convert,
                      .has_holes = tsr_directory_store_has_holes(tsr_checkpoint_store(checkpoint)),
                      .replaces = own.overwrite,
                      .resumes = own.resume,
                      .describe = describe,
                      .describes_plan = true,
                      .list_inputs = list_inputs,
                      .unchanged = unchanged,
                      .ctx = &w};
    tsr_status status;
    if (convert->dry_run) {
        status = tsr_convert(checkpoint, NULL, convert, arena, &w.job.conversion, err);
        if (ranks) status = tsr_comm_agree(ranks, status, err);
    } else {
        status = tsr_job_run(&w.job, err);
    }
    if (status == TSR_OK && out) *out = w.job.conversion;
    return status;
}

/* ---- path tree ---- */

/* Value trees by path: loads a checkpoint as one tree, and writes a tree as torch.save would. */

typedef struct written_tree {
    tsr_checkpoint *checkpoint;
    const tsr_value *root;
} written_tree;

static tsr_status write_tree(void *ctx, tsr_output *output, uint32_t *number, tsr_error *err)
{
    const written_tree *t = ctx;
    tsr_tree_file file = {.output = output, .name = TSR_STR("")};
    TSR_TRY(tsr_ring_new(tsr_checkpoint_host(t->checkpoint), 0, &file.ring, err));
    const tsr_status status = tsr_write_tree(t->checkpoint, t->root, NULL, &file, err);
    tsr_ring_free(file.ring);
    *number = file.number;
    return status;
}

tsr_status tsr_path_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, const char *path, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    written_tree tree = {checkpoint, root};
    tsr_publication p = {.host = host,
                         .arena = tsr_arena_new(host->allocator, 0, err),
                         .destination = path,
                         .line = TSR_STR("a checkpoint that a program writes\n"),
                         .source = tsr_checkpoint_store(checkpoint),
                         .write = write_tree,
                         .ctx = &tree};
    const tsr_status status = p.arena ? tsr_publication_run(&p, err) : TSR_E_NOMEM;
    tsr_arena_free(p.arena);
    return status;
}

/* What a tsr_path_tree keeps open. */
struct tsr_path_tree_files {
    tsr_store *store;
    tsr_trees trees;
};

tsr_status tsr_path_tree_open(const char *path, const tsr_host *host, tsr_arena *arena, tsr_path_tree *out, tsr_error *err)
{
    *out = (tsr_path_tree){.files = TSR_ARENA_NEW(arena, tsr_path_tree_files, err)};
    if (!out->files) return TSR_E_NOMEM;
    TSR_TRY(tsr_path_store_open(host, path, &out->files->store, err));
    const tsr_status status = tsr_trees_of_part(out->files->store, host, (tsr_str){NULL, 0}, false, &out->files->trees, err);
    if (status != TSR_OK) {
        tsr_path_tree_close(out);
        return status;
    }
    out->checkpoint = out->files->trees.checkpoint;
    out->root = out->files->trees.roots[0];
    return TSR_OK;
}

void tsr_path_tree_close(tsr_path_tree *tree)
{
    if (tree->files) {
        tsr_trees_close(&tree->files->trees);
        if (tree->files->store) tree->files->store->close(tree->files->store);
    }
    *tree = (tsr_path_tree){0};
}
