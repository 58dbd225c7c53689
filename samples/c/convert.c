/* Converts a checkpoint of any format: convert PATH DEST safetensors|torch|dcp [DTYPE [TORCH]]
 *
 * With a DTYPE, such as bfloat16, floating-point tensors are cast to it. With a TORCH version, such as 2.4, that one loads
 * DEST. PATH and DEST may be URLs of object stores. DEST must not exist yet, and appears when it is complete. */
#include <stdio.h>
#include <string.h>

#include <tessera/native_host.h>
#include <tessera/path.h>

static int container_of(const char *name, tsr_container *out)
{
    static const char *const names[] = {
        [TSR_TO_SAFETENSORS] = "safetensors", [TSR_TO_TORCH] = "torch", [TSR_TO_DCP] = "dcp"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = (tsr_container)i;
        return 1;
    }
    return 0;
}

static tsr_status convert(const char *path, const char *dest, const tsr_convert_options *options, const tsr_host *host,
                          tsr_error *err)
{
    const tsr_path_write_options writing = {.convert = options};
    tsr_checkpoint *checkpoint = NULL;
    tsr_conversion written;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? tsr_path_open(path, host, NULL, &checkpoint, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_path_write(checkpoint, dest, &writing, arena, &written, err);
    for (uint64_t i = 0; status == TSR_OK && i < written.row_count; i++) {
        const tsr_converted *row = &written.rows[i];
        if (!row->written) printf("left out %.*s: %s\n", TSR_STR_ARG(row->entry->fqn), row->left_out);
    }
    if (status == TSR_OK) printf("wrote %llu bytes of tensors to '%s'\n", (unsigned long long)written.byte_total, dest);
    tsr_path_close(checkpoint);
    tsr_arena_free(arena);
    return status;
}

int main(int argc, char **argv)
{
    tsr_convert_options options = TSR_OPTIONS(tsr_convert_options);
    tsr_native_host native;
    tsr_error err = {0};
    if (argc < 4 || argc > 6 || !container_of(argv[3], &options.to)) {
        fprintf(stderr, "usage: convert PATH DEST safetensors|torch|dcp [DTYPE [TORCH]]\n");
        return 2;
    }
    if (argc > 4) options.dtype = tsr_dtype_from_name(tsr_str_from(argv[4]));
    if (argc > 4 && options.dtype == TSR_DTYPE_NONE) {
        fprintf(stderr, "convert: '%s' is not a dtype\n", argv[4]);
        return 2;
    }
    if (argc == 6 && tsr_torch_version_parse(tsr_str_from(argv[5]), &options.for_torch, &err) != TSR_OK) {
        fprintf(stderr, "convert: %s\n", err.message);
        return 2;
    }
    tsr_native_host_open(&native, 0);
    const tsr_status status = convert(argv[1], argv[2], &options, &native.host, &err);
    if (status != TSR_OK) fprintf(stderr, "convert: %s\n", err.message);
    tsr_native_host_close(&native);
    return status == TSR_OK ? 0 : 2;
}
