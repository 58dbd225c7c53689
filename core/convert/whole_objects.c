/* Names objects like PyTorch 2.3. Since 2.4, every value in a dict is a separate item. Before, a dict or list without any
 * tensor below it was a single item: `args`, not `args.lr`. 2.3 looks for that item, and later versions accept it.
 *
 * Source: traverse_state_dict and traverse_state_dict_v_2_3 in torch/distributed/checkpoint/_traverse.py. */
#include "convert/dcp_rows.h"
#include "model/nest.h"
#include "tessera/sys/try.h"

#include "tessera/sys/map.h"

#define ALONE UINT32_MAX

typedef struct joining {
    tsr_dcp_rows *rows;
    tsr_map *above_tensors; /* paths of dicts and lists with a tensor somewhere below them */
    tsr_map *first_of;      /* path of a whole object → the first source that is in it */
    uint32_t *next;         /* by source: the next source in the same object, or ALONE */
    uint32_t *last;         /* by first source: the last source so far; ALONE if the source is in another one's object */
    uint32_t *depth;        /* by source: how many items of its path lead to the object */
    uint64_t *row_of;       /* by source */
} joining;

static bool is_tensor(const tsr_dcp_output_entry *source)
{
    return source->entry->kind == TSR_ENTRY_TENSOR;
}

/* The first `count` items of a path as a text that no other path has. */
static tsr_str path_key(const joining *j, const tsr_dcp_output_entry *source, uint32_t count, tsr_error *err)
{
    tsr_arena *arena = j->rows->job->arena;
    tsr_str key = TSR_STR("/");
    for (uint32_t i = 0; i < count && key.data; i++) {
        const tsr_path_item *item = &source->path[i];
        key = item->kind == TSR_PATH_KEY
                  ? tsr_arena_format(arena, err, "%.*s%llu:%.*s", TSR_STR_ARG(key), (unsigned long long)item->key.size,
                                     TSR_STR_ARG(item->key))
                  : tsr_arena_format(arena, err, "%.*s%c%lld", TSR_STR_ARG(key), item->kind == TSR_PATH_INDEX ? '[' : '{',
                                     (long long)item->integer);
    }
    return key;
}

static tsr_status note_tensors(joining *j, tsr_error *err)
{
    for (size_t s = 0; s < j->rows->source_count; s++) {
        const tsr_dcp_output_entry *source = &j->rows->sources[s];
        for (uint32_t depth = 1; is_tensor(source) && depth < source->path_length; depth++) {
            const tsr_str key = path_key(j, source, depth, err);
            if (!key.data) return TSR_E_NOMEM;
            TSR_TRY(tsr_map_put(j->above_tensors, key, 1, NULL, NULL, err));
        }
    }
    return TSR_OK;
}

/* Links the source to the other sources in the same whole object, if there is one. */
static tsr_status link_source(joining *j, uint32_t s, tsr_error *err)
{
    const tsr_dcp_output_entry *source = &j->rows->sources[s];
    tsr_str key = TSR_STR("");
    uint32_t depth, *first;
    bool inserted;
    j->next[s] = ALONE;
    j->last[s] = s;
    j->depth[s] = source->path_length;
    if (is_tensor(source)) return TSR_OK;
    for (depth = 1; depth < source->path_length; depth++) {
        key = path_key(j, source, depth, err);
        if (!key.data) return TSR_E_NOMEM;
        if (!tsr_map_get(j->above_tensors, key, 0)) break;
    }
    if (depth >= source->path_length) return TSR_OK;
    TSR_TRY(tsr_map_put(j->first_of, key, s, &first, &inserted, err));
    j->depth[s] = depth;
    if (inserted) return TSR_OK;
    j->next[j->last[*first]] = s;
    j->last[*first] = s;
    j->last[s] = ALONE;
    return TSR_OK;
}

/* PyTorch's name for what is at a path: its items, joined with dots. */
static tsr_str name_of(const joining *j, const tsr_dcp_output_entry *source, uint32_t depth, tsr_error *err)
{
    tsr_arena *arena = j->rows->job->arena;
    tsr_str name = TSR_STR("");
    for (uint32_t i = 0; i < depth && name.data; i++) {
        const tsr_path_item *item = &source->path[i];
        const char *dot = i ? "." : "";
        name = item->kind == TSR_PATH_KEY
                   ? tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(name), dot, TSR_STR_ARG(item->key))
                   : tsr_arena_format(arena, err, "%.*s%s%lld", TSR_STR_ARG(name), dot, (long long)item->integer);
    }
    return name;
}

/* Turns the first source of an object into the whole object. */
static tsr_status join(const joining *j, uint32_t first, tsr_error *err)
{
    tsr_arena *arena = j->rows->job->arena;
    tsr_dcp_output_entry *source = &j->rows->sources[first];
    const uint32_t depth = j->depth[first];
    size_t count = 0;
    if (depth == source->path_length) return TSR_OK;
    for (uint32_t s = first; s != ALONE; s = j->next[s]) count++;
    tsr_leaf *leaves = tsr_arena_array(arena, count, sizeof *leaves, err);
    tsr_entry *whole = TSR_ARENA_NEW(arena, tsr_entry, err);
    if (!leaves || !whole) return TSR_E_NOMEM;
    count = 0;
    for (uint32_t s = first; s != ALONE; s = j->next[s]) {
        const tsr_dcp_output_entry *part = &j->rows->sources[s];
        leaves[count++] = (tsr_leaf){.path = part->path + depth,
                                     .path_length = part->path_length - depth,
                                     .value = part->entry->value,
                                     .name = part->name};
    }
    *whole = *source->entry;
    source->name = name_of(j, source, depth, err);
    if (!source->name.data) return TSR_E_NOMEM;
    whole->fqn = source->name;
    TSR_TRY(tsr_nest(leaves, count, tsr_checkpoint_host(j->rows->job->checkpoint), arena, &whole->value, err));
    source->entry = whole;
    source->path_length = depth;
    return TSR_OK;
}

/* Removes the sources that became part of another one's object. */
static void close_gaps(joining *j)
{
    tsr_dcp_rows *rows = j->rows;
    size_t kept = 0, s = 0;
    for (uint64_t r = 0; r <= rows->chosen.count; r++) {
        const size_t end = rows->first_source[r];
        for (; s < end; s++) {
            if (j->last[s] != ALONE) rows->sources[kept++] = rows->sources[s];
        }
        rows->first_source[r] = kept;
    }
    rows->source_count = kept;
}

/* Names the rows of an object's parts after the object, for the report of what was written. */
static void name_rows(const joining *j)
{
    const tsr_dcp_output_entry *sources = j->rows->sources;
    tsr_converted *rows = j->rows->chosen.rows;
    for (uint32_t s = 0; s < j->rows->source_count; s++) {
        for (uint32_t part = s; j->last[s] != ALONE && part != ALONE; part = j->next[part])
            rows[j->row_of[part]].name = sources[s].name;
    }
}

tsr_status tsr_join_objects(tsr_dcp_rows *rows, tsr_error *err)
{
    tsr_arena *arena = rows->job->arena;
    const tsr_allocator *allocator = tsr_checkpoint_host(rows->job->checkpoint)->allocator;
    joining j = {.rows = rows};
    j.next = tsr_arena_array(arena, rows->source_count, sizeof *j.next, err);
    j.last = tsr_arena_array(arena, rows->source_count, sizeof *j.last, err);
    j.depth = tsr_arena_array(arena, rows->source_count, sizeof *j.depth, err);
    j.row_of = tsr_arena_array(arena, rows->source_count, sizeof *j.row_of, err);
    if (!j.next || !j.last || !j.depth || !j.row_of) return TSR_E_NOMEM;
    for (uint64_t r = 0; r < rows->chosen.count; r++)
        for (size_t s = rows->first_source[r]; s < rows->first_source[r + 1]; s++) j.row_of[s] = r;
    j.above_tensors = tsr_map_new(allocator, 0, err);
    j.first_of = j.above_tensors ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = j.first_of ? note_tensors(&j, err) : TSR_E_NOMEM;
    for (size_t s = 0; s < rows->source_count && status == TSR_OK; s++) status = link_source(&j, (uint32_t)s, err);
    for (size_t s = 0; s < rows->source_count && status == TSR_OK; s++)
        if (j.last[s] != ALONE) status = join(&j, (uint32_t)s, err);
    tsr_map_free(j.above_tensors);
    tsr_map_free(j.first_of);
    if (status != TSR_OK) return status;
    name_rows(&j);
    close_gaps(&j);
    return TSR_OK;
}
