/* Small models in memory for fuzz targets: cut from the input, opened, and read. */
#ifndef TSR_TESTS_SUPPORT_FUZZED_MODELS_H
#define TSR_TESTS_SUPPORT_FUZZED_MODELS_H

#include <stdlib.h>
#include <string.h>

#include "tessera/sys/read.h"
#include "tessera/sys/store.h"

enum { FUZZED_DATA_BYTES = 4096, FUZZED_MOST_ELEMENTS = 1 << 16 };

/* Takes what is in front of the next NUL from *rest. */
static inline tsr_str fuzzed_take(tsr_str *rest)
{
    const char *end = rest->size ? memchr(rest->data, 0, rest->size) : NULL;
    const tsr_str taken = {rest->data, end ? (size_t)(end - rest->data) : rest->size};
    *rest = end ? (tsr_str){end + 1, rest->size - taken.size - 1} : (tsr_str){rest->data + rest->size, 0};
    return taken;
}

/* A safetensors file with this header, whose data are `bytes`, repeated. Free its data. */
static inline tsr_str fuzzed_safetensors(tsr_str header, tsr_str bytes)
{
    const size_t size = 8 + header.size + FUZZED_DATA_BYTES;
    char *file = calloc(1, size);
    for (unsigned i = 0; i < 8; i++) file[i] = (char)((uint64_t)header.size >> (8 * i));
    if (header.size) memcpy(file + 8, header.data, header.size);
    for (size_t i = 0; i < FUZZED_DATA_BYTES && bytes.size; i++) file[8 + header.size + i] = bytes.data[i % bytes.size];
    return (tsr_str){file, size};
}

/* Reads all tensors that are not large. Each must have values, or an error with a message. */
static inline void fuzzed_read_all(tsr_checkpoint *checkpoint)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        uint64_t elements = 1;
        tsr_error err = {0};
        for (uint32_t d = 0; d < entry->ndim && elements <= FUZZED_MOST_ELEMENTS; d++)
            elements = entry->shape[d] > FUZZED_MOST_ELEMENTS ? FUZZED_MOST_ELEMENTS + 1 : elements * entry->shape[d];
        if (entry->kind != TSR_ENTRY_TENSOR || elements > FUZZED_MOST_ELEMENTS || !elements) continue;
        const size_t bytes = (size_t)elements * tsr_dtype_size(entry->dtype);
        void *values = malloc(bytes + 1);
        const tsr_run run = {.first = 0, .count = elements};
        if (bytes && tsr_read_run(checkpoint, entry, &run, values, bytes, &err) != TSR_OK && !err.message[0]) abort();
        free(values);
    }
}

#endif
