/* Growing dictionaries for the files of a universal checkpoint, and functions for rows and names that both of its makers
 * need. */
#include "convert/universal_making.h"

#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

const tsr_value *tsr_dict_get(const tsr_value *dict, const char *key)
{
    return dict && dict->kind == TSR_VALUE_DICT ? tsr_value_get(dict, tsr_str_from(key)) : NULL;
}

tsr_growing_dict tsr_dict_grow(const tsr_universal_making *m)
{
    return (tsr_growing_dict){tsr_vec_of(tsr_checkpoint_host(m->chosen->checkpoint)->allocator, sizeof(const tsr_value *)),
                              m->arena, TSR_OK, m->err};
}

void tsr_dict_push(tsr_growing_dict *g, const tsr_value *value)
{
    const tsr_value **added = g->status == TSR_OK && value ? tsr_vec_push(&g->items, g->err) : NULL;
    if (added) *added = value;
    else g->status = TSR_E_NOMEM;
}

void tsr_dict_put(tsr_growing_dict *g, tsr_str key, const tsr_value *value)
{
    tsr_dict_push(g, tsr_value_str(g->arena, key, g->err));
    tsr_dict_push(g, value);
}

static bool is_one_of(tsr_str key, const char *const *list)
{
    for (size_t i = 0; list && list[i]; i++)
        if (tsr_str_equal(key, tsr_str_from(list[i]))) return true;
    return false;
}

void tsr_dict_put_all(tsr_growing_dict *g, const tsr_value *dict, const char *const *without)
{
    for (size_t i = 0; dict && dict->kind == TSR_VALUE_DICT && i + 1 < dict->count; i += 2) {
        const tsr_value *key = dict->items[i];
        if (key->kind == TSR_VALUE_STR && is_one_of(key->text, without)) continue;
        tsr_dict_push(g, key);
        tsr_dict_push(g, dict->items[i + 1]);
    }
}

tsr_status tsr_dict_take(tsr_growing_dict *g, tsr_value_kind kind, const tsr_value **out)
{
    const size_t count = g->items.count;
    const tsr_value **items = g->status == TSR_OK ? tsr_arena_array(g->arena, count, sizeof *items, g->err) : NULL;
    if (items && count) memcpy(items, g->items.items, count * sizeof *items);
    tsr_vec_free(&g->items);
    *out = items ? tsr_value_items(g->arena, kind, items, count, g->err) : NULL;
    TSR_FAIL_IF(!*out, g->err, TSR_E_NOMEM, "out of memory for a universal checkpoint");
    return TSR_OK;
}

tsr_status tsr_universal_add(tsr_universal_making *m, const tsr_value *root, const char *format, tsr_str a, tsr_str b)
{
    tsr_universal_file *file = tsr_vec_push(&m->files, m->err);
    if (!file) return TSR_E_NOMEM;
    *file = (tsr_universal_file){
        tsr_arena_format(m->arena, m->err, format, TSR_STR_ARG(m->tag), TSR_STR_ARG(a), TSR_STR_ARG(b)), root};
    return file->name.data ? TSR_OK : TSR_E_NOMEM;
}

bool tsr_universal_weight(const tsr_converted *row, tsr_str *name)
{
    const tsr_str prefix = TSR_STR(TSR_MODEL_PREFIX);
    *name = row->name;
    if (!row->written || row->entry->kind != TSR_ENTRY_TENSOR || !tsr_str_starts(row->name, prefix)) return false;
    *name = (tsr_str){row->name.data + prefix.size, row->name.size - prefix.size};
    return name->size > 0;
}

tsr_status tsr_universal_note(tsr_universal_making *m, tsr_str name)
{
    return tsr_map_put(m->trained, name, 1, NULL, NULL, m->err);
}

const tsr_value *tsr_universal_version(const tsr_universal_making *m)
{
    const tsr_value *stated = tsr_dict_get(m->engine, "ds_version");
    if (!stated) stated = tsr_dict_get(m->optim, "ds_version");
    return stated ? stated : tsr_value_str(m->arena, TSR_STR("0.19.8"), m->err);
}
