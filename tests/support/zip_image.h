/* Zip archives built field by field, so that a test can break one field by name:
 *
 *   zip_image image;
 *   zip_start(&image);
 *   zip_add(&image, "a/x", "12345", 5, ZIP_DESCRIPTOR);
 *   zip_finish(&image, true);
 *   zip_poke(&image, image.member[0].central + ZIP_CENTRAL_METHOD, 2, 8); */
#ifndef TESTS_SUPPORT_ZIP_IMAGE_H
#define TESTS_SUPPORT_ZIP_IMAGE_H

#include <stdint.h>
#include <string.h>

#include "tessera/host.h"
#include "tessera/sys/host_calls.h"

#ifndef ZIP_IMAGE_BYTES
#define ZIP_IMAGE_BYTES (1 << 19)
#endif
enum { ZIP_IMAGE_SIZE = ZIP_IMAGE_BYTES, ZIP_IMAGE_MEMBERS = 16 };
enum {
    ZIP_PLAIN = 0,
    ZIP_DESCRIPTOR = 1,
    ZIP_DESCRIPTOR64 = 2,
    ZIP_LARGE = 4 /* sizes in zip64 extra fields */,
    ZIP_UNMARKED = 8 /* no signature before the descriptor */
};

/* Offsets of fields in their records. */
/* clang-format off */
enum {
    ZIP_LOCAL_FLAGS = 6, ZIP_LOCAL_METHOD = 8, ZIP_LOCAL_CRC = 14, ZIP_LOCAL_PACKED = 18, ZIP_LOCAL_SIZE = 22, ZIP_LOCAL_NAME = 30,
    ZIP_CENTRAL_FLAGS = 8, ZIP_CENTRAL_EXTERNAL = 38, ZIP_CENTRAL_METHOD = 10, ZIP_CENTRAL_CRC = 16, ZIP_CENTRAL_PACKED = 20, ZIP_CENTRAL_SIZE = 24,
    ZIP_CENTRAL_NAME_SIZE = 28, ZIP_CENTRAL_EXTRA_SIZE = 30, ZIP_CENTRAL_DISK = 34, ZIP_CENTRAL_OFFSET = 42, ZIP_CENTRAL_NAME = 46,
    ZIP_END_DISK = 4, ZIP_END_HERE = 8, ZIP_END_TOTAL = 10, ZIP_END_SIZE = 12, ZIP_END_OFFSET = 16, ZIP_END_COMMENT = 20,
    ZIP_64_DISK = 16, ZIP_64_HERE = 24, ZIP_64_TOTAL = 32, ZIP_64_SIZE = 40, ZIP_64_OFFSET = 48, ZIP_LOCATOR_OFFSET = 8
};
/* clang-format on */

typedef struct zip_image_member {
    const char *name;
    uint32_t crc, size;
    uint32_t how;
    size_t local, data, descriptor, central;
} zip_image_member;

typedef struct zip_image {
    uint8_t bytes[ZIP_IMAGE_SIZE];
    size_t size;
    zip_image_member member[ZIP_IMAGE_MEMBERS];
    size_t count;
    size_t base; /* offsets in the archive are relative to this */
    size_t directory, zip64, locator, end;
} zip_image;

static inline void zip_poke(zip_image *image, size_t at, unsigned width, uint64_t value)
{
    for (unsigned i = 0; i < width; i++) image->bytes[at + i] = (uint8_t)(value >> (8 * i));
}

static inline void zip_put(zip_image *image, unsigned width, uint64_t value)
{
    zip_poke(image, image->size, width, value);
    image->size += width;
}

static inline void zip_put_bytes(zip_image *image, const void *bytes, size_t size)
{
    memcpy(image->bytes + image->size, bytes, size);
    image->size += size;
}

static inline void zip_start(zip_image *image, size_t base)
{
    memset(image, 0, sizeof *image);
    image->base = image->size = base;
}

static inline void zip_put_zip64_extra(zip_image *image, uint64_t size)
{
    zip_put(image, 2, 1);
    zip_put(image, 2, 16);
    zip_put(image, 8, size);
    zip_put(image, 8, size);
}

static inline void zip_add(zip_image *image, const char *name, const void *data, size_t size, uint32_t how)
{
    zip_image_member *m = &image->member[image->count++];
    bool later = how & (ZIP_DESCRIPTOR | ZIP_DESCRIPTOR64), large = how & ZIP_LARGE;
    *m = (zip_image_member){
        .name = name, .crc = tsr_crc32(NULL, 0, data, size), .size = (uint32_t)size, .how = how, .local = image->size};
    zip_put(image, 4, 0x04034b50);
    zip_put(image, 2, 0);
    zip_put(image, 2, later ? 0x0808 : 0);
    zip_put(image, 2, 0);
    zip_put(image, 4, 0);
    zip_put(image, 4, later ? 0 : m->crc);
    zip_put(image, 4, later ? 0 : large ? UINT32_MAX : size);
    zip_put(image, 4, later ? 0 : large ? UINT32_MAX : size);
    zip_put(image, 2, strlen(name));
    zip_put(image, 2, large ? 20 : 0);
    zip_put_bytes(image, name, strlen(name));
    if (large) zip_put_zip64_extra(image, size);
    m->data = image->size;
    zip_put_bytes(image, data, size);
    m->descriptor = image->size;
    if (!later) return;
    if (!(how & ZIP_UNMARKED)) zip_put(image, 4, 0x08074b50);
    zip_put(image, 4, m->crc);
    zip_put(image, how & ZIP_DESCRIPTOR64 ? 8 : 4, size);
    zip_put(image, how & ZIP_DESCRIPTOR64 ? 8 : 4, size);
}

static inline void zip_put_central(zip_image *image, zip_image_member *m)
{
    bool large = m->how & ZIP_LARGE;
    m->central = image->size;
    zip_put(image, 4, 0x02014b50);
    zip_put(image, 4, 0);
    zip_put(image, 2, m->how & (ZIP_DESCRIPTOR | ZIP_DESCRIPTOR64) ? 0x0808 : 0);
    zip_put(image, 2, 0);
    zip_put(image, 4, 0);
    zip_put(image, 4, m->crc);
    zip_put(image, 4, large ? UINT32_MAX : m->size);
    zip_put(image, 4, large ? UINT32_MAX : m->size);
    zip_put(image, 2, strlen(m->name));
    zip_put(image, 2, large ? 20 : 0);
    zip_put(image, 2, 0);
    zip_put(image, 2, 0);
    zip_put(image, 6, 0);
    zip_put(image, 4, m->local - image->base);
    zip_put_bytes(image, m->name, strlen(m->name));
    if (large) zip_put_zip64_extra(image, m->size);
}

static inline void zip_finish(zip_image *image, bool zip64)
{
    image->directory = image->size;
    for (size_t i = 0; i < image->count; i++) zip_put_central(image, &image->member[i]);
    size_t size = image->size - image->directory;
    image->zip64 = image->size;
    if (zip64) {
        zip_put(image, 4, 0x06064b50);
        zip_put(image, 8, 44);
        zip_put(image, 4, 0);
        zip_put(image, 8, 0);
        zip_put(image, 8, image->count);
        zip_put(image, 8, image->count);
        zip_put(image, 8, size);
        zip_put(image, 8, image->directory - image->base);
        image->locator = image->size;
        zip_put(image, 4, 0x07064b50);
        zip_put(image, 4, 0);
        zip_put(image, 8, image->zip64 - image->base);
        zip_put(image, 4, 1);
    }
    image->end = image->size;
    zip_put(image, 4, 0x06054b50);
    zip_put(image, 4, 0);
    zip_put(image, 2, image->count);
    zip_put(image, 2, image->count);
    zip_put(image, 4, size);
    zip_put(image, 4, image->directory - image->base);
    zip_put(image, 2, 0);
}

#endif
