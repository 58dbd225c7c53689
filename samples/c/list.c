/* Lists the tensors of a checkpoint: list PATH */
#include <stdio.h>

#include <tessera/native_host.h>
#include <tessera/path.h>

static void print_tensors(const tsr_catalog *catalog)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        printf("%.*s %s [", TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
        for (uint32_t d = 0; d < entry->ndim; d++) printf("%s%llu", d ? ", " : "", (unsigned long long)entry->shape[d]);
        printf("]\n");
    }
}

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: list PATH\n");
        return 2;
    }
    tsr_native_host_open(&native, 0);
    const tsr_status status = tsr_path_open(argv[1], &native.host, NULL, &checkpoint, &err);
    if (status == TSR_OK) print_tensors(tsr_checkpoint_catalog(checkpoint));
    else fprintf(stderr, "list: %s\n", err.message);
    tsr_path_close(checkpoint);
    tsr_native_host_close(&native);
    return status == TSR_OK ? 0 : 2;
}
