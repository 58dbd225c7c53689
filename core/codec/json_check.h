/* The strict grammar check in front of cJSON. */
#ifndef TSR_CODEC_JSON_CHECK_H
#define TSR_CODEC_JSON_CHECK_H

#include "tessera/status.h"

/* Checks `text` against RFC 8259 and the rules of codec/json.h except duplicate keys. When `key_number` keys have gone
 * by in document order, the next one's position is stored in *key_position (both may be unused: NULL). Iterative. */
tsr_status tsr_json_check(tsr_str text, uint32_t max_depth, uint64_t key_number, uint64_t *key_position, tsr_error *err);

/* The \u escape at text[at], or the surrogate pair of two: its length in bytes and the scalar value it stands for; 0 when it
 * is malformed, with *wrong saying how. */
size_t tsr_json_unicode_escape(tsr_str text, size_t at, uint32_t *scalar, const char **wrong);

/* Checks the one value that begins at *at (white space before it is allowed) and moves *at behind it. */
tsr_status tsr_json_skip(tsr_str text, size_t *at, uint32_t max_depth, tsr_error *err);

#endif
