/* See live.h. */
#include "live.h"

#include "tessera/checkpoint.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

cJSON *live_golden(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", TSR_TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    if (!f) abort();
    fseek(f, 0, SEEK_END);
    const size_t size = (size_t)ftell(f);
    rewind(f);
    char *text = calloc(1, size + 1);
    if (fread(text, 1, size, f) != size) abort();
    fclose(f);
    cJSON *json = cJSON_Parse(text);
    free(text);
    if (!json) abort();
    return json;
}

const cJSON *live_get(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item) {
        fprintf(stderr, "no '%s' in the golden file\n", key);
        abort();
    }
    return item;
}

bool live_is(const cJSON *record, const char *key, const char *text)
{
    return strcmp(live_get(record, key)->valuestring, text) == 0;
}

tsr_host live_host(const tsr_allocator *allocator)
{
    return (tsr_host){.allocator = allocator ? allocator : &tsr_allocator_libc, .limits = tsr_limits_default()};
}

/* ---- numbers ---- */

static uint16_t half_of(double number)
{
    if (number == 0) return 0;
    int exponent;
    const double fraction = frexp(fabs(number), &exponent); /* [0.5, 1): 1.m × 2^(exponent - 1) */
    if (exponent - 1 < -14) return (uint16_t)((number < 0 ? 0x8000 : 0) | (unsigned)ldexp(fabs(number), 24)); /* subnormal */
    return (uint16_t)((number < 0 ? 0x8000 : 0) | (exponent - 1 + 15) << 10 | ((unsigned)(fraction * 2048) & 0x3ff));
}

static double number_of_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    const double value = exponent ? ldexp(1024 + (bits & 0x3ff), exponent - 25) : ldexp(bits & 0x3ff, -24);
    return bits & 0x8000 ? -value : value;
}

static void put_number(tsr_dtype dtype, double number, uint8_t *to)
{
    const float real = (float)number;
    const int64_t integer = (int64_t)number;
    uint32_t bits;
    memcpy(&bits, &real, sizeof bits);
    const uint16_t high = (uint16_t)(bits >> 16), half = half_of(number);
    switch (dtype) {
    case TSR_FLOAT64: memcpy(to, &number, 8); break;
    case TSR_FLOAT32: memcpy(to, &real, 4); break;
    case TSR_BFLOAT16: memcpy(to, &high, 2); break;
    case TSR_FLOAT16: memcpy(to, &half, 2); break;
    case TSR_BOOL: *to = number != 0; break;
    default: memcpy(to, &integer, tsr_dtype_size(dtype)); break; /* little-endian */
    }
}

static double get_number(tsr_dtype dtype, const uint8_t *from)
{
    double number;
    float real;
    int64_t integer = 0;
    uint16_t half;
    uint32_t bits;
    switch (dtype) {
    case TSR_FLOAT64: memcpy(&number, from, 8); return number;
    case TSR_FLOAT32: memcpy(&real, from, 4); return real;
    case TSR_FLOAT16: memcpy(&half, from, 2); return number_of_half(half);
    case TSR_BFLOAT16:
        memcpy(&half, from, 2);
        bits = (uint32_t)half << 16;
        memcpy(&real, &bits, 4);
        return real;
    default: memcpy(&integer, from, tsr_dtype_size(dtype)); return (double)integer;
    }
}

/* ---- values ---- */

static uint64_t *list_of(tsr_arena *arena, const cJSON *json, uint32_t *count)
{
    uint64_t *list = tsr_arena_array(arena, (size_t)cJSON_GetArraySize(json), sizeof *list, NULL);
    *count = 0;
    for (const cJSON *i = json->child; i; i = i->next) list[(*count)++] = (uint64_t)i->valuedouble;
    return list;
}

static void fill(const tsr_tensor *tensor, void *data, const cJSON *numbers)
{
    const uint32_t size = tsr_dtype_size(tensor->entry.dtype);
    const size_t bytes = (size_t)cJSON_GetArraySize(numbers) * size;
    uint8_t *host = malloc(bytes + 1), *at = host;
    for (const cJSON *n = numbers->child; n; n = n->next, at += size) put_number(tensor->entry.dtype, n->valuedouble, at);
    if (bytes && tensor->device) tensor->device->from_host(tensor->device, data, host, bytes, NULL);
    else if (bytes) memcpy(data, host, bytes);
    free(host);
}

static const tsr_value *over_mesh(tsr_state_dict *dict, const cJSON *json, tsr_tensor tensor, uint32_t rank)
{
    const cJSON *mesh_text = json->child->next->next, *placements_text = mesh_text->next, *numbers = placements_text->next;
    tsr_mesh *mesh = TSR_ARENA_NEW(tsr_state_dict_arena(dict), tsr_mesh, NULL);
    tsr_placement *placements;
    uint32_t count;
    const tsr_value *value = NULL;
    if (tsr_mesh_parse(tsr_str_from(mesh_text->valuestring), tsr_state_dict_arena(dict), mesh, NULL) != TSR_OK) abort();
    if (tsr_placements_parse(tsr_str_from(placements_text->valuestring), tsr_state_dict_arena(dict), &placements, &count,
                             NULL) != TSR_OK)
        abort();
    tensor.spread = TSR_OVER_MESH;
    tensor.mesh = mesh;
    tensor.placements = placements;
    tensor.mesh_rank = rank;
    tensor.meta = cJSON_IsNull(numbers);
    if (tensor.meta) return tsr_state_dict_tensor(dict, &tensor, &value, NULL) == TSR_OK ? value : NULL;
    if (tsr_state_dict_allocate(dict, &tensor, &value, NULL) != TSR_OK) abort();
    fill(&tensor, tsr_tensor_of(value)->data, numbers);
    return value;
}

static const tsr_value *in_boxes(tsr_state_dict *dict, const cJSON *json, tsr_tensor tensor)
{
    const cJSON *list = json->child->next->next;
    tsr_tensor_part *parts =
        tsr_arena_array(tsr_state_dict_arena(dict), (size_t)cJSON_GetArraySize(list), sizeof *parts, NULL);
    const tsr_value *value;
    uint32_t ndim;
    tensor.spread = TSR_IN_BOXES;
    tensor.parts = parts;
    for (const cJSON *p = list->child; p; p = p->next) {
        parts[tensor.part_count++] = (tsr_tensor_part){list_of(tsr_state_dict_arena(dict), p->child, &ndim),
                                                       list_of(tsr_state_dict_arena(dict), p->child->next, &ndim), NULL};
    }
    if (tsr_state_dict_allocate(dict, &tensor, &value, NULL) != TSR_OK) abort();
    uint32_t i = 0;
    for (const cJSON *p = list->child; p; p = p->next)
        fill(&tensor, tsr_tensor_of(value)->parts[i++].data, p->child->next->next);
    return value;
}

static const tsr_value *tensor_value(tsr_state_dict *dict, const cJSON *json, uint32_t rank, tsr_device *device)
{
    const cJSON *dtype = json->child, *shape = dtype->next;
    const tsr_value *value;
    uint32_t dims;
    const uint64_t *sizes = list_of(tsr_state_dict_arena(dict), shape, &dims);
    tsr_tensor tensor = tsr_tensor_whole(tsr_dtype_from_name(tsr_str_from(dtype->valuestring)), dims, sizes, NULL);
    tensor.device = device;
    if (json->string[0] == 'M') return over_mesh(dict, json, tensor, rank);
    if (json->string[0] == 'S') return in_boxes(dict, json, tensor);
    if (tsr_state_dict_allocate(dict, &tensor, &value, NULL) != TSR_OK) abort();
    fill(&tensor, tsr_tensor_of(value)->data, shape->next);
    return value;
}

static const tsr_value *items_value(tsr_state_dict *dict, const cJSON *json, tsr_value_kind kind, uint32_t rank,
                                    tsr_device *device)
{
    size_t at = 0;
    const tsr_value **items =
        tsr_arena_array(tsr_state_dict_arena(dict), 2 * (size_t)cJSON_GetArraySize(json), sizeof *items, NULL);
    for (const cJSON *i = json->child; i; i = i->next) {
        if (kind == TSR_VALUE_DICT) items[at++] = live_value(dict, i->child, rank, device);
        items[at++] = live_value(dict, kind == TSR_VALUE_DICT ? i->child->next : i, rank, device);
    }
    return tsr_value_items(tsr_state_dict_arena(dict), kind, items, at, NULL);
}

const tsr_value *live_value(tsr_state_dict *dict, const cJSON *json, uint32_t rank, tsr_device *device)
{
    const cJSON *content = json->child;
    tsr_value *value = tsr_value_new(tsr_state_dict_arena(dict), TSR_VALUE_NONE, NULL);
    switch (content->string[0]) {
    case 'T':
    case 'M':
    case 'S': return tensor_value(dict, content, rank, device);
    case 'D': return items_value(dict, content, TSR_VALUE_DICT, rank, device);
    case 'L': return items_value(dict, content, TSR_VALUE_LIST, rank, device);
    case 'U': return items_value(dict, content, TSR_VALUE_TUPLE, rank, device);
    case 'i': return tsr_value_int(tsr_state_dict_arena(dict), (int64_t)content->valuedouble, NULL);
    case 's': return tsr_value_str(tsr_state_dict_arena(dict), tsr_str_from(content->valuestring), NULL);
    case 'f': *value = (tsr_value){.kind = TSR_VALUE_FLOAT, .as.real = content->valuedouble}; break;
    case 'b': *value = (tsr_value){.kind = TSR_VALUE_BOOL, .as.boolean = cJSON_IsTrue(content)}; break;
    case 'o': /* an object of a class: a set, or something that DCP cannot save */
        *value = (tsr_value){.kind = strcmp(content->valuestring, "set") == 0     ? TSR_VALUE_SET
                                     : strcmp(content->valuestring, "dtype") == 0 ? TSR_VALUE_DTYPE
                                                                                  : TSR_VALUE_OBJECT,
                             .text = tsr_str_from(content->valuestring)};
        break;
    default: break;
    }
    return value;
}

/* ---- comparing ---- */

static tsr_status differs(tsr_error *err, const cJSON *json)
{
    char *text = cJSON_PrintUnformatted(json);
    const tsr_status status = tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "not as PyTorch has it: %.300s", text);
    cJSON_free(text);
    return status;
}

static bool same_numbers(const tsr_tensor *tensor, const void *data, const cJSON *numbers)
{
    const uint32_t size = tsr_dtype_size(tensor->entry.dtype);
    const size_t bytes = (size_t)cJSON_GetArraySize(numbers) * size;
    uint8_t *host = malloc(bytes + 1), *at = host;
    bool same = true;
    if (bytes && tensor->device) tensor->device->to_host(tensor->device, host, data, bytes, NULL);
    else if (bytes && data) memcpy(host, data, bytes);
    if (bytes && !data) same = false;
    for (const cJSON *n = numbers->child; n; n = n->next, at += size)
        same = same && get_number(tensor->entry.dtype, at) == n->valuedouble;
    free(host);
    return same;
}

static bool same_list(const uint64_t *list, uint32_t count, const cJSON *json)
{
    uint32_t at = 0;
    if ((uint32_t)cJSON_GetArraySize(json) != count) return false;
    for (const cJSON *n = json->child; n; n = n->next)
        if (list[at++] != (uint64_t)n->valuedouble) return false;
    return true;
}

static bool same_parts(const tsr_tensor *tensor, const cJSON *list, bool shapes_only)
{
    uint32_t at = 0;
    if ((uint32_t)cJSON_GetArraySize(list) != tensor->part_count) return false;
    for (const cJSON *p = list->child; p; p = p->next, at++) {
        const tsr_tensor_part *part = &tensor->parts[at];
        if (!same_list(part->offsets, tensor->entry.ndim, p->child) ||
            !same_list(part->sizes, tensor->entry.ndim, p->child->next))
            return false;
        if (!shapes_only && !same_numbers(tensor, part->data, p->child->next->next)) return false;
    }
    return true;
}

static bool same_placements(const tsr_tensor *tensor, const cJSON *mesh_text)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_mesh mesh;
    const tsr_str placements = tsr_placements_text(tensor->placements, tensor->mesh->dim_count, arena, NULL);
    bool same = tsr_mesh_parse(tsr_str_from(mesh_text->valuestring), arena, &mesh, NULL) == TSR_OK &&
                mesh.dim_count == tensor->mesh->dim_count &&
                memcmp(mesh.shape, tensor->mesh->shape, mesh.dim_count * sizeof *mesh.shape) == 0 &&
                tsr_str_equal(placements, tsr_str_from(mesh_text->next->valuestring));
    tsr_arena_free(arena);
    return same;
}

static bool same_tensor(const tsr_tensor *tensor, const cJSON *json, bool shapes_only)
{
    const cJSON *dtype = json->child, *shape = dtype->next, *numbers = shape->next;
    const tsr_spread spread = json->string[0] == 'T' ? TSR_WHOLE : json->string[0] == 'M' ? TSR_OVER_MESH : TSR_IN_BOXES;
    if (!tensor || tensor->meta || tensor->spread != spread || !same_list(tensor->entry.shape, tensor->entry.ndim, shape) ||
        tensor->entry.dtype != tsr_dtype_from_name(tsr_str_from(dtype->valuestring)))
        return false;
    if (spread == TSR_IN_BOXES) return same_parts(tensor, numbers, shapes_only);
    if (spread == TSR_OVER_MESH && !same_placements(tensor, numbers)) return false;
    if (spread == TSR_OVER_MESH) numbers = numbers->next->next;
    return (shapes_only && tensor->entry.ndim) || same_numbers(tensor, tensor->data, numbers);
}

static tsr_status same_items(const tsr_value *value, const cJSON *json, bool shapes_only, tsr_error *err)
{
    const bool dict = value->kind == TSR_VALUE_DICT;
    size_t at = 0;
    if ((size_t)cJSON_GetArraySize(json) * (dict ? 2 : 1) != value->count) return differs(err, json);
    for (const cJSON *i = json->child; i; i = i->next) {
        if (dict) TSR_TRY(live_same(value->items[at++], i->child, shapes_only, err));
        TSR_TRY(live_same(value->items[at++], dict ? i->child->next : i, shapes_only, err));
    }
    return TSR_OK;
}

tsr_status live_same(const tsr_value *value, const cJSON *json, bool shapes_only, tsr_error *err)
{
    const cJSON *content = json->child;
    bool same = false;
    switch (content->string[0]) {
    case 'T':
    case 'M':
    case 'S': same = same_tensor(tsr_tensor_of(value), content, shapes_only); break;
    case 'D':
        if (value->kind == TSR_VALUE_DICT) return same_items(value, content, shapes_only, err);
        break;
    case 'L':
        if (value->kind == TSR_VALUE_LIST) return same_items(value, content, shapes_only, err);
        break;
    case 'U':
        if (value->kind == TSR_VALUE_TUPLE) return same_items(value, content, shapes_only, err);
        break;
    case 'i': same = value->kind == TSR_VALUE_INT && (double)value->as.integer == content->valuedouble; break;
    case 'f': same = value->kind == TSR_VALUE_FLOAT && value->as.real == content->valuedouble; break;
    case 'b': same = value->kind == TSR_VALUE_BOOL && value->as.boolean == (bool)cJSON_IsTrue(content); break;
    case 's': same = value->kind == TSR_VALUE_STR && tsr_str_equal(value->text, tsr_str_from(content->valuestring)); break;
    case 'o': same = tsr_str_equal(value->text, tsr_str_from(content->valuestring)); break;
    default: same = value->kind == TSR_VALUE_NONE; break;
    }
    return same ? TSR_OK : differs(err, json);
}

/* ---- devices and memory ---- */

static void invert(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) to[i] = (uint8_t)~from[i];
}

static tsr_status device_alloc(tsr_device *device, uint64_t bytes, void **out, tsr_error *err)
{
    *out = malloc((size_t)bytes);
    if (!*out) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory");
    ((live_device *)device)->allocated += bytes;
    return TSR_OK;
}

static void device_free(tsr_device *device, void *data, uint64_t bytes)
{
    ((live_device *)device)->allocated -= bytes;
    free(data);
}

static tsr_status device_copy(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    live_device *d = (live_device *)device;
    if (++d->copies == d->fail_at) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "the device has failed");
    invert(to, from, bytes);
    return TSR_OK;
}

static tsr_status device_within(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    (void)device;
    (void)err;
    memmove(to, from, (size_t)bytes);
    return TSR_OK;
}

static tsr_status device_wait(tsr_device *device, tsr_error *err)
{
    (void)err;
    ((live_device *)device)->waits++;
    return TSR_OK;
}

static tsr_status device_pin(tsr_device *device, void *data, uint64_t bytes, tsr_error *err)
{
    (void)data;
    (void)err;
    ((live_device *)device)->allocated += bytes;
    return TSR_OK;
}

static void device_unpin(tsr_device *device, void *data, uint64_t bytes)
{
    (void)data;
    ((live_device *)device)->allocated -= bytes;
}

void live_device_open(live_device *device)
{
    *device = (live_device){.base = {TSR_DEVICE_CUDA, 0, device_alloc, device_free, device_copy, device_copy, device_within,
                                     device_wait, device_pin, device_unpin}};
}

static void *meter_resize(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    live_meter *meter = ctx;
    void *out = tsr_allocator_libc.resize(tsr_allocator_libc.ctx, pointer, old_size, new_size);
    if (new_size && !out) return NULL;
    meter->now += new_size - old_size;
    meter->most = meter->now > meter->most ? meter->now : meter->most;
    return out;
}

void live_meter_open(live_meter *meter)
{
    *meter = (live_meter){.base = {meter_resize, meter}};
}

/* ---- worlds ---- */

typedef struct group_run {
    uint32_t world;
    ranks_body *body;
    void *arg;
} group_run;

/* Runs the body on the first ranks with a communicator of their own. The other ranks do nothing. */
static tsr_status run_group(void *arg, tsr_comm *comm, tsr_error *err)
{
    const group_run *run = arg;
    tsr_comm *group;
    if (comm->size == run->world) return run->body(run->arg, comm, err);
    TSR_TRY(comm->split(comm, comm->rank < run->world ? 0 : TSR_COMM_NO_GROUP, comm->rank, &group, err));
    if (!group) return TSR_OK;
    const tsr_status status = run->body(run->arg, group, err);
    group->close(group);
    return status;
}

tsr_status live_try(uint32_t world, ranks_body *body, void *arg, tsr_error *err)
{
    group_run run = {world, body, arg};
    return ranks_try(world, run_group, &run, err);
}

bool live_run(uint32_t world, ranks_body *body, void *arg)
{
    tsr_error err = {0};
    if (ranks_count(world) < world) return false;
    if (live_try(world, body, arg, &err) != TSR_OK) fail_msg("%u ranks: %s", (unsigned)world, err.message);
    if (world != 1 || ranks_count(1) != 1) return true;
    tsr_comm *self;
    assert_int_equal(tsr_comm_self(&tsr_allocator_libc, &self, &err), TSR_OK);
    if (body(arg, self, &err) != TSR_OK) fail_msg("self: %s", err.message);
    self->close(self);
    return true;
}

tsr_state_options live_options(const cJSON *json)
{
    const struct {
        const char *name;
        size_t place;
    } fields[] = {
        {"full_state_dict", offsetof(tsr_state_options, full_state_dict)},
        {"cpu_offload", offsetof(tsr_state_options, cpu_offload)},
        {"ignore_frozen_params", offsetof(tsr_state_options, ignore_frozen_params)},
        {"keep_submodule_prefixes", offsetof(tsr_state_options, keep_submodule_prefixes)},
        {"strict", offsetof(tsr_state_options, strict)},
        {"broadcast_from_rank0", offsetof(tsr_state_options, broadcast_from_rank0)},
        {"flatten_optimizer_state_dict", offsetof(tsr_state_options, flatten_optimizer_state_dict)},
    };
    tsr_state_options options = tsr_state_options_default();
    for (const cJSON *o = json->child; o; o = o->next) {
        size_t i = 0;
        while (strcmp(fields[i].name, o->string) != 0) i++;
        *((bool *)&options + fields[i].place / sizeof(bool)) = cJSON_IsTrue(o);
    }
    return options;
}

/* ---- damage ---- */

tsr_status live_flip(const live_byte *byte, const tsr_comm *comm, tsr_error *err)
{
    FILE *file = fopen(byte->path, "r+b");
    NEED(file && fseek(file, byte->at, SEEK_SET) == 0);
    const int was = fgetc(file);
    NEED(fseek(file, byte->at, SEEK_SET) == 0 && fputc(was ^ 4, file) == (was ^ 4) && fclose(file) == 0);
    return TSR_OK;
}

tsr_status live_flip_bit(void *byte, tsr_comm *comm, tsr_error *err)
{
    if (comm->rank == 0) TSR_TRY(live_flip(byte, comm, err));
    return tsr_comm_barrier(comm, err);
}

void live_last_element(const char *path, const char *name, live_byte *out)
{
    const tsr_host host = live_host(NULL);
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_view view;
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(host.allocator, 0, &err);
    assert_int_equal(tsr_directory_store_open(NULL, host.allocator, path, &store, &err), TSR_OK);
    if (tsr_checkpoint_open(store, &host, NULL, &checkpoint, &err) != TSR_OK) fail_msg("%s", err.message);
    const tsr_entry *entry = tsr_checkpoint_entry(checkpoint, tsr_str_from(name));
    const tsr_chunk *chunk = &entry->chunks[entry->chunk_count - 1];
    assert_int_equal(tsr_checkpoint_locate(checkpoint, entry, chunk, arena, &view, &err), TSR_OK);
    const bool is_directory = store->primary == TSR_NO_FILE;
    snprintf(out->path, sizeof out->path, "%s%s%.*s", path, is_directory ? "/" : "",
             is_directory ? (int)store->files[view.file].name.size : 0, store->files[view.file].name.data);
    out->at = (long)(view.byte_offset + chunk->sizes[0] * chunk->sizes[1] * 4 - 1);
    tsr_arena_free(arena);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
}
