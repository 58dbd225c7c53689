/* Makes safetensors images in memory: a header text and a number of data bytes (0, 1, 2, …). */
#ifndef TESTS_SUPPORT_ST_IMAGE_H
#define TESTS_SUPPORT_ST_IMAGE_H

#include <stdlib.h>
#include <string.h>

#include "tessera/str.h"

/* The caller must free `data`. */
static inline tsr_str st_image(const char *header, size_t data_size)
{
    size_t length = strlen(header);
    char *bytes = malloc(8 + length + data_size);
    for (size_t i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_size; i++) bytes[8 + length + i] = (char)i;
    return (tsr_str){bytes, 8 + length + data_size};
}

#endif
