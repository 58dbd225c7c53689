/* See golden.h. */
#include "golden.h"

#include "tessera/sys/catalog.h"
#include "tessera/sys/host_calls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static char *read_whole(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = calloc(1, (size_t)size + 1);
    if (fread(text, 1, (size_t)size, f) != (size_t)size) abort();
    fclose(f);
    return text;
}

golden golden_open(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", TSR_TEST_DATA, name);
    char *text = read_whole(path);
    golden g = {.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()},
                .document = text ? cJSON_Parse(text) : NULL};
    free(text);
    if (!g.document) abort();
    g.arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    g.tensors = tsr_vec_of(&tsr_allocator_libc, sizeof(const cJSON *));
    g.parsed = tsr_vec_of(&tsr_allocator_libc, sizeof(cJSON *));
    return g;
}

const cJSON *golden_parse(golden *g, const char *text)
{
    cJSON *json = cJSON_Parse(text);
    if (!json) abort();
    *(cJSON **)tsr_vec_push(&g->parsed, NULL) = json;
    return json;
}

void golden_close(golden *g)
{
    for (size_t i = 0; i < g->parsed.count; i++) cJSON_Delete(((cJSON **)g->parsed.items)[i]);
    tsr_vec_free(&g->parsed);
    tsr_vec_free(&g->tensors);
    tsr_arena_free(g->arena);
    cJSON_Delete(g->document);
}

const cJSON *golden_get(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item) {
        fprintf(stderr, "no '%s' in the golden file\n", key);
        abort();
    }
    return item;
}

static size_t count_of(const cJSON *list)
{
    return (size_t)cJSON_GetArraySize(list);
}

static const tsr_value *tensor_of(golden *g, const cJSON *json)
{
    const cJSON *dtype = json->child, *shape = dtype->next, *numbers = shape->next;
    tsr_entry *entry = TSR_ARENA_NEW(g->arena, tsr_entry, NULL);
    tsr_chunk *chunk = TSR_ARENA_NEW(g->arena, tsr_chunk, NULL);
    uint64_t *sizes = tsr_arena_array(g->arena, count_of(shape), sizeof *sizes, NULL);
    uint64_t *zeros = tsr_arena_array(g->arena, count_of(shape), sizeof *zeros, NULL);
    uint32_t ndim = 0;
    for (const cJSON *s = shape->child; s; s = s->next) sizes[ndim++] = (uint64_t)s->valuedouble;
    *chunk = (tsr_chunk){.offsets = zeros, .sizes = sizes, .file = (uint32_t)g->tensors.count};
    *entry = (tsr_entry){.kind = TSR_ENTRY_TENSOR,
                         .dtype = tsr_dtype_from_name(tsr_str_from(dtype->valuestring)),
                         .ndim = ndim,
                         .shape = sizes,
                         .chunks = chunk,
                         .chunk_count = 1};
    *(const cJSON **)tsr_vec_push(&g->tensors, NULL) = numbers;
    tsr_value *value = tsr_value_new(g->arena, TSR_VALUE_TENSOR, NULL);
    value->as.tensor = entry;
    return value;
}

static const tsr_value *container_of(golden *g, const cJSON *json, tsr_value_kind kind)
{
    size_t count = count_of(json), at = 0;
    const tsr_value **items = tsr_arena_array(g->arena, 2 * count, sizeof *items, NULL);
    for (const cJSON *i = json->child; i; i = i->next) {
        if (kind == TSR_VALUE_DICT) items[at++] = golden_value(g, i->child);
        items[at++] = golden_value(g, kind == TSR_VALUE_DICT ? i->child->next : i);
    }
    return tsr_value_items(g->arena, kind, items, at, NULL);
}

const tsr_value *golden_value(golden *g, const cJSON *json)
{
    const cJSON *content = json->child;
    tsr_value *value = tsr_value_new(g->arena, TSR_VALUE_NONE, NULL);
    switch (content->string[0]) {
    case 'T': return tensor_of(g, content);
    case 'D': return container_of(g, content, TSR_VALUE_DICT);
    case 'L': return container_of(g, content, TSR_VALUE_LIST);
    case 'U': return container_of(g, content, TSR_VALUE_TUPLE);
    case 'i': return tsr_value_int(g->arena, (int64_t)content->valuedouble, NULL);
    case 's': return tsr_value_str(g->arena, tsr_str_from(content->valuestring), NULL);
    case 'f':
        value->kind = TSR_VALUE_FLOAT;
        value->as.real = content->valuedouble;
        break;
    case 'b':
        value->kind = TSR_VALUE_BOOL;
        value->as.boolean = cJSON_IsTrue(content);
        break;
    default: break;
    }
    return value;
}

/* ---- comparing ---- */

static double number_at(const golden *g, uint32_t file, uint64_t element)
{
    if (file == GOLDEN_ZEROS) return 0;
    const cJSON *list = file < g->tensors.count ? ((const cJSON **)g->tensors.items)[file] : NULL;
    const cJSON *item = list ? cJSON_GetArrayItem(list, (int)element) : NULL;
    return item ? item->valuedouble : NAN;
}

/* Stores the elements of a chunk; `filled` counts how often each element was set. */
static void scatter(const golden *g, const tsr_entry *e, const tsr_chunk *c, double *numbers, unsigned *filled)
{
    uint64_t count = 1, itemsize = tsr_dtype_size(e->dtype);
    for (uint32_t d = 0; d < e->ndim; d++) count *= c->sizes[d];
    for (uint64_t i = 0; i < count; i++) {
        uint64_t rest = i, to = 0, row = 1, from = 0, own = 1;
        for (uint32_t d = e->ndim; d-- > 0; rest /= c->sizes[d]) {
            uint64_t index = rest % c->sizes[d];
            to += (c->offsets[d] + index) * row;
            row *= e->shape[d];
            from += index * (c->view && c->view->strides ? c->view->strides[d] : own);
            own *= c->sizes[d];
        }
        uint64_t byte = c->view ? c->view->byte_offset : c->byte_offset;
        numbers[to] = number_at(g, c->view ? c->view->file : c->file, byte / itemsize + from);
        filled[to]++;
    }
}

static bool same_tensor(const golden *g, const tsr_entry *e, const cJSON *json)
{
    const cJSON *dtype = json->child, *shape = dtype->next, *numbers = shape->next;
    uint64_t elements;
    if (strcmp(tsr_dtype_describe(e->dtype)->name, dtype->valuestring) != 0 || count_of(shape) != e->ndim) return false;
    uint32_t d = 0;
    for (const cJSON *s = shape->child; s; s = s->next, d++)
        if ((uint64_t)s->valuedouble != e->shape[d]) return false;
    if (!tsr_entry_elements(e, &elements) || count_of(numbers) != elements) return false;
    double *got = calloc(elements + 1, sizeof *got);
    unsigned *filled = calloc(elements + 1, sizeof *filled);
    for (uint64_t i = 0; i < e->chunk_count; i++) scatter(g, e, &e->chunks[i], got, filled);
    bool same = true;
    uint64_t at = 0;
    for (const cJSON *n = numbers->child; n; n = n->next, at++) same = same && filled[at] == 1 && got[at] == n->valuedouble;
    free(filled);
    free(got);
    return same;
}

/* Whether the text is the list's items, joined with commas as in the distribution of an entry. */
static bool same_texts(tsr_str text, const cJSON *list)
{
    char joined[128] = "";
    for (const cJSON *i = list->child; i; i = i->next) {
        char one[64];
        snprintf(one, sizeof one, "%.0f", i->valuedouble);
        strcat(joined, cJSON_IsString(i) ? i->valuestring : one);
        if (i->next) strcat(joined, ",");
    }
    return tsr_str_equal(text, tsr_str_from(joined));
}

/* Whether an entry is one rank's shard of a tensor: it must have the right form, and its chunks must be the local rows. */
static bool same_shard(const golden *g, const tsr_entry *e, const cJSON *json)
{
    const cJSON *local = golden_get(json, "local"), *offsets = golden_get(json, "offsets");
    bool dtensor = strcmp(golden_get(json, "form")->valuestring, "DTensor") == 0;
    uint32_t d = 0;
    if (dtensor != (e->distribution != NULL)) return false;
    if (dtensor && (!same_texts(e->distribution->mesh, golden_get(json, "mesh")) ||
                    !same_texts(e->distribution->placements, golden_get(json, "placements"))))
        return false;
    for (const cJSON *s = golden_get(json, "shape")->child; s; s = s->next, d++)
        if (d >= e->ndim || e->shape[d] != (uint64_t)s->valuedouble) return false;
    if (cJSON_IsNull(local)) return d == e->ndim && e->chunk_count == 1 && e->chunks[0].sizes[0] == 0;
    uint64_t shape[8] = {0}, begin = offsets->child ? (uint64_t)offsets->child->valuedouble : 0;
    tsr_chunk *chunks = calloc((size_t)e->chunk_count, sizeof *chunks);
    uint64_t *moved = calloc((size_t)e->chunk_count * e->ndim, sizeof *moved);
    d = 0;
    for (const cJSON *s = local->child->child->next->child; s; s = s->next) shape[d++] = (uint64_t)s->valuedouble;
    for (uint64_t i = 0; i < e->chunk_count; i++) {
        chunks[i] = e->chunks[i];
        memcpy(moved + i * e->ndim, e->chunks[i].offsets, e->ndim * sizeof *moved);
        moved[i * e->ndim] -= shape[0] ? begin : moved[i * e->ndim];
        chunks[i].offsets = moved + i * e->ndim;
    }
    tsr_entry part = *e;
    part.shape = shape;
    part.chunks = chunks;
    bool same = same_tensor(g, &part, local->child);
    free(moved);
    free(chunks);
    return same;
}

static bool same_key(const tsr_value *key, const cJSON *json)
{
    if (key->kind == TSR_VALUE_STR)
        return json->child->string[0] == 's' && tsr_str_equal(key->text, tsr_str_from(json->child->valuestring));
    return key->kind == TSR_VALUE_INT && json->child->string[0] == 'i' &&
           json->child->valuedouble == (double)key->as.integer;
}

static bool same_dict(const golden *g, const tsr_value *value, const cJSON *pairs, bool ordered)
{
    if (value->kind != TSR_VALUE_DICT || tsr_value_pairs(value) != count_of(pairs)) {
        fprintf(stderr, "a dict of %zu pairs, expected %zu\n", tsr_value_pairs(value), count_of(pairs));
        return false;
    }
    size_t at = 0;
    for (const cJSON *p = pairs->child; p; p = p->next, at += 2) {
        size_t found = at;
        for (size_t i = 0; !ordered && !same_key(value->items[found], p->child) && i < value->count; i += 2) found = i;
        if (!same_key(value->items[found], p->child)) {
            char *text = cJSON_PrintUnformatted(p->child);
            fprintf(stderr, "key %zu: expected %s, found %.*s\n", at / 2, text, TSR_STR_ARG(value->items[found]->text));
            cJSON_free(text);
            return false;
        }
        if (!golden_same(g, value->items[found + 1], p->child->next, ordered)) {
            char *text = cJSON_PrintUnformatted(p->child);
            fprintf(stderr, "  under %s\n", text);
            cJSON_free(text);
            return false;
        }
    }
    return true;
}

static bool same_list(const golden *g, const tsr_value *value, const cJSON *list, bool ordered)
{
    if (value->count != count_of(list)) return false;
    size_t at = 0;
    for (const cJSON *i = list->child; i; i = i->next, at++)
        if (!golden_same(g, value->items[at], i, ordered)) return false;
    return true;
}

bool golden_same(const golden *g, const tsr_value *value, const cJSON *json, bool ordered)
{
    const cJSON *content = json->child;
    bool same = false;
    switch (content->string[0]) {
    case 'T': same = value->kind == TSR_VALUE_TENSOR && same_tensor(g, value->as.tensor, content); break;
    case 'S': same = value->kind == TSR_VALUE_TENSOR && same_shard(g, value->as.tensor, content); break;
    case 'D': return same_dict(g, value, content, ordered);
    case 'L': same = value->kind == TSR_VALUE_LIST && same_list(g, value, content, ordered); break;
    case 'U': same = value->kind == TSR_VALUE_TUPLE && same_list(g, value, content, ordered); break;
    case 'i': same = value->kind == TSR_VALUE_INT && (double)value->as.integer == content->valuedouble; break;
    case 'f': same = value->kind == TSR_VALUE_FLOAT && value->as.real == content->valuedouble; break;
    case 'b': same = value->kind == TSR_VALUE_BOOL && value->as.boolean == cJSON_IsTrue(content); break;
    case 's': same = value->kind == TSR_VALUE_STR && tsr_str_equal(value->text, tsr_str_from(content->valuestring)); break;
    default: same = value->kind == TSR_VALUE_NONE; break;
    }
    if (!same) {
        char *text = cJSON_PrintUnformatted(json);
        fprintf(stderr, "expected %.300s\n", text);
        cJSON_free(text);
    }
    return same;
}
