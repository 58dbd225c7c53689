/* Numbers the distinct names in a `.metadata` file: FQNs and paths, which its records repeat millions of times. Names mostly
 * recur in the same order, so the name that followed the previous one last time is tried before the hash table. */
#ifndef TSR_FORMATS_DCP_DCP_NAMES_H
#define TSR_FORMATS_DCP_DCP_NAMES_H

#include "tessera/memory.h"
#include "tessera/sys/vec.h"

typedef struct tsr_dcp_name {
    tsr_str text;
    uint32_t follower; /* the name that came after this one the last time */
    uint32_t hash;
} tsr_dcp_name;

/* Must not be moved while it holds names: its address is the seed of the hash. */
typedef struct tsr_dcp_names {
    tsr_vec list;  /* tsr_dcp_name */
    tsr_vec slots; /* uint32_t, a power of two of them: 1 + number of a name, or 0 when free */
    uint32_t last;
    uint64_t room; /* bytes that may still be hashed; limits the time, since a pickle can repeat a long name in a few
                    * bytes */
} tsr_dcp_names;

tsr_dcp_names tsr_dcp_names_of(const tsr_allocator *allocator, uint64_t room);
void tsr_dcp_names_free(tsr_dcp_names *names); /* leaves it empty; accepts a zeroed one */
/* The number of a text, which is added if it is new. Borrows the text. TSR_E_NOMEM, TSR_E_LIMIT. */
tsr_status tsr_dcp_names_add(tsr_dcp_names *names, tsr_str text, uint32_t *number, tsr_error *err);

static inline tsr_str tsr_dcp_name_text(const tsr_dcp_names *names, uint32_t number)
{
    return ((const tsr_dcp_name *)names->list.items)[number].text;
}

#endif
