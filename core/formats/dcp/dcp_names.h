/* The distinct names of a `.metadata` file by number: FQNs and paths that its records repeat a million times, mostly in one
 * order, so that what followed a name last time is tried before the table. */
#ifndef TSR_FORMATS_DCP_DCP_NAMES_H
#define TSR_FORMATS_DCP_DCP_NAMES_H

#include "tessera/memory.h"
#include "tessera/sys/vec.h"

typedef struct tsr_dcp_name {
    tsr_str text;
    uint32_t follower; /* the name that came next last time */
    uint32_t hash;
} tsr_dcp_name;

/* Not to be moved while it holds names: its address is the seed of the hash. */
typedef struct tsr_dcp_names {
    tsr_vec list;  /* tsr_dcp_name */
    tsr_vec slots; /* uint32_t, a power of two: 1 + name, 0 where free */
    uint32_t last;
    uint64_t room; /* bytes that may still be hashed: a long name can be looked up in a few bytes of a pickle */
} tsr_dcp_names;

tsr_dcp_names tsr_dcp_names_of(const tsr_allocator *allocator, uint64_t room);
void tsr_dcp_names_free(tsr_dcp_names *names); /* leaves it empty; takes a zeroed one */
/* The number of a text, known or new; borrows the text. TSR_E_NOMEM, TSR_E_LIMIT. */
tsr_status tsr_dcp_names_add(tsr_dcp_names *names, tsr_str text, uint32_t *number, tsr_error *err);

static inline tsr_str tsr_dcp_name_text(const tsr_dcp_names *names, uint32_t number)
{
    return ((const tsr_dcp_name *)names->list.items)[number].text;
}

#endif
