/* Checks the strict grammar of a document before cJSON parses it. */
#ifndef TSR_CODEC_JSON_CHECK_H
#define TSR_CODEC_JSON_CHECK_H

#include "tessera/status.h"

/* Checks `text` against RFC 8259 and the rules in codec/json.h, except for duplicate keys. *key_position receives the byte
 * position of the key that follows the first `key_number` keys in document order; NULL if it is not needed. *lone is increased
 * by the number of escaped lone surrogates; NULL: they are refused. Does not recurse. */
tsr_status tsr_json_check(tsr_str text, uint32_t max_depth, uint64_t key_number, uint64_t *key_position, size_t *lone,
                          tsr_error *err);

/* Decodes the \u escape at text[at], or the surrogate pair of two escapes. Returns its length in bytes and sets *scalar to
 * the character. Returns 0 if it is malformed, and *wrong then states why; *scalar is a lone surrogate if that is the reason. */
size_t tsr_json_unicode_escape(tsr_str text, size_t at, uint32_t *scalar, const char **wrong);

/* Checks the single value that begins at *at, possibly after white space, and moves *at to the byte after it. */
tsr_status tsr_json_skip(tsr_str text, size_t *at, uint32_t max_depth, tsr_error *err);

#endif
