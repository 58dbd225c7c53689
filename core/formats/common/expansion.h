/* The limit on what the shared parts of an input may expand to. A pickle refers to a container a second time in two bytes,
 * so a few kilobytes could describe any number of entries. Each byte of metadata allows TSR_EXPANSION_PER_BYTE bytes of
 * names and entries. */
#ifndef TSR_FORMATS_COMMON_EXPANSION_H
#define TSR_FORMATS_COMMON_EXPANSION_H

#include "tessera/host.h"
#include "tessera/memory.h"
#include "tessera/value.h"

/* Subtracts `bytes` from what the input may still expand to (*room). Fails with TSR_E_LIMIT when fewer are left. */
tsr_status tsr_expansion_take(uint64_t *room, uint64_t bytes, const tsr_host *host, tsr_error *err);
/* Adds to *room what reading `input` bytes of metadata allows. */
void tsr_expansion_add(uint64_t *room, uint64_t input);
/* Subtracts what an object's value expands to, or, if too little is left, replaces the value with one that is never written
 * out in full (TSR_VALUE_ENDLESS). */
tsr_status tsr_expansion_take_value(uint64_t *room, const tsr_value **value, tsr_arena *arena, tsr_error *err);

#endif
