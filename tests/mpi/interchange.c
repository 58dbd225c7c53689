/* Loads a checkpoint in any format with the ranks of an MPI job, changes it, and saves it: `interchange SOURCE DEST [same] [overwrite]`.
 * Both may be URLs. Every tensor is sharded along its first dim over all ranks. Adds 1 to float32 tensors and to ints that are not
 * tensors, unless `same` is given. */
#include <stdio.h>
#include <string.h>

#include "tessera/comm_mpi.h"
#include "tessera/native_host.h"
#include "tessera/save_load.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/path.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

static const tsr_placement rows = {TSR_SHARD, 0, 0}, whole = {TSR_REPLICATE, 0, 0};

/* Copies the structure of the checkpoint, with tensors that have no memory yet and are sharded over all ranks. */
static tsr_status plan_value(const tsr_value *stored, const tsr_mesh *mesh, uint32_t rank, tsr_state_dict *dict,
                             const tsr_value **out, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(dict);
    if (stored->kind == TSR_VALUE_TENSOR) {
        const tsr_entry *entry = stored->as.tensor;
        tsr_dtype dtype = entry->dtype;
        uint64_t shape[TSR_MAX_NDIM] = {0};
        if (entry->ndim) memcpy(shape, entry->shape, entry->ndim * sizeof *shape);
        if (entry->ndim) tsr_dtype_pack(&dtype, &shape[entry->ndim - 1]); /* float4 in PyTorch's elements */
        tsr_tensor tensor = tsr_tensor_over_mesh(tsr_tensor_whole(dtype, entry->ndim, shape, NULL), mesh,
                                                 entry->ndim ? &rows : &whole, rank);
        tensor.meta = true;
        return tsr_state_dict_tensor(dict, &tensor, out, err);
    }
    const tsr_value **items = tsr_arena_array(arena, stored->count, sizeof *items, err);
    tsr_value *copy = tsr_value_new(arena, stored->kind, err);
    if (!items || !copy) return TSR_E_NOMEM;
    const bool dict_like = stored->kind == TSR_VALUE_DICT;
    *copy = *stored;
    copy->items = items;
    copy->text = tsr_arena_str(arena, stored->text, err); /* the tree is freed before the state dict */
    *out = copy;
    for (size_t i = 0; i < stored->count; i++) {
        if (dict_like && i % 2 == 0) {
            tsr_value *key = tsr_value_new(arena, stored->items[i]->kind, err);
            if (!key) return TSR_E_NOMEM;
            *key = *stored->items[i];
            key->text = tsr_arena_str(arena, key->text, err);
            items[i] = key;
        } else TSR_TRY(plan_value(stored->items[i], mesh, rank, dict, &items[i], err));
    }
    return TSR_OK;
}

static tsr_status plan(const char *path, const tsr_mesh *mesh, uint32_t rank, tsr_state_dict *dict, tsr_error *err)
{
    tsr_store *store;
    tsr_trees trees;
    const tsr_value *root;
    TSR_TRY(tsr_path_store_open(tsr_state_dict_host(dict), path, &store, err));
    tsr_status status = tsr_trees_of_part(store, tsr_state_dict_host(dict), (tsr_str){NULL, 0}, false, &trees, err);
    if (status == TSR_OK) {
        status = plan_value(trees.roots[0], mesh, rank, dict, &root, err);
        if (status == TSR_OK) tsr_state_dict_set_root(dict, root);
        tsr_trees_close(&trees);
    }
    store->close(store);
    return status;
}

static void change(const tsr_value *value)
{
    const tsr_tensor *tensor = tsr_tensor_of(value);
    if (tensor && tensor->entry.dtype == TSR_FLOAT32) {
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        uint64_t bytes = 0;
        tsr_tensor_held(tensor, arena, &bytes, NULL);
        for (uint64_t i = 0; i < bytes / sizeof(float); i++) ((float *)tensor->data)[i] += 1;
        tsr_arena_free(arena);
    }
    if (value->kind == TSR_VALUE_INT) ((tsr_value *)value)->as.integer++;
    for (size_t i = value->kind == TSR_VALUE_DICT; i < value->count; i += value->kind == TSR_VALUE_DICT ? 2 : 1)
        change(value->items[i]);
}

typedef struct choices {
    bool same, overwrite;
} choices;

static choices choices_of(int count, char **words)
{
    choices out = {0};
    for (int i = 0; i < count; i++) {
        out.same |= strcmp(words[i], "same") == 0;
        out.overwrite |= strcmp(words[i], "overwrite") == 0;
    }
    return out;
}

static tsr_status run(tsr_comm *comm, const char *source, const char *dest, choices how, const tsr_host *host,
                      tsr_error *err)
{
    tsr_save_options options = TSR_OPTIONS(tsr_save_options);
    options.overwrite = how.overwrite;
    const uint64_t ranks[] = {comm->size};
    const tsr_str name[] = {TSR_STR("dp")};
    const tsr_mesh mesh = {1, ranks, name};
    tsr_state_dict *planned, *loaded;
    TSR_TRY(tsr_state_dict_new(host, &planned, err));
    TSR_TRY(tsr_state_dict_new(host, &loaded, err));
    TSR_TRY(tsr_comm_agree(comm, plan(source, &mesh, comm->rank, planned, err), err));
    TSR_TRY(tsr_state_dict_load(source, tsr_state_dict_root(planned), comm, NULL, loaded, err));
    if (!how.same) change(tsr_state_dict_root(loaded));
    TSR_TRY(tsr_state_dict_save(tsr_state_dict_root(loaded), comm, dest, &options, host, err));
    tsr_state_dict_free(loaded);
    tsr_state_dict_free(planned);
    return TSR_OK;
}

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_comm *comm;
    tsr_native_host native;
    tsr_status status = tsr_mpi_start(&argc, &argv, &err);
    if (status == TSR_OK) status = tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &comm, &err);
    if (status == TSR_OK && argc >= 3) {
        tsr_native_host_open(&native, 1);
        status = run(comm, argv[1], argv[2], choices_of(argc - 3, argv + 3), &native.host, &err);
        tsr_native_host_close(&native);
        if (status != TSR_OK && comm->rank == 0) fprintf(stderr, "interchange: %s\n", err.message);
        comm->close(comm);
    }
    tsr_mpi_end();
    return status != TSR_OK || argc < 3;
}
