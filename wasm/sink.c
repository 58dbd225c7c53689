#include "made.h"

/* The files whose presence makes a DCP, a sharded safetensors, a Megatron-Core and a DeepSpeed universal checkpoint complete. */
static const char *const markers[] = {".metadata", "model.safetensors.index.json", "metadata.json", "latest_universal"};

static bool is_marker(tsr_str name)
{
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++)
        if (tsr_str_equal(name, tsr_str_from(markers[i]))) return true;
    return false;
}

/* Provided by the host: create a file of `size` bytes (0: not yet known), and write bytes to it. They return 0 on success.
 * `marker` is set for the file whose presence makes the checkpoint complete. */
__attribute__((import_module("env"), import_name("tsr_create"))) extern uint32_t tsr_create(uint32_t sink, uint32_t file,
                                                                                            const void *name,
                                                                                            uint32_t name_size,
                                                                                            uint64_t size, uint32_t marker);
__attribute__((import_module("env"), import_name("tsr_write"))) extern uint32_t tsr_write(uint32_t sink, uint32_t file,
                                                                                          uint64_t offset, const void *data,
                                                                                          uint32_t size);

static tsr_status create(tsr_output *output, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    host_sink *sink = (host_sink *)output;
    *file = sink->files++;
    if (tsr_create(sink->number, *file, name.data, (uint32_t)name.size, size, is_marker(name)) == 0) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "'%.*s' cannot be created", TSR_STR_ARG(name));
}

static tsr_status write_at(tsr_output *output, uint32_t file, uint64_t offset, const void *data, size_t size, tsr_error *err)
{
    const host_sink *sink = (host_sink *)output;
    if (tsr_write(sink->number, file, offset, data, (uint32_t)size) == 0) return TSR_OK;
    return tsr_raise(err, TSR_E_IO, offset, "%zu bytes cannot be written", size);
}

host_sink tessera_host_sink(uint32_t number)
{
    return (host_sink){.output = {.create = create, .write_at = write_at}, .number = number};
}
