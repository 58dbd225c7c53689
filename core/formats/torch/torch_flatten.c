/* Flattens a value tree with a stack of containers. Values may be shared, so a small pickle can stand for a huge tree:
 * its size is counted first (torch_survey.c). */
#include "formats/torch/torch_flatten.h"

#include "formats/common/expansion.h"
#include "formats/torch/torch_survey.h"
#include "tessera/sys/try.h"

typedef struct flatten {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_torch_survey survey;
    uint64_t *room;   /* how many more bytes shared values may expand to */
    tsr_vec levels;   /* tsr_torch_level */
    tsr_vec path;     /* tsr_path_item, one per level */
    tsr_vec entries;  /* tsr_entry */
    tsr_vec mappings; /* tsr_mapping */
    tsr_map *names;   /* FQN → entry */
    tsr_map *inner;   /* containers inside leaves that were searched for tensors */
    tsr_error *err;
} flatten;

/* Sets the text of the last step's key if the key is not a str. */
static tsr_status spell_key(flatten *f)
{
    char text[TSR_TORCH_KEY];
    tsr_path_item *item = (tsr_path_item *)f->path.items + f->path.count - 1;
    if (!item->value) return TSR_OK;
    tsr_torch_key_text(item->value, text);
    item->key = tsr_arena_str(f->arena, tsr_str_from(text), f->err);
    return item->key.data ? TSR_OK : TSR_E_NOMEM;
}

/* The text before, between and after the items of a path. Names use dots, messages use brackets. */
typedef struct joint {
    const char *open, *between, *close;
} joint;

static const joint with_dots = {"", ".", ""}, in_brackets = {"[", "", "]"};

/* Path items as text. */
static tsr_status join(flatten *f, const tsr_path_item *path, size_t count, const joint *how, tsr_str *out)
{
    tsr_vec text = tsr_vec_of(f->host->allocator, 1);
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        char digits[24];
        size_t at = sizeof digits;
        uint64_t rest = path[i].integer < 0 ? 0 - (uint64_t)path[i].integer : (uint64_t)path[i].integer;
        do digits[--at] = (char)('0' + rest % 10);
        while ((rest /= 10) > 0);
        if (path[i].integer < 0) digits[--at] = '-';
        tsr_str item = path[i].kind == TSR_PATH_KEY ? path[i].key : (tsr_str){digits + at, sizeof digits - at};
        tsr_str parts[] = {tsr_str_from(i ? how->between : ""), tsr_str_from(how->open), item, tsr_str_from(how->close)};
        for (size_t k = 0; k < 4 && status == TSR_OK; k++) {
            status = tsr_vec_reserve(&text, parts[k].size + 1, f->err);
            if (status != TSR_OK) break;
            if (parts[k].size) memcpy((char *)text.items + text.count, parts[k].data, parts[k].size);
            text.count += parts[k].size;
        }
    }
    if (status == TSR_OK) *out = tsr_arena_str(f->arena, (tsr_str){text.items ? text.items : "", text.count}, f->err);
    tsr_vec_free(&text);
    return status == TSR_OK && !out->data ? TSR_E_NOMEM : status;
}

static tsr_status refuse_twins(flatten *f, const tsr_entry *first, const tsr_entry *second)
{
    tsr_str a, b;
    TSR_TRY(join(f, first->path, first->path_length, &in_brackets, &a));
    TSR_TRY(join(f, second->path, second->path_length, &in_brackets, &b));
    return tsr_fail(f->err, TSR_E_FORMAT, "torch: the paths %.*s and %.*s both result in the name '%.*s'", TSR_STR_ARG(a),
                    TSR_STR_ARG(b), TSR_STR_ARG(second->fqn));
}

typedef struct place {
    tsr_str fqn;
    tsr_path_item *path;
    uint32_t path_length;
} place;

/* The name and the path of the current position. A module's state_dict() is flat, so everything below a module is one
 * key. */
static tsr_status take_path(flatten *f, place *out)
{
    const tsr_path_item *items = f->path.items;
    const tsr_torch_level *levels = f->levels.items;
    size_t count = f->path.count, kept = 0;
    tsr_path_item *path = tsr_arena_array(f->arena, count, sizeof *path, f->err);
    if (!path) return TSR_E_NOMEM;
    for (; kept < count && !levels[kept].parts[0]; kept++) path[kept] = items[kept];
    if (kept < count) {
        path[kept] = (tsr_path_item){.kind = TSR_PATH_KEY};
        TSR_TRY(join(f, items + kept, count - kept, &with_dots, &path[kept].key));
        kept++;
    }
    out->path = path;
    out->path_length = (uint32_t)kept;
    TSR_TRY(join(f, path, kept, &with_dots, &out->fqn));
    return TSR_OK;
}

static tsr_status add_leaf(flatten *f, const tsr_value *value)
{
    TSR_FAIL_IF(f->entries.count >= f->host->limits.entries || f->entries.count >= UINT32_MAX - 1, f->err, TSR_E_LIMIT,
                "torch: more than %zu entries (limit entries)", f->entries.count);
    tsr_entry entry = {0};
    if (value->kind == TSR_VALUE_TENSOR) {
        entry = *value->as.tensor;
    } else {
        TSR_TRY(tsr_torch_leaf(value, f->host, f->inner, f->arena, &entry, f->err));
        TSR_TRY(tsr_expansion_take_value(f->room, &entry.value, f->arena, f->err));
    }
    place at;
    TSR_TRY(take_path(f, &at));
    entry.fqn = at.fqn;
    entry.path = at.path;
    entry.path_length = at.path_length;
    uint32_t *existing;
    bool inserted;
    TSR_TRY(tsr_map_put(f->names, entry.fqn, (uint32_t)f->entries.count, &existing, &inserted, f->err));
    if (!inserted) return refuse_twins(f, (const tsr_entry *)f->entries.items + *existing, &entry);
    tsr_entry *added = tsr_vec_push(&f->entries, f->err);
    if (!added) return TSR_E_NOMEM;
    *added = entry;
    return TSR_OK;
}

/* A mapping that cannot be rebuilt from the entries below it alone. Mappings inside a module are parts of the module. */
static tsr_status keep_mapping(flatten *f, const tsr_value *value)
{
    place at;
    const tsr_torch_level *above = f->levels.count ? (const tsr_torch_level *)f->levels.items + f->levels.count - 1 : NULL;
    if (!tsr_torch_is_kept(value) || (above && above->parts[0])) return TSR_OK;
    TSR_TRY(take_path(f, &at));
    tsr_mapping *added = tsr_vec_push(&f->mappings, f->err);
    if (!added) return TSR_E_NOMEM;
    *added = (tsr_mapping){at.fqn, at.path, at.path_length, f->entries.count, value};
    return TSR_OK;
}

static tsr_status visit(flatten *f, const tsr_value *value)
{
    if (!tsr_torch_survey_walks(&f->survey, value)) return add_leaf(f, value);
    TSR_TRY(keep_mapping(f, value));
    tsr_torch_level *pushed = tsr_vec_push(&f->levels, f->err);
    return pushed ? tsr_torch_level_open(f->host, value, pushed, f->err) : TSR_E_NOMEM;
}

static tsr_status walk(flatten *f, const tsr_value *root)
{
    TSR_TRY(tsr_torch_survey_open(&f->survey, root, f->host, f->err));
    TSR_TRY(tsr_expansion_take(f->room, f->survey.bytes, f->host, f->err));
    TSR_TRY(visit(f, root));
    while (f->levels.count) {
        tsr_path_item item;
        const tsr_value *child = tsr_torch_level_next((tsr_torch_level *)f->levels.items + f->levels.count - 1, &item);
        if (!child) {
            tsr_torch_level_close((tsr_torch_level *)f->levels.items + --f->levels.count);
            if (f->path.count) f->path.count--;
            continue;
        }
        tsr_path_item *pushed = tsr_vec_push(&f->path, f->err);
        if (!pushed) return TSR_E_NOMEM;
        *pushed = item;
        TSR_TRY(spell_key(f));
        size_t levels = f->levels.count;
        TSR_TRY(visit(f, child));
        if (f->levels.count == levels) f->path.count--;
    }
    return TSR_OK;
}

static tsr_status keep(flatten *f, tsr_torch_flat *out)
{
    out->entry_count = f->entries.count;
    out->mapping_count = f->mappings.count;
    out->entries = tsr_arena_array(f->arena, f->entries.count, sizeof *out->entries, f->err);
    out->mappings = tsr_arena_array(f->arena, f->mappings.count, sizeof *out->mappings, f->err);
    if (!out->entries || !out->mappings) return TSR_E_NOMEM;
    if (f->entries.count) memcpy(out->entries, f->entries.items, f->entries.count * sizeof *out->entries);
    if (f->mappings.count) memcpy(out->mappings, f->mappings.items, f->mappings.count * sizeof *out->mappings);
    return TSR_OK;
}

tsr_status tsr_torch_flatten(const tsr_value *root, const tsr_host *host, uint64_t *room, tsr_arena *arena,
                             tsr_torch_flat *out, tsr_error *err)
{
    const tsr_allocator *allocator = host->allocator;
    flatten f = {.host = host,
                 .arena = arena,
                 .err = err,
                 .room = room,
                 .levels = tsr_vec_of(allocator, sizeof(tsr_torch_level)),
                 .path = tsr_vec_of(allocator, sizeof(tsr_path_item)),
                 .entries = tsr_vec_of(allocator, sizeof(tsr_entry)),
                 .mappings = tsr_vec_of(allocator, sizeof(tsr_mapping))};
    *out = (tsr_torch_flat){0};
    f.names = tsr_map_new(allocator, 0, err);
    f.inner = f.names ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = f.inner ? walk(&f, root) : TSR_E_NOMEM;
    if (status == TSR_OK) status = keep(&f, out);
    while (f.levels.count) tsr_torch_level_close((tsr_torch_level *)f.levels.items + --f.levels.count);
    tsr_torch_survey_close(&f.survey);
    tsr_map_free(f.names);
    tsr_map_free(f.inner);
    tsr_vec_free(&f.levels);
    tsr_vec_free(&f.path);
    tsr_vec_free(&f.entries);
    tsr_vec_free(&f.mappings);
    return status;
}
