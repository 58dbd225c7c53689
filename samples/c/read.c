/* Prints the first elements of a float32 tensor, however it is sharded: read PATH FQN
 *
 * Only the bytes of those elements are read, from each chunk that has some of them. */
#include <stdio.h>

#include <tessera/native_host.h>
#include <tessera/path.h>
#include <tessera/read.h>

enum { MOST = 8 };

/* Up to MOST elements along the last dim, from the tensor's first corner. */
static tsr_status print_first(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_error *err)
{
    const uint64_t first[TSR_MAX_NDIM] = {0};
    uint64_t sizes[TSR_MAX_NDIM];
    float values[MOST];
    uint64_t count = 1;
    for (uint32_t d = 0; d < entry->ndim; d++) {
        const uint64_t most = d + 1 == entry->ndim ? MOST : 1;
        sizes[d] = entry->shape[d] < most ? entry->shape[d] : most;
        count *= sizes[d];
    }
    const tsr_box box = {entry->ndim, first, sizes};
    const tsr_status status = tsr_read_box(checkpoint, entry, box, values, count * sizeof(float), err);
    for (uint64_t i = 0; status == TSR_OK && i < count; i++) printf("%s%g", i ? " " : "", (double)values[i]);
    if (status == TSR_OK) printf("\n");
    return status;
}

int main(int argc, char **argv)
{
    tsr_native_host native;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    if (argc != 3) {
        fprintf(stderr, "usage: read PATH FQN\n");
        return 2;
    }
    tsr_native_host_open(&native, 0);
    tsr_status status = tsr_path_open(argv[1], &native.host, NULL, &checkpoint, &err);
    if (status == TSR_OK) {
        const tsr_entry *entry = tsr_checkpoint_entry(checkpoint, tsr_str_from(argv[2]));
        if (!entry) status = tsr_raise(&err, TSR_E_NOT_FOUND, TSR_NO_POSITION, "there is no '%s'", argv[2]);
        else if (entry->kind != TSR_ENTRY_TENSOR || entry->dtype != TSR_FLOAT32)
            status = tsr_raise(&err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%s' is not a float32 tensor", argv[2]);
        else status = print_first(checkpoint, entry, &err);
    }
    if (status != TSR_OK) fprintf(stderr, "read: %s\n", err.message);
    tsr_path_close(checkpoint);
    tsr_native_host_close(&native);
    return status == TSR_OK ? 0 : 2;
}
