/* Gives an optimizer's state dict the parameters' names, as PyTorch's get_optimizer_state_dict does:
 *
 *   torch.save(optimizer.state_dict(), "optim.pt")      "state" is keyed by position: 0, 1, 2, ...
 *   optimizer optim.pt modules.json named.pt            "state" is keyed by FQN
 *
 * samples/describe_modules.py writes modules.json. */
#include <stdio.h>

#include <tessera/native_host.h>
#include <tessera/optim.h>
#include <tessera/path.h>

static tsr_status name_state(const tsr_value *by_id, tsr_str document, const tsr_host *host, tsr_arena *arena,
                             const tsr_value **out, tsr_error *err)
{
    tsr_modules_document parsed;
    tsr_modules *modules = NULL;
    tsr_group_names groups;
    tsr_status status = tsr_modules_parse(document, host, arena, &parsed, err);
    if (status == TSR_OK) status = tsr_modules_new(parsed.root, host, &modules, err);
    const tsr_group_naming how = {modules, {parsed.groups, parsed.group_count}};
    if (status == TSR_OK) status = tsr_optim_name_groups(by_id, &how, host, arena, &groups, err);
    if (status == TSR_OK) status = tsr_optim_to_fqn(by_id, groups, host, arena, out, err);
    tsr_modules_free(modules);
    return status;
}

static tsr_status convert(char **argv, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_path_tree tree = {0};
    const tsr_value *named;
    tsr_str document;
    tsr_status status = tsr_path_load(argv[2], host, arena, &document, err);
    if (status == TSR_OK) status = tsr_path_tree_open(argv[1], host, arena, &tree, err);
    if (status == TSR_OK) status = name_state(tree.root, document, host, arena, &named, err);
    if (status == TSR_OK) status = tsr_path_write_tree(tree.checkpoint, named, argv[3], err);
    if (status == TSR_OK) {
        const tsr_value *state = tsr_value_get(named, TSR_STR("state"));
        for (size_t i = 0; i < tsr_value_pairs(state); i++) printf("%.*s\n", TSR_STR_ARG(state->items[2 * i]->text));
    }
    tsr_path_tree_close(&tree);
    return status;
}

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_error err = {0};
    if (argc != 4) {
        fprintf(stderr, "usage: optimizer OPTIM.pt MODULES.json DEST.pt\n");
        return 2;
    }
    tsr_native_host_open(&native, 0);
    tsr_arena *arena = tsr_arena_new(native.host.allocator, 0, &err);
    const tsr_status status = arena ? convert(argv, &native.host, arena, &err) : TSR_E_NOMEM;
    if (status != TSR_OK) fprintf(stderr, "optimizer: %s\n", err.message);
    tsr_arena_free(arena);
    tsr_native_host_close(&native);
    return status == TSR_OK ? 0 : 2;
}
