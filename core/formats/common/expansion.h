/* The bound on what shared parts of an input expand to: a pickle names a container a second time in two bytes, so a few kilobytes
 * could stand for any number of entries. Each byte of metadata allows TSR_EXPANSION_PER_BYTE bytes of names and entries. */
#ifndef TSR_FORMATS_COMMON_EXPANSION_H
#define TSR_FORMATS_COMMON_EXPANSION_H

#include "tessera/host.h"
#include "tessera/memory.h"
#include "tessera/value.h"

/* Takes `bytes` from what the input may still expand to; TSR_E_LIMIT where that is less. */
tsr_status tsr_expansion_take(uint64_t *room, uint64_t bytes, const tsr_host *host, tsr_error *err);
/* What reading `input` bytes adds to it. */
void tsr_expansion_add(uint64_t *room, uint64_t input);
/* Takes what an object's value expands to, or replaces the value by one that is never written out (TSR_VALUE_ENDLESS). */
tsr_status tsr_expansion_take_value(uint64_t *room, const tsr_value **value, tsr_arena *arena, tsr_error *err);

#endif
