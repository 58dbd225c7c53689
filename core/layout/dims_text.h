/* Formats dimensions for messages: "[4096, 16384]". */
#ifndef TSR_LAYOUT_DIMS_TEXT_H
#define TSR_LAYOUT_DIMS_TEXT_H

#include <stdint.h>

typedef struct tsr_dims_buffer {
    char text[160]; /* long lists are cut and end in "…]" */
} tsr_dims_buffer;

/* Returns buffer->text. If `values` is NULL, all values are 0. */
const char *tsr_dims_text(tsr_dims_buffer *buffer, const uint64_t *values, uint32_t ndim);

#endif
