/* core/work/work.c with units that are small enough for a test to have many. */
#define TSR_UNIT_BYTES ((uint64_t)2048)
#include "work/work.c"
