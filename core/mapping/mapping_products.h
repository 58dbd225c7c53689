/* Numbers of one byte times their scales, by tables: a scale makes only 256 products. */
#ifndef TSR_MAPPING_PRODUCTS_H
#define TSR_MAPPING_PRODUCTS_H

#include "mapping/mapped.h"

enum { TSR_PRODUCTS_RUN = 1 << 17 }; /* the most elements of a run */

/* 0: each number is multiplied. The WebAssembly module does without tables, since its size is limited. */
#if defined(__wasm__)
#define TSR_PRODUCTS_BUILT 0
#else
#define TSR_PRODUCTS_BUILT 1
#endif

typedef struct tsr_products tsr_products;

/* Whether each product is used so often in a read of `elements` that tables pay. */
bool tsr_products_pay(const tsr_computed *file, uint64_t elements);
/* For one read of one file, for which they pay. */
tsr_status tsr_products_open(const tsr_mapped *m, const tsr_computed *file, tsr_products **out, tsr_error *err);
void tsr_products_close(tsr_products *products);
/* A run of elements of the file, in its dtype. Adds what casts to it lose to *losses. */
tsr_status tsr_products_read(tsr_products *products, tsr_mapped *m, const tsr_run *run, uint8_t *out,
                             tsr_cast_losses *losses, tsr_error *err);

#endif
