/* Prints the canonical names (FQNs) of a wrapped model's parameters, like PyTorch's state dict API:
 *
 *   python3 describe_modules.py … > modules.json       samples/describe_modules.py, with any torch.nn.Module
 *   canonicalize modules.json */
#include <stdio.h>

#include <tessera/fqn.h>
#include <tessera/native_host.h>
#include <tessera/path.h>

/* Prints "raw -> fqn" and the components that were removed, each with the reason. */
static tsr_status print_name(const tsr_modules *modules, tsr_str raw, tsr_arena *arena, tsr_error *err)
{
    tsr_name name;
    const tsr_status status = tsr_fqn_resolve(modules, raw, NULL, arena, &name, err);
    if (status != TSR_OK) return status;
    for (size_t i = 0; i < name.fqn_count; i++) printf("%.*s -> %.*s\n", TSR_STR_ARG(raw), TSR_STR_ARG(name.fqns[i]));
    for (size_t i = 0; i < name.removed_count; i++)
        printf("    without %.*s: %.*s\n", TSR_STR_ARG(name.removed[i].component), TSR_STR_ARG(name.removed[i].why));
    return TSR_OK;
}

static tsr_status print_names(tsr_str document, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_modules_document parsed;
    tsr_modules *modules = NULL;
    tsr_state_item *items;
    size_t count = 0;
    tsr_status status = tsr_modules_parse(document, host, arena, &parsed, err);
    if (status == TSR_OK) status = tsr_modules_new(parsed.root, host, &modules, err);
    if (status == TSR_OK) status = tsr_fqn_iterate(modules, host, arena, &items, &count, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++) status = print_name(modules, items[i].raw, arena, err);
    tsr_modules_free(modules);
    return status;
}

static tsr_status canonicalize(const char *path, const tsr_host *host, tsr_error *err)
{
    tsr_str document;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? tsr_path_load(path, host, arena, &document, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = print_names(document, host, arena, err);
    tsr_arena_free(arena);
    return status;
}

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_error err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: canonicalize MODULES.json\n");
        return 2;
    }
    tsr_native_host_open(&native, 0);
    const tsr_status status = canonicalize(argv[1], &native.host, &err);
    if (status != TSR_OK) fprintf(stderr, "canonicalize: %s\n", err.message);
    tsr_native_host_close(&native);
    return status == TSR_OK ? 0 : 2;
}
