/* Directories in memory, with files that are text, bytes, or safetensors images. Include after cmocka.h. */
#ifndef TESTS_SUPPORT_DIRECTORY_H
#define TESTS_SUPPORT_DIRECTORY_H

#include <stdlib.h>

#include "support/st_image.h"
#include "tessera/store.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

#define MAX_FILES 8

typedef struct part {
    const char *name;
    const char *text;
    size_t data_size; /* > 0: a safetensors image with the header `text` and this many data bytes; SIZE_MAX: an image
                       * without data */
    size_t text_size; /* 0: strlen */
} part;

typedef struct directory {
    tsr_memory_file files[MAX_FILES];
    uint32_t count;
    tsr_store *store;
    tsr_host host;
} directory;

static inline void make_directory(directory *f, const part *parts, const char *primary)
{
    memset(f, 0, sizeof *f);
    f->host = (tsr_host){.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    for (; f->count < MAX_FILES && parts[f->count].name; f->count++) {
        const part *p = &parts[f->count];
        size_t size = p->text_size ? p->text_size : strlen(p->text);
        tsr_str content;
        if (p->data_size) {
            content = st_image(p->text, p->data_size == SIZE_MAX ? 0 : p->data_size);
        } else {
            char *copy = malloc(size + 1);
            memcpy(copy, p->text, size);
            content = (tsr_str){copy, size};
        }
        f->files[f->count] = (tsr_memory_file){tsr_str_from(p->name), content};
    }
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, f->files, f->count, &f->store, NULL), TSR_OK);
    f->store->primary = primary ? tsr_store_find(f->store, tsr_str_from(primary)) : TSR_NO_FILE;
}

static inline void drop_directory(directory *f)
{
    f->store->close(f->store);
    for (uint32_t i = 0; i < f->count; i++) free((char *)f->files[i].content.data);
}

#define EMPTY                    "{}"
#define U8(name, size, from, to) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" size "],\"data_offsets\":[" from "," to "]}"
#define TORCH                    "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0archive/data.pkl"
#define TORCH_SIZE               46
#define LEGACY                   "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define LEGACY_4                 "\x80\4\x95\x0d\0\0\0\0\0\0\0\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define LEGACY_4_SIZE            24

#endif
