/* Flattens a value tree with a stack of containers. Values may be shared, so a small pickle can stand for a huge tree:
 * its size is counted first. */
#include "formats/torch/torch_flatten.h"

#include <inttypes.h>

#include "base/line.h"
#include "formats/common/expansion.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- key ---- */

/* Keys of mappings as PyTorch's flatten_state_dict writes them: str(key). */

enum { KEY_DEPTH = 4 };

/* repr() of text that needs no escape. */
static bool put_quoted(tsr_line *line, tsr_str text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.data[i] < ' ' || text.data[i] > '~' || text.data[i] == '\'' || text.data[i] == '\\') return false;
    tsr_line_put(line, "'", 1);
    tsr_line_put(line, text.data, text.size);
    tsr_line_put(line, "'", 1);
    return true;
}

/* Of what str() and repr() write alike; a str stands in a tuple here. */
static bool put_leaf(tsr_line *line, const tsr_value *key)
{
    switch (key->kind) {
    case TSR_VALUE_NONE: tsr_line_put(line, "None", 4); return true;
    case TSR_VALUE_BOOL: tsr_line_format(line, "%s", key->as.boolean ? "True" : "False"); return true;
    case TSR_VALUE_INT: tsr_line_format(line, "%" PRId64, key->as.integer); return true;
    case TSR_VALUE_BIGINT: return tsr_line_integer(line, key->text);
    case TSR_VALUE_FLOAT: tsr_line_float(line, key->as.real); return true;
    case TSR_VALUE_STR: return put_quoted(line, key->text);
    case TSR_VALUE_BYTES: tsr_line_put(line, "b", 1); return put_quoted(line, key->text);
    case TSR_VALUE_DTYPE: tsr_line_format(line, "torch.%s", tsr_dtype_describe(key->as.dtype)->name); return true;
    default: return false;
    }
}

static void close_tuple(tsr_line *line, const tsr_value *tuple)
{
    tsr_line_format(line, "%s", tuple->count == 1 ? ",)" : ")");
}

static bool put_key(tsr_line *line, const tsr_value *key)
{
    struct {
        const tsr_value *tuple;
        size_t next;
    } stack[KEY_DEPTH];
    unsigned height = 0;
    for (;;) {
        if (line->full) return false;
        if (key->kind != TSR_VALUE_TUPLE) {
            if (!put_leaf(line, key)) return false;
        } else {
            if (height == KEY_DEPTH) return false;
            tsr_line_put(line, "(", 1);
            stack[height].tuple = key;
            stack[height++].next = 0;
        }
        while (height && stack[height - 1].next == stack[height - 1].tuple->count) close_tuple(line, stack[--height].tuple);
        if (height == 0) return !line->full;
        if (stack[height - 1].next) tsr_line_put(line, ", ", 2);
        key = stack[height - 1].tuple->items[stack[height - 1].next++];
    }
}

/* Str() of a key of a mapping that is neither str nor int: bool, None, float, bytes, tuples of such and the
 * like. False for what has no such text, or a longer one: a mapping with such a key is a leaf. */
static bool torch_key_text(const tsr_value *key, char text[TSR_TORCH_KEY])
{
    tsr_line line = tsr_line_on(text, TSR_TORCH_KEY);
    if (key->kind != TSR_VALUE_DEVICE) return put_key(&line, key);
    tsr_line_put(&line, key->text.data, key->text.size);
    return !line.full;
}

/* ---- containers ---- */

/* Which values a walk over a state dict goes into, and their children. */

enum { BUFFERS = 1, ATTRIBUTES = 3, ATTRIBUTES_MAX = 4096, TENSOR_DICT_MAX = 64 };
static const char *const module_parts[ATTRIBUTES] = {"_parameters", "_buffers", "_modules"};

static bool find_parts(const tsr_value *value, const tsr_value *parts[TSR_MODULE_PARTS])
{
    const tsr_value *state = value->kind == TSR_VALUE_OBJECT && value->count > 1 ? value->items[1] : NULL;
    if (!state || state->kind != TSR_VALUE_DICT || tsr_value_pairs(state) > ATTRIBUTES_MAX) return false;
    for (size_t i = 0; i < ATTRIBUTES; i++) {
        parts[i] = tsr_value_get(state, tsr_str_from(module_parts[i]));
        if (!parts[i] || parts[i]->kind != TSR_VALUE_DICT) return false;
    }
    parts[ATTRIBUTES] = state;
    return true;
}

static bool torch_is_module(const tsr_value *value)
{
    const tsr_value *parts[TSR_MODULE_PARTS];
    return find_parts(value, parts);
}

/* The tensors of a TensorDict, and the class of an object; NULL if the object is not one. A function makes it, whose first argument is the
 * class. */
static const tsr_value *made_tensor_dict(const tsr_value *value, tsr_str *class)
{
    const tsr_value *args = value->items[0], *state = value->count > 1 ? value->items[1] : NULL;
    *class = value->text;
    if (tsr_str_equal(value->text, TSR_STR("tensordict._reductions._make_td")) && args->count == 2 &&
        args->items[0]->kind == TSR_VALUE_GLOBAL) {
        *class = args->items[0]->text;
        state = args->items[1];
    }
    const bool is_one = tsr_str_equal(*class, TSR_STR("tensordict._td.TensorDict")) && state &&
                        state->kind == TSR_VALUE_DICT && tsr_value_pairs(state) <= TENSOR_DICT_MAX;
    return is_one ? tsr_value_get(state, TSR_STR("_tensordict")) : NULL;
}

/* What an object stands for that a walk goes into: the module that torch.compile's wrapper holds, and the dict of a TensorDict; otherwise
 * the value itself. Sources: OptimizedModule.__reduce__ of torch/_dynamo/eval_frame.py, tensordict/_reductions.py. */
static const tsr_value *content_of(const tsr_value *value)
{
    tsr_str class;
    if (value->kind != TSR_VALUE_OBJECT || !value->count) return value;
    if (tsr_str_equal(value->text, TSR_STR("torch._dynamo.eval_frame.OptimizedModule"))) {
        const tsr_value *module = value->items[0]->count ? value->items[0]->items[0] : value; /* an argument of the call */
        return torch_is_module(module) ? module : value;
    }
    const tsr_value *dict = made_tensor_dict(value, &class);
    return dict && dict->kind == TSR_VALUE_DICT ? dict : value;
}

/* Quantized, sparse, nested tensors and the like, which torch_value.c shows as named parts. */
static bool torch_is_odd_tensor(const tsr_value *value)
{
    return value->kind == TSR_VALUE_OBJECT && value->count == 1 && value->items[0]->kind == TSR_VALUE_DICT;
}

/* Whether a list that holds the value is walked into. An object's attributes are searched once. */
static tsr_status opens_list(tsr_map *lists, const tsr_value *value, bool *yes, tsr_error *err)
{
    *yes = value->kind == TSR_VALUE_DICT || value->kind == TSR_VALUE_TENSOR || torch_is_odd_tensor(value);
    if (*yes || value->kind != TSR_VALUE_OBJECT || value->count < 2) return TSR_OK;
    uint32_t known = tsr_map_get(lists, tsr_torch_container_key(value), 2);
    *yes = known == 2 ? torch_is_module(value) || content_of(value) != value : known == 0;
    return known == 2 ? tsr_map_put(lists, tsr_torch_container_key(value), !*yes, NULL, NULL, err) : TSR_OK;
}

/* Whether the catalog keeps a mapping itself, because the entries below it do not tell all of it. */
static bool torch_is_kept(const tsr_value *value)
{
    const bool has_class = value->ordered_dict || value->variant; /* Counter or defaultdict */
    return value->kind == TSR_VALUE_DICT && (has_class || value->as.attributes || !value->count);
}

/* A search through a list of lists. */
typedef struct search {
    tsr_map *lists; /* list → 1: a leaf */
    tsr_vec stack;  /* tsr_torch_level */
    tsr_error *err;
} search;

static tsr_status mark_list(search *s, const tsr_value *list, bool leaf)
{
    uint32_t *stored;
    TSR_TRY(tsr_map_put(s->lists, tsr_torch_container_key(list), leaf, &stored, NULL, s->err));
    *stored = leaf;
    return TSR_OK;
}

/* One step of the search below a list for something that is walked into. */
static tsr_status search_list(search *s, bool *found)
{
    tsr_torch_level *top = (tsr_torch_level *)s->stack.items + s->stack.count - 1;
    if (top->next == top->container->count) {
        s->stack.count--;
        return mark_list(s, top->container, true);
    }
    const tsr_value *item = top->container->items[top->next++];
    TSR_TRY(opens_list(s->lists, item, found, s->err));
    if (*found || item->kind != TSR_VALUE_LIST || item->count == 0) return TSR_OK;
    uint32_t known = tsr_map_get(s->lists, tsr_torch_container_key(item), 2);
    *found = known == 0;
    if (known != 2) return TSR_OK;
    TSR_TRY(mark_list(s, item, true)); /* a list inside itself adds nothing */
    tsr_torch_level *pushed = tsr_vec_push(&s->stack, s->err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = (tsr_torch_level){.container = item};
    return TSR_OK;
}

/* Whether a list is a leaf; each list is looked through once. */
static tsr_status is_leaf_list(const tsr_host *host, tsr_map *lists, const tsr_value *list, bool *leaf, tsr_error *err)
{
    *leaf = true;
    if (list->count == 0) return TSR_OK;
    uint32_t known = tsr_map_get(lists, tsr_torch_container_key(list), 2);
    *leaf = known != 0;
    if (known != 2) return TSR_OK;
    search s = {lists, tsr_vec_of(host->allocator, sizeof(tsr_torch_level)), err};
    tsr_torch_level *first = tsr_vec_push(&s.stack, err);
    tsr_status status = first ? mark_list(&s, list, true) : TSR_E_NOMEM;
    if (first) *first = (tsr_torch_level){.container = list};
    bool found = false;
    while (status == TSR_OK && s.stack.count && !found) status = search_list(&s, &found);
    for (size_t i = 0; i < s.stack.count && status == TSR_OK; i++)
        status = mark_list(&s, ((const tsr_torch_level *)s.stack.items)[i].container, false);
    *leaf = !found;
    tsr_vec_free(&s.stack);
    return status;
}

static bool is_key(const tsr_value *key)
{
    char text[TSR_TORCH_KEY];
    return key->kind == TSR_VALUE_STR || key->kind == TSR_VALUE_INT || torch_key_text(key, text);
}

/* A mapping whose keys all have a name; others stay whole. */
static bool is_mapping(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_DICT) return false;
    for (size_t i = 0; i < value->count; i += 2)
        if (!is_key(value->items[i])) return false;
    return true;
}

/* Whether a walk goes into the value; otherwise it is a leaf. `lists` remembers lists that were looked through. Reads all
 * keys of a mapping, and all items of a list that is new. */
static tsr_status torch_walks_into(const tsr_host *host, tsr_map *lists, const tsr_value *value, bool *yes, tsr_error *err)
{
    *yes = is_mapping(value) || torch_is_module(value);
    if (value->kind != TSR_VALUE_LIST) return TSR_OK;
    TSR_TRY(is_leaf_list(host, lists, value, yes, err));
    *yes = !*yes;
    return TSR_OK;
}

/* The step to what lies under a key; its text is made when an entry takes it. */
static tsr_path_item key_item(const tsr_value *key)
{
    if (key->kind == TSR_VALUE_STR) return (tsr_path_item){.kind = TSR_PATH_KEY, .key = key->text};
    if (key->kind == TSR_VALUE_INT) return (tsr_path_item){.kind = TSR_PATH_INT_KEY, .integer = key->as.integer};
    return (tsr_path_item){.kind = TSR_PATH_KEY, .value = key};
}

/* Whether an attribute of a module belongs to its state_dict(): the packed weights of a quantized module, which are an object of
 * TorchScript. Source: _save_to_state_dict of torch/ao/nn/quantized/modules/linear.py, embedding_ops.py and rnn.py. */
static bool is_packed(const tsr_value *attribute)
{
    return attribute->kind == TSR_VALUE_OBJECT && tsr_str_equal(attribute->text, TSR_STR("torch.ScriptObject"));
}

/* The next named child of a module: `next` counts through the pairs of its parts. */
static const tsr_value *next_of_module(tsr_torch_level *top, tsr_path_item *item)
{
    for (;;) {
        size_t at = top->next++, which = 0;
        while (which < TSR_MODULE_PARTS && at >= tsr_value_pairs(top->parts[which]))
            at -= tsr_value_pairs(top->parts[which++]);
        if (which == TSR_MODULE_PARTS) return NULL;
        const tsr_value *key = top->parts[which]->items[2 * at], *value = top->parts[which]->items[2 * at + 1];
        if (value->kind == TSR_VALUE_NONE || !is_key(key) || (which == ATTRIBUTES && !is_packed(value))) continue;
        if (which == BUFFERS && top->hidden && tsr_map_get(top->hidden, key->text, 0)) continue;
        *item = key_item(key);
        return value;
    }
}

/* The next child and the step to it, or NULL. */
static const tsr_value *torch_level_next(tsr_torch_level *top, tsr_path_item *item)
{
    const tsr_value *container = top->container;
    if (top->parts[0]) return next_of_module(top, item);
    if (container->kind == TSR_VALUE_LIST) {
        if (top->next == container->count) return NULL;
        *item = (tsr_path_item){.kind = TSR_PATH_INDEX, .integer = (int64_t)top->next};
        return container->items[top->next++];
    }
    if (top->next == tsr_value_pairs(container)) return NULL;
    size_t at = 2 * top->next++;
    *item = key_item(container->items[at]);
    return container->items[at + 1];
}

static void torch_level_close(tsr_torch_level *level);

/* Starts at the first child of a container that is walked into. */
static tsr_status torch_level_open(const tsr_host *host, const tsr_value *container, tsr_torch_level *out, tsr_error *err)
{
    *out = (tsr_torch_level){.container = container};
    if (!find_parts(container, out->parts)) {
        memset(out->parts, 0, sizeof out->parts);
        return TSR_OK;
    }
    const tsr_value *names = tsr_value_get(out->parts[ATTRIBUTES], TSR_STR("_non_persistent_buffers_set"));
    if (!names || names->kind != TSR_VALUE_SET || names->count == 0) return TSR_OK;
    out->hidden = tsr_map_new(host->allocator, names->count, err);
    tsr_status status = out->hidden ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < names->count && status == TSR_OK; i++)
        if (names->items[i]->kind == TSR_VALUE_STR)
            status = tsr_map_put(out->hidden, names->items[i]->text, 1, NULL, NULL, err);
    if (status != TSR_OK) torch_level_close(out);
    return status;
}

static void torch_level_close(tsr_torch_level *level)
{
    tsr_map_free(level->hidden);
    level->hidden = NULL;
}

/* ---- survey ---- */

/* Counts entries, names and paths over the shared graph. */

/* An entry's place in the catalog and in the maps of names; a container that is visited. */
enum { ENTRY_BYTES = sizeof(tsr_entry) + 48, VISIT_BYTES = 64 };

/* What a container stands for wherever it occurs. */
typedef struct counted {
    uint64_t bytes; /* without the steps that lead to it */
    uint64_t names; /* entries and mappings below it: each repeats those steps */
    bool walked;    /* otherwise a leaf */
    bool open;      /* the walk is inside of it */
} counted;

typedef struct survey_level {
    tsr_torch_level at;
    uint32_t number; /* of its counted */
    uint64_t step;   /* bytes of the step to the child that is being counted */
} survey_level;

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
    if (item->value && torch_key_text(item->value, text)) size = 2 * strlen(text);
    return sizeof *item + 2 * (size + 1);
}

static uint64_t leaf_bytes(const tsr_value *leaf)
{
    const tsr_value *size = torch_is_odd_tensor(leaf) ? tsr_value_get(leaf->items[0], TSR_STR("size")) : NULL;
    return ENTRY_BYTES + (size ? multiply(size->count, sizeof(uint64_t)) : 0);
}

/* What a visit of a container costs by itself: some mappings are kept, a module's attributes are searched. */
static counted start_count(const tsr_value *value)
{
    counted c = {.bytes = VISIT_BYTES, .names = torch_is_kept(value), .walked = true, .open = true};
    if (!torch_is_module(value)) return c;
    c.names = 1;
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
    survey_level *pushed = tsr_vec_push(levels, err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = (survey_level){.number = number};
    return torch_level_open(survey->host, value, &pushed->at, err);
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
    value = content_of(value);
    *out = (counted){.bytes = leaf_bytes(value), .names = 1}; /* or an empty mapping, which is kept */
    if (!is_container(value)) return TSR_OK;
    const uint32_t number = tsr_map_get(survey->known, tsr_torch_container_key(value), UINT32_MAX);
    if (number != UINT32_MAX) {
        *out = *counted_at(survey, number);
        TSR_FAIL_IF(out->open, err, TSR_E_LIMIT,
                    "torch: a container of the state dict contains itself, so its names would never end");
        return TSR_OK;
    }
    TSR_TRY(torch_walks_into(survey->host, survey->lists, value, &walked, err));
    if (!walked) return keep_leaf(survey, value, out, err);
    *out = (counted){0};
    return enter(survey, levels, value, err);
}

static void leave(tsr_torch_survey *survey, tsr_vec *levels, uint64_t *total)
{
    survey_level *top = (survey_level *)levels->items + --levels->count;
    counted *done = counted_at(survey, top->number);
    torch_level_close(&top->at);
    done->open = false;
    if (levels->count) {
        survey_level *above = top - 1;
        add_child(counted_at(survey, above->number), done->bytes, done->names, above->step);
    } else {
        *total = done->bytes;
    }
}

static tsr_status survey_count(tsr_torch_survey *survey, const tsr_value *root, tsr_vec *levels, tsr_error *err)
{
    counted child;
    TSR_TRY(visit(survey, levels, root, &child, err));
    survey->bytes = child.bytes;
    while (levels->count) {
        tsr_path_item item;
        survey_level *top = (survey_level *)levels->items + levels->count - 1;
        const tsr_value *value = torch_level_next(&top->at, &item);
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
    tsr_vec levels = tsr_vec_of(host->allocator, sizeof(survey_level));
    const tsr_status status = survey_count(survey, root, &levels, err);
    while (levels.count) torch_level_close(&((survey_level *)levels.items)[--levels.count].at);
    tsr_vec_free(&levels);
    return status;
}

void tsr_torch_survey_close(tsr_torch_survey *survey)
{
    tsr_map_free(survey->lists);
    tsr_map_free(survey->known);
    tsr_vec_free(&survey->counts);
}

/* Whether the walk goes into a value of the tree. */
static bool torch_survey_walks(const tsr_torch_survey *survey, const tsr_value *value)
{
    if (!is_container(value)) return value->kind == TSR_VALUE_DICT;
    const uint32_t number = tsr_map_get(survey->known, tsr_torch_container_key(value), UINT32_MAX);
    return number != UINT32_MAX && counted_at(survey, number)->walked;
}

/* ---- flatten ---- */

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
    torch_key_text(item->value, text);
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

/* The dict that stands for an object, with the object's class. */
static const tsr_value *dict_of(const flatten *f, const tsr_value *object, const tsr_value *content)
{
    tsr_value *dict = tsr_value_new(f->arena, TSR_VALUE_DICT, f->err);
    if (!dict) return NULL;
    dict->variant = TSR_VARIANT_STATE_DICT;
    dict->count = content->count; /* only whether it is empty counts */
    if (content == object) dict->text = object->text;
    else if (content->kind == TSR_VALUE_DICT) made_tensor_dict(object, &dict->text);
    else
        dict->text =
            tsr_arena_format(f->arena, f->err, "%.*s in %.*s", TSR_STR_ARG(content->text), TSR_STR_ARG(object->text));
    return dict->text.data ? dict : NULL;
}

/* A mapping that cannot be rebuilt from the entries below it alone. Mappings inside a module are parts of the module. `object` is what
 * `value` is the content of, or `value` itself. */
static tsr_status keep_mapping(flatten *f, const tsr_value *object, const tsr_value *value)
{
    place at;
    const tsr_torch_level *above = f->levels.count ? (const tsr_torch_level *)f->levels.items + f->levels.count - 1 : NULL;
    const bool is_object = object->kind == TSR_VALUE_OBJECT;
    if ((!is_object && !torch_is_kept(value)) || (above && above->parts[0])) return TSR_OK;
    if (is_object) value = dict_of(f, object, value);
    if (!value) return TSR_E_NOMEM;
    TSR_TRY(take_path(f, &at));
    tsr_mapping *added = tsr_vec_push(&f->mappings, f->err);
    if (!added) return TSR_E_NOMEM;
    *added = (tsr_mapping){at.fqn, at.path, at.path_length, f->entries.count, value};
    return TSR_OK;
}

static tsr_status flatten_visit(flatten *f, const tsr_value *value)
{
    const tsr_value *content = content_of(value);
    if (!torch_survey_walks(&f->survey, content)) return add_leaf(f, value);
    TSR_TRY(keep_mapping(f, value, content));
    tsr_torch_level *pushed = tsr_vec_push(&f->levels, f->err);
    return pushed ? torch_level_open(f->host, content, pushed, f->err) : TSR_E_NOMEM;
}

static tsr_status walk(flatten *f, const tsr_value *root)
{
    TSR_TRY(tsr_torch_survey_open(&f->survey, root, f->host, f->err));
    TSR_TRY(tsr_expansion_take(f->room, f->survey.bytes, f->host, f->err));
    TSR_TRY(flatten_visit(f, root));
    while (f->levels.count) {
        tsr_path_item item;
        const tsr_value *child = torch_level_next((tsr_torch_level *)f->levels.items + f->levels.count - 1, &item);
        if (!child) {
            torch_level_close((tsr_torch_level *)f->levels.items + --f->levels.count);
            if (f->path.count) f->path.count--;
            continue;
        }
        tsr_path_item *pushed = tsr_vec_push(&f->path, f->err);
        if (!pushed) return TSR_E_NOMEM;
        *pushed = item;
        TSR_TRY(spell_key(f));
        size_t levels = f->levels.count;
        TSR_TRY(flatten_visit(f, child));
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
    while (f.levels.count) torch_level_close((tsr_torch_level *)f.levels.items + --f.levels.count);
    tsr_torch_survey_close(&f.survey);
    tsr_map_free(f.names);
    tsr_map_free(f.inner);
    tsr_vec_free(&f.levels);
    tsr_vec_free(&f.path);
    tsr_vec_free(&f.entries);
    tsr_vec_free(&f.mappings);
    return status;
}
