/* Compiles core/work/units.c with units so small that a test has many of them, and so that it records its progress after every second
 * one. */
#define TSR_UNIT_BYTES  ((uint64_t)2048)
#define TSR_BATCH_UNITS 2u
#include "work/units.c"
