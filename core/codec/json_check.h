/* Checks the strict grammar of a document before cJSON parses it. */
#ifndef TSR_CODEC_JSON_CHECK_H
#define TSR_CODEC_JSON_CHECK_H

#include "tessera/status.h"

/* Decodes the \u escape at text[at], or the surrogate pair of two escapes. Returns its length in bytes and sets *scalar to
 * the character. Returns 0 if it is malformed, and *wrong then states why; *scalar is a lone surrogate if that is the reason. */
size_t tsr_json_unicode_escape(tsr_str text, size_t at, uint32_t *scalar, const char **wrong);

/* Checks the single value that begins at *at, possibly after white space, and moves *at to the byte after it. */
tsr_status tsr_json_skip(tsr_str text, size_t *at, uint32_t max_depth, tsr_error *err);

#endif
