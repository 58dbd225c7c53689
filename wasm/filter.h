/* The filter line of the viewer. Terms are separated by spaces, and an entry must satisfy all of them:
 *
 *   text            part of the name, ignoring case; with * ? or [ a glob for the whole name
 *   dtype:bfloat16  or a glob               shape:4096x*   a glob for the sizes       file:__0_0
 *   kind:object     tensor, object, opaque  >1GB  <=64MiB  bytes of the tensor        -term  not */
#ifndef TSR_WASM_FILTER_H
#define TSR_WASM_FILTER_H

#include "tessera/catalog.h"

enum { FILTER_TERMS = 16 };

typedef struct filter_term {
    enum { TERM_NAME, TERM_DTYPE, TERM_SHAPE, TERM_FILE, TERM_KIND, TERM_MORE, TERM_LESS } what;
    bool negated, is_glob, or_equal;
    tsr_str text;
    double bytes;
} filter_term;

typedef struct filter {
    filter_term terms[FILTER_TERMS];
    uint32_t count;
} filter;

/* Borrows `text`. Errors: TSR_E_USAGE with the byte position. */
tsr_status tessera_filter_parse(tsr_str text, filter *out, tsr_error *err);
bool tessera_filter_keeps(const filter *f, const tsr_catalog *catalog, const tsr_entry *entry);
/* Whether inspect lists the entry as a tensor: it is one, or at least one rank has a tensor with this name. */
bool tessera_is_tensor(const tsr_entry *entry);

#endif
