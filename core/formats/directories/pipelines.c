/* The directories of libraries whose models consist of several: pipelines of diffusers, and models of sentence-transformers. */
#include "formats/directories/framework.h"

#include "codec/json.h"
#include "formats/common/file_names.h"
#include "formats/common/incomplete.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

#include <string.h>

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
    TSR_TRY(tsr_document_read(checkpoint, TSR_STR(PIPELINE), &root, err));
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

/* May be loaded on demand (wasm/later.txt). */
tsr_status tsr_is_pipeline(tsr_checkpoint *checkpoint, bool *is, tsr_error *err);
tsr_status tsr_is_pipeline(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    return each_component(checkpoint, NULL, is, err);
}

static tsr_status is_pipeline(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    TSR_TRY(tsr_host_load(checkpoint->host, err));
    return tsr_is_pipeline(checkpoint, is, err);
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
static const tsr_part_row pipeline_parts[] = {{.mounts = mount_pipeline}, {.part = NULL}};
TSR_FRAMEWORK(diffusers, TSR_FORMAT_DIFFUSERS, .parts = {pipeline_parts}, .left = TSR_LEFT_FILES);
const tsr_directory tsr_directory_diffusers = {
    .reader = &tsr_reader_diffusers, .requires = pipeline_files, .recognizes = is_pipeline, .has_no_marker = true};

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
    if (!cJSON_IsString(type) || modules->count == TSR_MOST_NUMBERED) return TSR_OK;
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
        TSR_TRY(tsr_document_read(checkpoint, name, &root, err));
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
    TSR_TRY(tsr_document_read(checkpoint, TSR_STR(MODULES), &root, err));
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
    static const char *const models[] = {TSR_MODEL_NAMES, NULL};
    /* Others, such as Pooling and Normalize, have no weights, or not always. */
    static const char *const weighty[] = {
        "Transformer",          "MLMTransformer",    "CLIPModel", "StaticEmbedding", "Dense", "LayerNorm", "LSTM", "CNN",
        "WeightedLayerPooling", "SparseAutoEncoder", NULL};
    const tsr_str directory = module->directory;
    const bool is_root = !directory.size,
               has = is_root ? tsr_has_any(checkpoint->store, models) : has_weights(checkpoint->store, directory);
    if (is_router(module->class)) return TSR_OK;
    if (has && is_root) {
        const tsr_part_row row = {.part = module->part.data, .from = {TSR_MODEL_SOURCES}};
        return tsr_part_row_mount(checkpoint, &row, err);
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
tsr_status tsr_trained_modules_mount(tsr_checkpoint *checkpoint, tsr_error *err)
{
    return mount_modules(checkpoint, false, err);
}

static const char *const sentence_files[] = {MODULES, NULL, NULL};
static const tsr_part_row sentence_parts[] = {{.mounts = mount_sentence_model}, {.part = NULL}};
TSR_FRAMEWORK(sentence, TSR_FORMAT_SENTENCE_TRANSFORMERS, .parts = {sentence_parts}, .left = TSR_LEFT_FILES);
const tsr_directory tsr_directory_sentence = {
    .reader = &tsr_reader_sentence, .requires = sentence_files, .recognizes = is_sentence_model, .has_no_marker = true};
