/* --quantize and --no-quantize: see map_options.h. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/program/map_options.h"
#include "cli/program/term.h"
#include "tessera/mapping.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/map.h"
#include "tessera/sys/vec.h"

typedef struct quantizing {
    cli *program;
    const cli_map_options *map;
    const tsr_open_options *used;
    tsr_name_globs left; /* excludes what --no-quantize names */
} quantizing;

static bool is_used(void *ctx, tsr_str fqn)
{
    const quantizing *q = ctx;
    return !q->used || !q->used->selects || q->used->selects(q->used->selects_ctx, fqn);
}

static bool is_quantized(void *ctx, tsr_str fqn)
{
    return cli_selects(&((const quantizing *)ctx)->left, fqn);
}

/* Describes, for --resume, what affects the values. */
static tsr_status describe_quantizing(const quantizing *q, cli_session *session, tsr_error *err)
{
    if (!session->map_arena) session->map_arena = tsr_arena_new(cli_host(q->program)->allocator, 0, err);
    if (!session->map_arena) return TSR_E_NOMEM;
    tsr_str text = tsr_arena_format(session->map_arena, err, "fp8-block %s", q->map->dtype ? q->map->dtype : "");
    for (size_t i = 0; i < q->map->no_quantize.count && text.data; i++)
        text = tsr_arena_format(session->map_arena, err, "%.*s except %s", TSR_STR_ARG(text), q->map->no_quantize.items[i]);
    session->quantized = text;
    return text.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_str without_ending(tsr_str weight)
{
    return (tsr_str){weight.data, weight.size - (sizeof ".weight" - 1)};
}

/* The last two components of a module's name. transformers compares the names in its list with the ends of module names. */
static tsr_str end_of(tsr_str module)
{
    size_t at = module.size;
    for (unsigned dots = 0; at && (module.data[at - 1] != '.' || ++dots < 2); at--) {
    }
    return (tsr_str){module.data + at, module.size - at};
}

/* Orders names by their last characters first. */
static int by_end(const void *a, const void *b)
{
    const tsr_str x = *(const tsr_str *)a, y = *(const tsr_str *)b;
    for (size_t i = 1; i <= x.size && i <= y.size; i++) {
        const unsigned char c = (unsigned char)x.data[x.size - i], d = (unsigned char)y.data[y.size - i];
        if (c != d) return c < d ? -1 : 1;
    }
    return (x.size > y.size) - (x.size < y.size);
}

/* Lists the modules of quantized weights (of tsr_str), ordered by their ends. */
static tsr_status list_quantized(const tsr_catalog *catalog, tsr_vec *modules, tsr_error *err)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->dtype != TSR_FLOAT8_E4M3FN || !tsr_str_ends(entry->fqn, TSR_STR(".weight"))) continue;
        tsr_str *module = tsr_vec_push(modules, err);
        if (!module) return TSR_E_NOMEM;
        *module = without_ending(entry->fqn);
    }
    if (modules->count) qsort(modules->items, modules->count, sizeof(tsr_str), by_end);
    return TSR_OK;
}

/* Whether the name of one of the modules ends like this. Modules that are not quantized must then be listed by their whole
 * names. */
static bool is_shared(const tsr_vec *modules, tsr_str end)
{
    const tsr_str *all = modules->items;
    size_t low = 0, high = modules->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (by_end(&all[middle], &end) < 0) low = middle + 1;
        else high = middle;
    }
    return low < modules->count && tsr_str_ends(all[low], end);
}

/* Prints the modules that a loader must not convert, each once. `ends` is an empty map. */
static tsr_status put_modules(const tsr_vec *quantized, const tsr_quantized *made, tsr_map *ends, tsr_error *err)
{
    enum { ONCE = 1, WHOLE = 2 };
    const char *comma = "";
    for (uint64_t i = 0; i < made->kept_count; i++) {
        const tsr_str module = without_ending(made->kept[i]), end = end_of(module);
        const uint32_t known = tsr_map_get(ends, end, 0), how = known ? known : is_shared(quantized, end) ? WHOLE : ONCE;
        const tsr_status status = tsr_map_put(ends, end, how, NULL, NULL, err);
        if (status != TSR_OK) return status;
        if (known == ONCE) continue;
        fprintf(stderr, "%s\"", comma);
        cli_put(stderr, how == WHOLE ? module : end);
        fputc('"', stderr);
        comma = ", ";
    }
    return TSR_OK;
}

/* Tells the user what to add to config.json: a loader builds its modules from it, and a conversion does not write it. */
static tsr_status tell_config(const quantizing *q, const tsr_catalog *catalog, const tsr_quantized *made, tsr_error *err)
{
    if (!cli_speaks(q->program) || q->program->options.quiet) return TSR_OK;
    tsr_vec quantized = tsr_vec_of(cli_host(q->program)->allocator, sizeof(tsr_str));
    tsr_map *ends = tsr_map_new(cli_host(q->program)->allocator, 0, err);
    tsr_status status = ends ? list_quantized(catalog, &quantized, err) : TSR_E_NOMEM;
    if (status == TSR_OK) {
        cli_note(q->program, "quantized to float8_e4m3fn: %s; other two-dimensional tensors, left as they are: %s",
                 cli_plural(made->count, "weight").text, cli_number(made->kept_count).text);
        fputs(
            "add this to config.json: \"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", "
            "\"weight_block_size\": [128, 128], \"modules_to_not_convert\": [",
            stderr);
        status = put_modules(&quantized, made, ends, err);
        fputs("]}\n", stderr);
    }
    tsr_vec_free(&quantized);
    tsr_map_free(ends);
    return status;
}

tsr_status cli_quantize(cli *program, const cli_map_options *map, const tsr_open_options *used, cli_session *session,
                        tsr_error *err)
{
    quantizing q = {.program = program, .map = map, .used = used, .left.exclude = map->no_quantize};
    tsr_quantize_options options = TSR_OPTIONS(tsr_quantize_options);
    tsr_quantized made;
    tsr_checkpoint *layer;
    options.want = is_used;
    options.quantize = is_quantized;
    options.want_ctx = options.quantize_ctx = &q;
    tsr_status status = describe_quantizing(&q, session, err);
    if (status == TSR_OK) status = tsr_cast_parse(tsr_str_from(map->dtype), false, &options.dtype, err);
    if (status == TSR_OK && options.dtype != TSR_DTYPE_NONE) {
        const tsr_convert_options all = {.dtype = options.dtype};
        status = tsr_check_casts(session->checkpoint, &all, err);
    }
    if (status == TSR_OK) status = tsr_mapping_quantize(session->checkpoint, &options, &made, &layer, err);
    if (status != TSR_OK) return status;
    cli_add_layer(session, layer);
    return tell_config(&q, session->catalog, &made, err);
}

tsr_status cli_quantize_dtype(tsr_command_options *writing, tsr_error *err)
{
    if (!writing->quantize && writing->no_quantize.count)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--no-quantize needs --quantize");
    if (!writing->quantize) return TSR_OK;
    if (writing->raw_cast)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--raw-cast and --quantize cannot be used together");
    writing->dtype = NULL;
    return TSR_OK;
}
