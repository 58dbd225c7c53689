/* See live_model.h. */
#include "live_model.h"
#include "tessera/sys/catalog.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static tsr_status get_extra(void *ctx, tsr_str raw, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(arena, 2, sizeof *items, err);
    (void)ctx;
    if (!tsr_str_ends(raw, TSR_STR("extra._extra_state"))) return tsr_raise(err, TSR_E_USAGE, 0, "not its name");
    if (!items) return TSR_E_NOMEM;
    items[0] = tsr_value_str(arena, TSR_STR("steps"), err);
    items[1] = tsr_value_int(arena, 3, err);
    *out = items[0] && items[1] ? tsr_value_items(arena, TSR_VALUE_DICT, items, 2, err) : NULL;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status set_extra(void *ctx, tsr_str raw, const tsr_value *value, tsr_error *err)
{
    live_model *m = ctx;
    (void)raw;
    const tsr_value **items = tsr_arena_array(m->arena, 2, sizeof *items, err);
    items[0] = tsr_value_str(m->arena, TSR_STR("steps"), err);
    items[1] = tsr_value_int(m->arena, value->items[1]->as.integer, err);
    m->extra = tsr_value_items(m->arena, TSR_VALUE_DICT, items, 2, err);
    return TSR_OK;
}

static tsr_status take_tensors(live_model *m, uint32_t rank, tsr_error *err)
{
    TSR_TRY(tsr_fqn_iterate(m->modules, &m->host, m->arena, &m->items, &m->item_count, err));
    tsr_model_tensor *bound = tsr_arena_array(m->arena, m->item_count, sizeof *bound, err);
    m->tensors = tsr_arena_array(m->arena, m->item_count, sizeof *m->tensors, err);
    for (size_t i = 0; i < m->item_count; i++) {
        if (m->items[i].kind == TSR_STATE_EXTRA) continue;
        size_t first = 0; /* a tensor with several names has one memory */
        while (m->items[first].kind == TSR_STATE_EXTRA || m->items[first].tensor_id != m->items[i].tensor_id) first++;
        if (first != i) continue;
        char raw[128];
        snprintf(raw, sizeof raw, "%.*s", TSR_STR_ARG(m->items[i].raw));
        const tsr_value *value = live_value(m->home, live_get(live_get(m->rank, "tensors"), raw), rank, NULL);
        m->tensors[i] = *tsr_tensor_of(value);
        bound[m->model.tensor_count++] = (tsr_model_tensor){m->items[i].tensor, &m->tensors[i], NULL};
    }
    m->model.tensors = bound;
    return TSR_OK;
}

tsr_status live_model_open(live_model *m, const cJSON *test, uint32_t rank, tsr_error *err)
{
    tsr_modules_document document;
    *m = (live_model){.host = live_host(NULL), .rank = cJSON_GetArrayItem(live_get(test, "ranks"), (int)rank)};
    const cJSON *own = cJSON_GetObjectItem(m->rank, "modules"); /* for ranks with other names */
    char *text = cJSON_PrintUnformatted(own ? own : live_get(test, "modules"));
    m->arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    tsr_status status = tsr_modules_parse(tsr_str_from(text), &m->host, m->arena, &document, err);
    cJSON_free(text);
    TSR_TRY(status);
    TSR_TRY(tsr_modules_new(document.root, &m->host, &m->modules, err));
    TSR_TRY(tsr_state_dict_new(&m->host, &m->home, err));
    TSR_TRY(tsr_state_dict_new(&m->host, &m->out, err));
    m->model =
        (tsr_model){.modules = m->modules, .get_extra = get_extra, .set_extra = set_extra, .ctx = m, .memory = m->home};
    return take_tensors(m, rank, err);
}

void live_model_close(live_model *m)
{
    tsr_state_dict_free(m->out);
    tsr_state_dict_free(m->home);
    tsr_modules_free(m->modules);
    tsr_arena_free(m->arena);
}

void live_records(const cJSON *golden, const char *what, ranks_body *body)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) {
        const cJSON *ranks = live_get(test, "ranks"), *rank = cJSON_GetArrayItem(ranks, 0);
        for (int i = 0; i < cJSON_GetArraySize(live_get(rank, what)); i++, count++) {
            live_record record = {test, i};
            live_run((uint32_t)cJSON_GetArraySize(ranks), body, &record);
        }
    }
    assert_true(count > 0);
}

const cJSON *live_record_of(const live_record *record, const char *what, uint32_t rank)
{
    const cJSON *of_rank = cJSON_GetArrayItem(live_get(record->test, "ranks"), (int)rank);
    return cJSON_GetArrayItem(live_get(of_rank, what), record->number);
}

tsr_status live_record_told(tsr_status status, const live_record *record, const cJSON *of_rank, tsr_error *err)
{
    if (status == TSR_OK) return status;
    char *text = cJSON_PrintUnformatted(live_get(of_rank, "options"));
    const cJSON *of = cJSON_GetObjectItem(of_rank, "of");
    tsr_error_context(err, "'%s' %s %d %s", live_get(record->test, "of")->valuestring, of ? of->valuestring : "get",
                      record->number, text);
    cJSON_free(text);
    return status;
}
