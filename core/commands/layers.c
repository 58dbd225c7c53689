/* See tessera/sys/commands.h. */
#include <inttypes.h>

#include "convert/convert_to.h"
#include "tessera/convert.h"
#include "tessera/glob.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/merge.h"
#include "tessera/sys/names.h"
#include "tessera/sys/options.h"
#include "tessera/sys/try.h"

/* ---- chosen names ---- */

static bool any_matches(const tsr_texts *globs, tsr_str fqn)
{
    for (size_t i = 0; i < globs->count; i++)
        if (tsr_glob_match(tsr_str_from(globs->items[i]), fqn)) return true;
    return false;
}

bool tsr_globs_select(const void *globs, tsr_str fqn)
{
    const tsr_name_globs *g = globs;
    if (any_matches(&g->exclude, fqn)) return false;
    return g->include.count == 0 || any_matches(&g->include, fqn);
}

bool tsr_globs_want(void *globs, tsr_str fqn)
{
    return tsr_globs_select(globs, fqn);
}

/* The texts of a list, in `arena`. */
static tsr_status list_texts(const tsr_texts *texts, tsr_arena *arena, const tsr_str **out, size_t *count, tsr_error *err)
{
    tsr_str *items = tsr_arena_array(arena, texts->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (*count = 0; *count < texts->count; ++*count) items[*count] = tsr_str_from(texts->items[*count]);
    *out = items;
    return TSR_OK;
}

/* Parses --rename, in the order in which they apply. Errors: TSR_E_USAGE; TSR_E_NOMEM. */
static tsr_status parse_renames(const tsr_texts *texts, tsr_arena *arena, const tsr_rename **out, size_t *count,
                                tsr_error *err)
{
    tsr_rename *renames = tsr_arena_array(arena, texts->count, sizeof *renames, err);
    if (!renames) return TSR_E_NOMEM;
    for (*count = 0; *count < texts->count; ++*count)
        TSR_TRY(tsr_rename_parse(tsr_str_from(texts->items[*count]), &renames[*count], err));
    *out = renames;
    return TSR_OK;
}

static tsr_status list_rules(const tsr_target_texts *target, tsr_arena *arena, tsr_name_choice *out, tsr_error *err)
{
    tsr_str *rules = tsr_arena_array(arena, target->rule_count, sizeof *rules, err);
    if (!rules) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < target->rule_count; i++) rules[i] = target->rules[i].match;
    out->rules = rules;
    out->rule_count = target->rule_count;
    return TSR_OK;
}

tsr_status tsr_choice_of(const tsr_catalog *catalog, const tsr_command_options *options, const tsr_target_texts *target,
                         tsr_arena *arena, tsr_name_choice *out, tsr_error *err)
{
    const tsr_name_globs *globs = &options->selection;
    *out = (tsr_name_choice){.catalog = catalog};
    TSR_TRY(list_texts(&globs->include, arena, &out->include, &out->include_count, err));
    TSR_TRY(list_texts(&globs->exclude, arena, &out->exclude, &out->exclude_count, err));
    TSR_TRY(list_texts(&options->no_quantize, arena, &out->no_quantize, &out->no_quantize_count, err));
    TSR_TRY(parse_renames(&options->renames, arena, &out->renames, &out->rename_count, err));
    return target ? list_rules(target, arena, out, err) : TSR_OK;
}

/* ---- conversion options ---- */

const char *const tsr_container_words[] = {"safetensors", "torch", "dcp", "megatron-dist", "deepspeed-universal", "ranks"};
const char *const tsr_objects_words[] = {"", "keep", "drop", "sidecar", "refuse"};

typedef struct renaming {
    const tsr_rename *renames;
    size_t count;
} renaming;

static tsr_status rename_entry(void *ctx, tsr_str fqn, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const renaming *r = ctx;
    return tsr_rename_apply(r->renames, r->count, fqn, arena, out, err);
}

/* The dtype to which what is written is cast: that of --dtype, but TSR_DTYPE_NONE with --quantize, which casts before. */
static tsr_status cast_layer(const tsr_command_options *options, tsr_dtype *out, tsr_error *err)
{
    *out = TSR_DTYPE_NONE;
    return options->quantize ? TSR_OK : tsr_cast_parse(tsr_str_from(options->dtype), options->raw_cast, out, err);
}

/* The version of --for-torch (data NULL: not given, 0). TSR_E_USAGE for a text that is none, and with safetensors, whose files are
 * the same for every version. */
static tsr_status parse_for_torch(tsr_str version, tsr_container to, tsr_torch_version *out, tsr_error *err)
{
    *out = 0;
    if (!version.data) return TSR_OK;
    TSR_FAIL_IF(to == TSR_TO_SAFETENSORS, err, TSR_E_USAGE,
                "--for-torch cannot be used with --to safetensors, whose files are the same for every version");
    return tsr_torch_version_parse(version, out, err);
}

tsr_status tsr_conversion_options(const tsr_command_options *options, tsr_container to, tsr_arena *arena,
                                  tsr_convert_options *out, tsr_error *err)
{
    *out = (tsr_convert_options){.to = to,
                                 .objects = (tsr_objects)options->objects,
                                 .want = tsr_globs_want,
                                 .want_ctx = (void *)(uintptr_t)&options->selection,
                                 .raw_cast = options->raw_cast,
                                 .max_memory = (size_t)options->max_memory,
                                 .ignore_crc = options->ignore_crc,
                                 .no_checksums = options->no_checksums,
                                 .dry_run = options->dry_run};
    TSR_TRY(cast_layer(options, &out->dtype, err));
    TSR_TRY(parse_for_torch(tsr_str_from(options->for_torch), to, &out->for_torch, err));
    if (!options->renames.count) return TSR_OK;
    renaming *r = TSR_ARENA_NEW(arena, renaming, err);
    if (!r) return TSR_E_NOMEM;
    out->rename = rename_entry;
    out->rename_ctx = r;
    return parse_renames(&options->renames, arena, &r->renames, &r->count, err);
}

tsr_status tsr_conversion_ranks(const tsr_command_options *options, const tsr_shards *shards, const tsr_checkpoint *source,
                                tsr_convert_options *out, tsr_error *err)
{
    uint64_t world = options->world_size;
    TSR_FAIL_IF(out->to != TSR_TO_RANKS && world, err, TSR_E_USAGE, "--world-size can only be used with --to ranks");
    if (out->to != TSR_TO_RANKS) return TSR_OK;
    if (!world) world = tsr_checkpoint_joined_ranks(source);
    TSR_FAIL_IF(!shards || !world, err, TSR_E_USAGE, "--to ranks needs --shards FILE%s",
                shards ? " and --world-size N" : "");
    out->world_size = world < UINT32_MAX ? (uint32_t)world : UINT32_MAX;
    out->shards = shards;
    return TSR_OK;
}

/* ---- layers ---- */

bool tsr_options_are_layered(const tsr_command_options *options)
{
    return options->canonical || options->kept_prefix || options->map || options->dequantize || options->lora ||
           options->quantize;
}

tsr_status tsr_layering_check(const tsr_layering *wanted, tsr_error *err)
{
    const tsr_command_options *o = wanted->options;
    TSR_FAIL_IF(o->modules && !o->canonical && !o->compares_canonical, err, TSR_E_USAGE, "--modules needs --canonical");
    TSR_FAIL_IF(o->inverse && !wanted->map.data, err, TSR_E_USAGE, "--inverse needs --map MAP");
    TSR_FAIL_IF(!o->quantize && o->no_quantize.count, err, TSR_E_USAGE, "--no-quantize needs --quantize");
    TSR_FAIL_IF(o->quantize && o->raw_cast, err, TSR_E_USAGE, "--raw-cast and --quantize cannot be used together");
    return TSR_OK;
}

/* ---- names ---- */

typedef struct naming {
    const tsr_catalog *catalog;
    tsr_canonical_names *names; /* NULL without --canonical */
    tsr_str prefix;
    tsr_arena *arena; /* of the checkpoint */
} naming;

/* Takes the prefix off a name; its data becomes NULL if it does not begin with it. What holds such names ("model" for the prefix
 * "model.") is the root. */
static void strip(const naming *n, tsr_str *fqn, bool holds)
{
    const bool is_root =
        holds && n->prefix.size == fqn->size + 1 && tsr_str_starts(n->prefix, *fqn) && n->prefix.data[fqn->size] == '.';
    if (is_root) *fqn = TSR_STR("");
    else if (fqn->size > n->prefix.size && tsr_str_starts(*fqn, n->prefix)) *fqn = tsr_str_after(*fqn, n->prefix.size);
    else if (n->prefix.size) fqn->data = NULL;
}

/* A canonical name belongs to the list of names, which does not live as long as the checkpoint. */
static tsr_status name_entry(const naming *n, const tsr_entry *entry, tsr_new_name *out, tsr_error *err)
{
    *out = (tsr_new_name){entry->fqn, entry->value};
    if (n->names) {
        TSR_TRY(tsr_canonical_names_find(n->names, entry->fqn, n->arena, &out->fqn, err));
        TSR_TRY(tsr_canonical_names_value(n->names, entry, n->arena, &out->value, err));
    }
    strip(n, &out->fqn, false);
    if (out->fqn.data) out->fqn = tsr_arena_str(n->arena, out->fqn, err);
    return out->fqn.data || n->prefix.size ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status name_entries(const naming *n, tsr_new_name *out, tsr_error *err)
{
    bool any = !n->prefix.size || !n->catalog->entry_count;
    for (uint64_t i = 0; i < n->catalog->entry_count; i++) {
        TSR_TRY(name_entry(n, &n->catalog->entries[i], &out[i], err));
        any = any || out[i].fqn.data;
    }
    TSR_FAIL_IF(!any, err, TSR_E_USAGE, "no name begins with the prefix '%.*s'; the first name is '%.*s'",
                TSR_STR_ARG(n->prefix), TSR_STR_ARG(n->catalog->entries[0].fqn));
    return TSR_OK;
}

/* Of a wrapper's dict and the one inside it, which have one name now, the outer one stays. */
static tsr_status name_mappings(const naming *n, const tsr_allocator *allocator, tsr_new_name *out, tsr_error *err)
{
    tsr_map *seen = tsr_map_new(allocator, 0, err);
    tsr_status status = seen ? TSR_OK : TSR_E_NOMEM;
    for (uint64_t i = 0; i < n->catalog->mapping_count && status == TSR_OK; i++) {
        const tsr_mapping *mapping = &n->catalog->mappings[i];
        const tsr_str next = mapping->entries_before < n->catalog->entry_count
                                 ? n->catalog->entries[mapping->entries_before].fqn
                                 : (tsr_str){NULL, 0};
        const bool holds =
            next.size > mapping->fqn.size && tsr_str_starts(next, mapping->fqn) && next.data[mapping->fqn.size] == '.';
        bool fresh = false;
        out[i].fqn = mapping->fqn;
        if (n->names)
            status = tsr_canonical_names_dict(n->names, mapping->fqn, holds ? next : (tsr_str){NULL, 0}, n->arena,
                                              &out[i].fqn, err);
        strip(n, &out[i].fqn, true);
        if (status != TSR_OK || !out[i].fqn.data) continue;
        out[i].fqn = tsr_arena_str(n->arena, out[i].fqn, err);
        status = out[i].fqn.data ? tsr_map_put(seen, out[i].fqn, 0, NULL, &fresh, err) : TSR_E_NOMEM;
        if (!fresh) out[i].fqn.data = NULL;
    }
    tsr_map_free(seen);
    return status;
}

static tsr_status open_names(const naming *n, tsr_str document, const tsr_host *host, tsr_arena *arena,
                             tsr_canonical_names **out, tsr_error *err)
{
    tsr_modules_document read = {0};
    tsr_modules *modules = NULL;
    tsr_status status = document.data ? tsr_modules_parse(document, host, arena, &read, err) : TSR_OK;
    if (status == TSR_OK && document.data) status = tsr_modules_new(read.root, host, &modules, err);
    if (status != TSR_OK) tsr_error_subject(err, "--modules");
    else status = tsr_canonical_names_new(&n->catalog, NULL, 1, modules, host, out, err);
    tsr_modules_free(modules);
    return status;
}

static tsr_status rename_source(tsr_checkpoint *source, const tsr_layering *wanted, tsr_arena *arena, tsr_error *err)
{
    const tsr_command_options *o = wanted->options;
    const tsr_host *host = tsr_checkpoint_host(source);
    naming n = {.catalog = tsr_checkpoint_catalog(source),
                .prefix = tsr_str_from(o->kept_prefix ? o->kept_prefix : ""),
                .arena = tsr_checkpoint_arena(source)};
    if (!o->canonical && !n.prefix.size) return TSR_OK;
    tsr_new_name *entries = tsr_arena_array(n.arena, (size_t)n.catalog->entry_count, sizeof *entries, err);
    tsr_new_name *mappings = tsr_arena_array(n.arena, (size_t)n.catalog->mapping_count, sizeof *mappings, err);
    tsr_status status = entries && mappings ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && o->canonical) status = open_names(&n, wanted->modules, host, arena, &n.names, err);
    if (status == TSR_OK) status = name_entries(&n, entries, err);
    if (status == TSR_OK) status = name_mappings(&n, host->allocator, mappings, err);
    if (status == TSR_OK) status = tsr_checkpoint_rename(source, entries, mappings, err);
    tsr_canonical_names_free(n.names);
    return status;
}

/* ---- layers ---- */

void tsr_layers_add(tsr_layers *layers, tsr_checkpoint *layer)
{
    layers->items[layers->count++] = layers->top = layer;
}

void tsr_layers_close(tsr_layers *layers)
{
    while (layers->count) tsr_checkpoint_close(layers->items[--layers->count]);
}

static tsr_status fold(tsr_layers *layers, const tsr_layering *wanted, tsr_error *err)
{
    tsr_lora_options options = TSR_OPTIONS(tsr_lora_options);
    tsr_checkpoint *layer;
    options.name = wanted->adapter_name;
    TSR_TRY(tsr_cast_parse(tsr_str_from(wanted->options->dtype), false, &options.dtype, err));
    const tsr_status status = tsr_lora_fold(layers->top, wanted->adapter, &options, &layer, err);
    if (status == TSR_OK) tsr_layers_add(layers, layer);
    else if (!wanted->adapter_name.size) tsr_error_context(err, "adapter");
    return status;
}

static tsr_status parse_map(const tsr_checkpoint *source, const tsr_layering *wanted, tsr_arena *arena,
                            const tsr_mapping_rules **rules, tsr_error *err)
{
    tsr_status status = tsr_mapping_parse(wanted->map, tsr_checkpoint_host(source), arena, rules, err);
    if (status == TSR_OK && wanted->options->inverse) status = tsr_mapping_invert(*rules, arena, rules, err);
    if (status != TSR_OK) tsr_error_subject(err, "%s", wanted->map_called);
    return status;
}

static tsr_status apply_map(tsr_layers *layers, const tsr_layering *wanted, tsr_arena *arena, tsr_error *err)
{
    const tsr_mapping_rules *rules;
    tsr_checkpoint *layer;
    TSR_TRY(parse_map(layers->top, wanted, arena, &rules, err));
    TSR_TRY(tsr_mapping_open(layers->top, rules, &layer, err));
    tsr_layers_add(layers, layer);
    return tsr_mapping_compare_layers(layer, err);
}

static bool is_used(void *ctx, tsr_str fqn)
{
    const tsr_open_options *used = ((const tsr_layering *)ctx)->used;
    return !used || !used->selects || used->selects(used->selects_ctx, fqn);
}

static bool is_quantized(void *ctx, tsr_str fqn)
{
    const tsr_name_globs kept = {.exclude = ((const tsr_layering *)ctx)->options->no_quantize};
    return tsr_globs_select(&kept, fqn);
}

tsr_status tsr_layers_quantize(tsr_layers *layers, const tsr_layering *wanted, tsr_error *err)
{
    tsr_quantize_options options = TSR_OPTIONS(tsr_quantize_options);
    tsr_checkpoint *layer;
    if (!wanted->options->quantize) return TSR_OK;
    options.want = is_used;
    options.quantize = is_quantized;
    options.want_ctx = options.quantize_ctx = (void *)(uintptr_t)wanted;
    TSR_TRY(tsr_cast_parse(tsr_str_from(wanted->options->dtype), false, &options.dtype, err));
    if (options.dtype != TSR_DTYPE_NONE)
        TSR_TRY(tsr_check_casts(layers->top, &(tsr_convert_options){.dtype = options.dtype}, err));
    TSR_TRY(tsr_mapping_quantize(layers->top, &options, &layers->quantized, &layer, err));
    tsr_layers_add(layers, layer);
    return TSR_OK;
}

/* Once all layers are open: refuses scaled numbers that could not be multiplied, where they are used. `top` is the layer itself or was
 * opened over it. Errors: those of tsr_mapping_check_dequantized and tsr_check_casts. */
static tsr_status dequantize_check(const tsr_dequantizing *done, tsr_checkpoint *top, const tsr_layering *wanted,
                                   tsr_error *err)
{
    const tsr_convert_options used = {.dtype = done->dtype, .want = tsr_mapping_uses, .want_ctx = done->layer};
    TSR_TRY(tsr_mapping_check_dequantized(done->layer, top, wanted->used, wanted->plain, err));
    return tsr_check_casts(done->layer, &used, err);
}

/* Opens the layer over `source`, for products of --dtype (data NULL: not given). The caller closes it before `source`. Errors: those of
 * tsr_cast_parse and tsr_mapping_dequantize; then `out->layer` is NULL. */
static tsr_status dequantize_open(tsr_checkpoint *source, tsr_str dtype, tsr_dequantizing *out, tsr_error *err)
{
    tsr_dtype wanted;
    *out = (tsr_dequantizing){.layer = NULL};
    TSR_TRY(tsr_cast_parse(dtype, false, &wanted, err));
    return tsr_mapping_dequantize(source, wanted, &out->dtype, &out->layer, err);
}

tsr_status tsr_layers_open(tsr_layers *layers, const tsr_layering *wanted, tsr_arena *arena, tsr_error *err)
{
    const tsr_command_options *options = wanted->options;
    tsr_dequantizing done = {.layer = NULL};
    TSR_TRY(tsr_layering_check(wanted, err));
    TSR_TRY(rename_source(layers->top, wanted, arena, err));
    if (options->dequantize) {
        TSR_TRY(dequantize_open(layers->top, tsr_str_from(options->dtype), &done, err));
        tsr_layers_add(layers, done.layer);
    }
    if (wanted->adapter) TSR_TRY(fold(layers, wanted, err));
    if (wanted->map.data) TSR_TRY(apply_map(layers, wanted, arena, err));
    if (done.layer) TSR_TRY(dequantize_check(&done, layers->top, wanted, err));
    if (!wanted->lists) TSR_TRY(tsr_mapping_check_tied(layers->top, err));
    return tsr_layers_quantize(layers, wanted, err);
}
