/* Compiles core/work/work.c with units so small that a test has many of them. */
#define TSR_UNIT_BYTES ((uint64_t)2048)
#include "work/work.c"
