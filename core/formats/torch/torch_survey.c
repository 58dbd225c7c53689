/* Counts entries, names and paths over the shared graph. */
#include "formats/torch/torch_survey.h"

#include "formats/torch/torch_flatten.h"
#include "tessera/sys/try.h"

/* An entry's place in the catalog and in the maps of names; a container that is visited. */
enum { ENTRY_BYTES = sizeof(tsr_entry) + 48, VISIT_BYTES = 64 };

/* What a container stands for wherever it occurs. */
typedef struct counted {
    uint64_t bytes; /* without the steps that lead to it */
    uint64_t names; /* entries and mappings below it: each repeats those steps */
    bool walked;    /* otherwise a leaf */
    bool open;      /* the walk is inside of it */
} counted;

typedef struct level {
    tsr_torch_level at;
    uint32_t number; /* of its counted */
    uint64_t step;   /* bytes of the step to the child that is being counted */
} level;

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static counted *counted_at(const tsr_torch_survey *survey, uint32_t number)
{
    return (counted *)survey->counts.items + number;
}

static bool is_container(const tsr_value *value)
{
    return value->count &&
           (value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_OBJECT);
}

/* A path item, and its text in the name of an entry and in that of a module's key. */
static uint64_t step_bytes(const tsr_path_item *item)
{
    char text[TSR_TORCH_KEY];
    uint64_t size = item->kind == TSR_PATH_KEY ? item->key.size : 20;
    if (item->value && tsr_torch_key_text(item->value, text)) size = 2 * strlen(text);
    return sizeof *item + 2 * (size + 1);
}

static uint64_t leaf_bytes(const tsr_value *leaf)
{
    const tsr_value *size = tsr_torch_is_odd_tensor(leaf) ? tsr_value_get(leaf->items[0], TSR_STR("size")) : NULL;
    return ENTRY_BYTES + (size ? multiply(size->count, sizeof(uint64_t)) : 0);
}

/* What a visit of a container costs by itself: some mappings are kept, a module's attributes are searched. */
static counted start_count(const tsr_value *value)
{
    counted c = {.bytes = VISIT_BYTES, .names = tsr_torch_is_kept(value), .walked = true, .open = true};
    if (!tsr_torch_is_module(value)) return c;
    const tsr_value *state = value->items[1], *hidden = tsr_value_get(state, TSR_STR("_non_persistent_buffers_set"));
    c.bytes = add(c.bytes, multiply(VISIT_BYTES, add(tsr_value_pairs(state), hidden ? hidden->count : 0)));
    return c;
}

static void add_child(counted *to, uint64_t bytes, uint64_t names, uint64_t step)
{
    to->bytes = add(to->bytes, add(bytes, multiply(names, step)));
    to->names = add(to->names, names);
}

static tsr_status enter(tsr_torch_survey *survey, tsr_vec *levels, const tsr_value *value, tsr_error *err)
{
    TSR_FAIL_IF(levels->count >= survey->host->limits.depth, err, TSR_E_LIMIT,
                "torch: containers nest deeper than %u (limit depth)", survey->host->limits.depth);
    counted *c = tsr_vec_push(&survey->counts, err);
    if (!c) return TSR_E_NOMEM;
    *c = start_count(value);
    const uint32_t number = (uint32_t)(survey->counts.count - 1);
    uint32_t *stored;
    TSR_TRY(tsr_map_put(survey->known, tsr_torch_container_key(value), number, &stored, NULL, err));
    *stored = number;
    level *pushed = tsr_vec_push(levels, err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = (level){.number = number};
    return tsr_torch_level_open(survey->host, value, &pushed->at, err);
}

/* A leaf among the containers, so that its keys are not read again. */
static tsr_status keep_leaf(tsr_torch_survey *survey, const tsr_value *value, counted *out, tsr_error *err)
{
    counted *c = tsr_vec_push(&survey->counts, err);
    if (!c) return TSR_E_NOMEM;
    *c = *out = (counted){.bytes = leaf_bytes(value), .names = 1};
    return tsr_map_put(survey->known, tsr_torch_container_key(value), (uint32_t)(survey->counts.count - 1), NULL, NULL, err);
}

/* Counts a value that is known or a leaf; a container that is new is entered, and counted when it is left. */
static tsr_status visit(tsr_torch_survey *survey, tsr_vec *levels, const tsr_value *value, counted *out, tsr_error *err)
{
    bool walked;
    *out = (counted){.bytes = leaf_bytes(value), .names = 1}; /* or an empty mapping, which is kept */
    if (!is_container(value)) return TSR_OK;
    const uint32_t number = tsr_map_get(survey->known, tsr_torch_container_key(value), UINT32_MAX);
    if (number != UINT32_MAX) {
        *out = *counted_at(survey, number);
        TSR_FAIL_IF(out->open, err, TSR_E_LIMIT,
                    "torch: a container of the state dict contains itself, so its names would never end");
        return TSR_OK;
    }
    TSR_TRY(tsr_torch_walks_into(survey->host, survey->lists, value, &walked, err));
    if (!walked) return keep_leaf(survey, value, out, err);
    *out = (counted){0};
    return enter(survey, levels, value, err);
}

static void leave(tsr_torch_survey *survey, tsr_vec *levels, uint64_t *total)
{
    level *top = (level *)levels->items + --levels->count;
    counted *done = counted_at(survey, top->number);
    tsr_torch_level_close(&top->at);
    done->open = false;
    if (levels->count) {
        level *above = top - 1;
        add_child(counted_at(survey, above->number), done->bytes, done->names, above->step);
    } else {
        *total = done->bytes;
    }
}

static tsr_status count(tsr_torch_survey *survey, const tsr_value *root, tsr_vec *levels, tsr_error *err)
{
    counted child;
    TSR_TRY(visit(survey, levels, root, &child, err));
    survey->bytes = child.bytes;
    while (levels->count) {
        tsr_path_item item;
        level *top = (level *)levels->items + levels->count - 1;
        const tsr_value *value = tsr_torch_level_next(&top->at, &item);
        if (!value) {
            leave(survey, levels, &survey->bytes);
            continue;
        }
        const uint32_t number = top->number;
        const uint64_t step = top->step = step_bytes(&item);
        TSR_TRY(visit(survey, levels, value, &child, err));
        add_child(counted_at(survey, number), child.bytes, child.names, step);
    }
    return TSR_OK;
}

tsr_status tsr_torch_survey_open(tsr_torch_survey *survey, const tsr_value *root, const tsr_host *host, tsr_error *err)
{
    *survey = (tsr_torch_survey){.host = host, .counts = tsr_vec_of(host->allocator, sizeof(counted))};
    survey->lists = tsr_map_new(host->allocator, 0, err);
    survey->known = survey->lists ? tsr_map_new(host->allocator, 0, err) : NULL;
    if (!survey->known) return TSR_E_NOMEM;
    tsr_vec levels = tsr_vec_of(host->allocator, sizeof(level));
    const tsr_status status = count(survey, root, &levels, err);
    while (levels.count) tsr_torch_level_close(&((level *)levels.items)[--levels.count].at);
    tsr_vec_free(&levels);
    return status;
}

void tsr_torch_survey_close(tsr_torch_survey *survey)
{
    tsr_map_free(survey->lists);
    tsr_map_free(survey->known);
    tsr_vec_free(&survey->counts);
}

bool tsr_torch_survey_walks(const tsr_torch_survey *survey, const tsr_value *value)
{
    if (!is_container(value)) return value->kind == TSR_VALUE_DICT;
    const uint32_t number = tsr_map_get(survey->known, tsr_torch_container_key(value), UINT32_MAX);
    return number != UINT32_MAX && counted_at(survey, number)->walked;
}
