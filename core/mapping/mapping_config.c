/* Reads numbers that a map takes from config.json, or from the params.json of Meta's Llamas, where they have other names; keeps the notes
 * about a mapped checkpoint; and finds the built-in maps. */
#include "codec/json.h"
#include "formats/common/file_names.h"
#include "mapping/mapped.h"
#include "mapping/mapping_builtin.h"
#include "mapping/mapping_rules.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

#define CONFIG_NAME "config.json"
#define PARAMS_NAME "params.json"

const tsr_mapped *tsr_mapped_state(const tsr_checkpoint *checkpoint)
{
    return checkpoint->reader->is_mapped ? checkpoint->state : NULL;
}

/* ---- what users are told of a mapped checkpoint, and what has to change in its config.json ---- */

static tsr_status append_note(tsr_mapped *m, tsr_str *note, tsr_str sentence, tsr_error *err)
{
    const tsr_str before = *note;
    if (!sentence.data) return TSR_E_NOMEM;
    *note = !before.data ? sentence
                         : tsr_arena_format(m->own->arena, err, "%.*s; %.*s", TSR_STR_ARG(before), TSR_STR_ARG(sentence));
    return note->data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_mapped_add_note(tsr_mapped *m, tsr_str sentence, tsr_error *err)
{
    return append_note(m, &m->note, sentence, err);
}

tsr_status tsr_mapped_add_config_note(tsr_mapped *m, tsr_str sentence, tsr_error *err)
{
    return append_note(m, &m->config_note, sentence, err);
}

tsr_str tsr_mapping_note(const tsr_checkpoint *mapped, bool configured, size_t index)
{
    for (const tsr_mapped *m = tsr_mapped_state(mapped); m; m = tsr_mapped_state(m->source)) {
        if (m->note.data && !index--) return m->note;
        if (m->config_note.data && !configured && !index--) return m->config_note;
    }
    return TSR_STR("");
}

tsr_status tsr_mapping_add_notes(const tsr_checkpoint *mapped, bool configured, tsr_vec *out, tsr_error *err)
{
    for (size_t i = 0; tsr_mapping_note(mapped, configured, i).size; i++) {
        tsr_str *note = tsr_vec_push(out, err);
        if (!note) return TSR_E_NOMEM;
        *note = tsr_mapping_note(mapped, configured, i);
    }
    return TSR_OK;
}

void tsr_mapping_change_config(const tsr_checkpoint *mapped, tsr_config_changes *changes)
{
    for (const tsr_mapped *m = tsr_mapped_state(mapped); m; m = tsr_mapped_state(m->source)) {
        changes->unquantized |= m->config_changes.unquantized;
        changes->untied |= m->config_changes.untied;
        if (m->config_changes.more_tokens)
            changes->tokens = m->config_changes.tokens, changes->more_tokens = m->config_changes.more_tokens;
    }
}

/* ---- reading config.json ---- */

/* What holds for a directory holds for a single file of it, so the config.json next to the file counts, too. *out is NULL if there
 * is none. */
static tsr_status open_neighbor(tsr_store *store, const tsr_host *host, tsr_store **out, tsr_error *err)
{
    tsr_error failure = {0};
    *out = NULL;
    if (store->primary == TSR_NO_FILE || !store->neighbor) return TSR_OK;
    const tsr_status status = store->neighbor(store, host, TSR_STR(CONFIG_NAME), out, &failure);
    if (status == TSR_OK || status == TSR_E_NOT_FOUND) return TSR_OK;
    if (err) *err = failure;
    return status;
}

/* Whether a document has the beginning of an object. */
static bool begins_object(tsr_str text)
{
    while (text.size && strchr(" \t\r\n", text.data[0])) text = tsr_str_after(text, 1);
    return text.size && text.data[0] == '{';
}

/* Loads the config.json next to the checkpoint's single file. Many servers answer with a page of HTML for what they do not have, so a
 * neighbor of which not even the beginning is one of a config is not there: out->data is empty, and *ignored is set. */
static tsr_status load_neighbor(const tsr_checkpoint *checkpoint, tsr_bytes *out, bool *ignored, tsr_error *err)
{
    tsr_store *neighbor;
    TSR_TRY(open_neighbor(checkpoint->store, checkpoint->host, &neighbor, err));
    if (!neighbor) return TSR_OK;
    const tsr_status status = tsr_range_load(tsr_whole_file(neighbor, neighbor->primary), checkpoint->host, out, err);
    neighbor->close(neighbor);
    *ignored = status == TSR_OK && !begins_object(out->data);
    if (*ignored) tsr_bytes_free(out);
    return status;
}

/* The models of a pipeline, or of sentence-transformers, are independent: the config.json in the root is that of another one. */
static bool has_models(const tsr_store *store)
{
    return tsr_has_file(store, "model_index.json") || tsr_has_file(store, "modules.json");
}

/* The directory that has the files of the part that is opened; empty if it is the root, or if all parts are opened. */
static tsr_str directory_of_part(const tsr_checkpoint *checkpoint)
{
    const tsr_mapped *m;
    while ((m = tsr_mapped_state(checkpoint))) checkpoint = m->source;
    const tsr_catalog *catalog = &checkpoint->catalog;
    for (uint64_t i = 0; checkpoint->options.part.data && i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->chunk_count && entry->chunks[0].file != TSR_NO_FILE)
            return tsr_path_directory(checkpoint->store->files[entry->chunks[0].file].name);
    }
    return TSR_STR("");
}

/* Finds the config.json of the part that is opened, or of the whole checkpoint: the one nearest to the files of the part. Sets *file to
 * TSR_NO_FILE if there is none. */
static tsr_status find_config(const tsr_checkpoint *checkpoint, uint32_t *file, tsr_error *err)
{
    /* verl and NeMo Automodel write those of transformers' files that are not weights into a directory of their own. */
    static const char *const names[] = {CONFIG_NAME, "huggingface/" CONFIG_NAME, ".hf_metadata/" CONFIG_NAME};
    const tsr_store *store = checkpoint->store;
    tsr_str directory = directory_of_part(checkpoint);
    *file = TSR_NO_FILE;
    for (;; directory = tsr_path_directory(directory)) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const tsr_str name = tsr_arena_format(checkpoint->arena, err, "%.*s%s%s", TSR_STR_ARG(directory),
                                                  directory.size ? "/" : "", names[i]);
            if (!name.data) return TSR_E_NOMEM;
            *file = tsr_store_find(store, name);
            if (*file != TSR_NO_FILE) return TSR_OK;
        }
        if (!directory.size || (!tsr_path_directory(directory).size && has_models(store))) return TSR_OK;
    }
}

/* As tsr_config_load. *beside is whether it is next to a single file, and *ignored whether it is not JSON there. */
static tsr_status load_config(const tsr_checkpoint *checkpoint, tsr_bytes *out, bool *beside, bool *ignored, tsr_error *err)
{
    uint32_t file;
    *out = (tsr_bytes){0};
    *beside = *ignored = false;
    TSR_TRY(find_config(checkpoint, &file, err));
    tsr_status status = TSR_OK;
    if (file != TSR_NO_FILE) status = tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, out, err);
    else if (!TSR_IS_SMALL) status = load_neighbor(checkpoint, out, ignored, err); /* there, a file has none */
    *beside = file == TSR_NO_FILE && out->data.size;
    if (status != TSR_OK) tsr_error_context(err, "%s", CONFIG_NAME);
    return status;
}

tsr_status tsr_config_load(const tsr_checkpoint *checkpoint, tsr_bytes *out, tsr_error *err)
{
    bool beside, ignored;
    return load_config(checkpoint, out, &beside, &ignored, err);
}

/* Parses config.json; *out is NULL if there is none. */
static tsr_status parse_config(const tsr_checkpoint *checkpoint, cJSON **out, bool *beside, bool *ignored, tsr_error *err)
{
    tsr_bytes bytes;
    *out = NULL;
    TSR_TRY(load_config(checkpoint, &bytes, beside, ignored, err));
    const tsr_status status = bytes.data.size ? tsr_json_parse(bytes.data, checkpoint->host, out, err) : TSR_OK;
    tsr_bytes_free(&bytes);
    if (status != TSR_OK) tsr_error_context(err, "%s", CONFIG_NAME);
    return status;
}

tsr_status tsr_mapped_load_config(tsr_mapped *m, tsr_error *err)
{
    tsr_store *store = m->source->store;
    bool ignored;
    m->config_name = CONFIG_NAME;
    TSR_TRY(parse_config(m->source, &m->config, &m->is_config_beside, &ignored, err));
    if (ignored && !tsr_mapped_state(m->source)) /* the first one says it for those over it */
        TSR_TRY(tsr_mapped_add_note(m, TSR_STR("the config.json next to the file is not JSON, and is not used"), err));
    const uint32_t file = tsr_store_find(store, TSR_STR(PARAMS_NAME));
    tsr_bytes bytes = {0};
    if (m->config || file == TSR_NO_FILE) return TSR_OK;
    m->config_name = PARAMS_NAME;
    tsr_status status = tsr_range_load(tsr_whole_file(store, file), m->source->host, &bytes, err);
    if (status == TSR_OK) status = tsr_json_parse(bytes.data, m->source->host, &m->config, err);
    tsr_bytes_free(&bytes);
    if (status != TSR_OK) tsr_error_context(err, "%s", PARAMS_NAME);
    return status;
}

/* compressed-tensors called it compression_config at first. A model with several parts may state it for the language model. */
static const cJSON *find_quantization(const cJSON *config)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, "quantization_config");
    if (!cJSON_IsObject(item)) item = cJSON_GetObjectItemCaseSensitive(config, "compression_config");
    return cJSON_IsObject(item) ? item : NULL;
}

static const cJSON *quantization_of(const cJSON *config)
{
    const cJSON *own = find_quantization(config);
    return own ? own : find_quantization(cJSON_GetObjectItemCaseSensitive(config, "text_config"));
}

const cJSON *tsr_mapped_quantization(const tsr_mapped *m)
{
    return quantization_of(m->config);
}

tsr_status tsr_config_is_quantized(const tsr_checkpoint *checkpoint, bool *out, tsr_error *err)
{
    cJSON *config;
    bool beside, ignored;
    TSR_TRY(parse_config(checkpoint, &config, &beside, &ignored, err));
    *out = quantization_of(config) != NULL;
    cJSON_Delete(config);
    return TSR_OK;
}

/* The names in params.json. Source: write_model in transformers' convert_llama_weights_to_hf.py. */
static const cJSON *find_param(const cJSON *params, const char *name)
{
    static const char *const names[][2] = {{"num_attention_heads", "n_heads"},
                                           {"num_key_value_heads", "n_kv_heads"},
                                           {"num_hidden_layers", "n_layers"},
                                           {"hidden_size", "dim"}};
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(params, "model"), *item = NULL;
    if (model) params = model;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i][0])) item = cJSON_GetObjectItemCaseSensitive(params, names[i][1]);
    if ((!item || cJSON_IsNull(item)) && !strcmp(name, "num_key_value_heads"))
        item = cJSON_GetObjectItemCaseSensitive(params, "n_heads");
    return item;
}

const cJSON *tsr_mapped_setting(const tsr_mapped *m, const char *name)
{
    if (m->config && !strcmp(m->config_name, PARAMS_NAME)) return find_param(m->config, name);
    return cJSON_GetObjectItemCaseSensitive(m->config, name);
}

const cJSON *tsr_mapped_stated(const tsr_mapped *m, const char *name)
{
    const cJSON *item = tsr_mapped_setting(m, name);
    if (!item || cJSON_IsNull(item)) item = cJSON_GetObjectItemCaseSensitive(tsr_mapped_setting(m, "text_config"), name);
    return cJSON_IsNull(item) ? NULL : item;
}

tsr_status tsr_mapped_number(const tsr_mapped *m, const tsr_map_number *number, uint64_t *out, tsr_error *err)
{
    *out = number->value;
    if (!number->config.size) return TSR_OK;
    TSR_FAIL_IF(!m->config, err, TSR_E_NOT_FOUND,
                "the map takes '%.*s' from config.json, which is not among the checkpoint's files; give the directory "
                "that has it, or a map with the number",
                TSR_STR_ARG(number->config));
    const cJSON *item = tsr_mapped_setting(m, number->config.data);
    /* head_dim may be absent if it follows from other settings. */
    if (tsr_str_equal(number->config, TSR_STR("head_dim")) && tsr_mapped_head_dim(m, out)) return TSR_OK;
    TSR_FAIL_IF(!item || !cJSON_IsNumber(item), err, TSR_E_NOT_FOUND, "%s has no number '%.*s', which the map needs",
                m->config_name, TSR_STR_ARG(number->config));
    return tsr_json_to_u64(item, m->config_name, out, err);
}

bool tsr_mapped_reaches(const tsr_mapped *m, const tsr_map_number *plus, tsr_str index)
{
    uint64_t least, number;
    if (!tsr_map_number_given(plus)) return true;
    return tsr_mapped_number(m, plus, &least, NULL) == TSR_OK && tsr_component_number(index, &number) && number >= least;
}

static bool find_size(const tsr_mapped *m, const char *name, uint64_t *out)
{
    const cJSON *item = tsr_mapped_setting(m, name);
    return cJSON_IsNumber(item) && tsr_json_to_u64(item, name, out, NULL) == TSR_OK;
}

bool tsr_mapped_head_dim(const tsr_mapped *m, uint64_t *out)
{
    uint64_t hidden, heads;
    if (find_size(m, "head_dim", out)) return true;
    if (!find_size(m, "hidden_size", &hidden) || !find_size(m, "num_attention_heads", &heads) || !heads) return false;
    *out = hidden / heads;
    return true;
}

tsr_dtype tsr_mapped_product_dtype(const tsr_mapped *m)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(m->config, "torch_dtype");
    if (!item) item = cJSON_GetObjectItemCaseSensitive(m->config, "dtype"); /* the name since transformers 5 */
    const tsr_dtype dtype = cJSON_IsString(item) ? tsr_dtype_from_name(tsr_json_text_of(item)) : TSR_DTYPE_NONE;
    return dtype == TSR_DTYPE_NONE ? TSR_BFLOAT16 : dtype;
}

tsr_status tsr_mapped_block(const tsr_mapped *m, uint64_t block[2], tsr_error *err)
{
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(m->config, "quantization_config");
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(config, "weight_block_size");
    block[0] = block[1] = 128;
    if (!cJSON_IsArray(size) || cJSON_GetArraySize(size) != 2) return TSR_OK;
    for (int i = 0; i < 2; i++)
        TSR_TRY(tsr_json_to_u64(cJSON_GetArrayItem(size, i), "weight_block_size of config.json", &block[i], err));
    TSR_FAIL_IF(!block[0] || !block[1], err, TSR_E_FORMAT, "weight_block_size of config.json is 0");
    return TSR_OK;
}

const char *tsr_mapped_quant_method(const tsr_mapped *m)
{
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(m->config, "quantization_config");
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, "quant_method");
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* ---- builtin ---- */

/* Finds the built-in maps by name. */

tsr_str tsr_mapping_builtin_name(size_t index)
{
    const char *name = tsr_builtin_names;
    while (index-- && *name) name += strlen(name) + 1;
    return tsr_str_from(name);
}

tsr_status tsr_mapping_unknown(tsr_str name, tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    tsr_str builtin;
    for (size_t i = 0; (builtin = tsr_mapping_builtin_name(i)).size; i++) tsr_shown_names_add(&names, builtin);
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--map '%.*s' is neither a file nor a built-in map (%s%s)",
                     TSR_STR_ARG(name), names.text, tsr_shown_names_rest(&names));
}

tsr_str tsr_mapping_builtin(tsr_str name)
{
    tsr_str builtin;
    for (size_t i = 0; (builtin = tsr_mapping_builtin_name(i)).size; i++) {
        const struct tsr_builtin_document *document = &tsr_builtin_documents[tsr_builtin_numbers[i]];
        if (tsr_str_equal(builtin, name)) return (tsr_str){(const char *)document->text, document->size};
    }
    return (tsr_str){NULL, 0};
}

enum { MOST_MAPS = 100 }; /* among which a name is looked for */

tsr_status tsr_mapping_named(const char *name, tsr_str *text, tsr_error *err)
{
    const char *names[MOST_MAPS + 1] = {NULL};
    *text = tsr_mapping_builtin(tsr_str_from(name));
    if (text->size) return TSR_OK;
    for (size_t i = 0; i < MOST_MAPS && tsr_mapping_builtin_name(i).size; i++) names[i] = tsr_mapping_builtin_name(i).data;
    const char *meant = tsr_suggest(name, names, sizeof *names);
    if (meant)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no built-in map '%s'; did you mean '%s'?", name,
                         meant);
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no built-in map '%s'; `tessera map list` lists them",
                     name);
}
