/* Makes value trees from the JSON goldens, and compares trees whose tensors are pieces of the goldens' tensors. */
#ifndef TSR_TESTS_OPTIM_GOLDEN_H
#define TSR_TESTS_OPTIM_GOLDEN_H

#include <cjson/cJSON.h>

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/containers.h"

#define GOLDEN_ZEROS UINT32_C(0xfffffffe) /* the "file" number of zeros */

/* A document, its values, and the numbers of every tensor that was decoded: tensor i is in "file" i. */
typedef struct golden {
    tsr_host host;
    tsr_arena *arena;
    cJSON *document;
    tsr_vec tensors; /* const cJSON *: the list of numbers */
    tsr_vec parsed;  /* cJSON *: documents of golden_parse */
} golden;

golden golden_open(const char *name);
void golden_close(golden *g);
/* Parses a document that lives until golden_close, because values borrow from it. */
const cJSON *golden_parse(golden *g, const char *text);
const cJSON *golden_get(const cJSON *object, const char *key);
const tsr_value *golden_value(golden *g, const cJSON *json);

/* Whether `value` equals `json`: tensors are compared by dtype, shape and every number, sharded ones by form and local rows.
 * With `ordered`, dicts must have the same order. Prints the position of a difference. */
bool golden_same(const golden *g, const tsr_value *value, const cJSON *json, bool ordered);

#endif
