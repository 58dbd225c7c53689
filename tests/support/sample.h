/* Loads files of samples/checkpoints into a memory store, and the goldens next to them. */
#ifndef TESTS_SUPPORT_SAMPLE_H
#define TESTS_SUPPORT_SAMPLE_H

#include <stdio.h>
#include <stdlib.h>

#include "tessera/store.h"
#include "tessera/sys/store.h"

enum { SAMPLE_FILES = 32 };

typedef struct sample {
    tsr_memory_file files[SAMPLE_FILES];
    uint32_t count;
    tsr_store *store;
} sample;

/* The repository's directory: that of the build, or the one in the environment. */
static inline const char *sample_root(void)
{
    const char *elsewhere = getenv("TSR_TEST_DATA");
    return elsewhere ? elsewhere : TSR_TEST_DATA;
}

/* Returns a file's bytes, allocated by malloc; empty if it cannot be read. `path` is relative to samples/checkpoints. */
static inline tsr_str sample_read(const char *path)
{
    char name[1024];
    snprintf(name, sizeof name, "%s/samples/checkpoints/%s", sample_root(), path);
    FILE *file = fopen(name, "rb");
    if (!file) return (tsr_str){NULL, 0};
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *bytes = malloc((size_t)size + 1);
    size_t got = fread(bytes, 1, (size_t)size, file);
    fclose(file);
    bytes[got] = 0;
    return (tsr_str){bytes, got};
}

static inline void sample_add(sample *s, const char *name, tsr_str content)
{
    char *copy = malloc(strlen(name) + 1);
    memcpy(copy, name, strlen(name) + 1);
    s->files[s->count++] = (tsr_memory_file){tsr_str_from(copy), content};
}

/* Adds `directory`/`file` under the name `file`. */
static inline void sample_add_file(sample *s, const char *directory, const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    sample_add(s, file, sample_read(path));
}

static inline tsr_status sample_open(sample *s, const tsr_allocator *allocator)
{
    return tsr_store_from_memory(allocator, s->files, s->count, &s->store, NULL);
}

static inline void sample_close(sample *s)
{
    if (s->store) s->store->close(s->store);
    for (uint32_t i = 0; i < s->count; i++) {
        free((char *)s->files[i].name.data);
        free((char *)s->files[i].content.data);
    }
    *s = (sample){.count = 0};
}

#endif
