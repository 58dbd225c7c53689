/* The module's boundary: what JavaScript calls, with u32 handles, and the one function it lends.
 *
 *   page/worker/Node ── tessera_*() ──▶ shim ── core/include ──▶ core
 *                    ◀── tsr_read() ──
 *
 * Every function that can fail takes a tsr_error that the caller allocated (tessera_error_size bytes, zeroed) and returns 0
 * on failure unless it says otherwise. Sizes and offsets of files are 64 bits. Pointers are offsets into the memory. */
#ifndef TSR_WASM_SHIM_H
#define TSR_WASM_SHIM_H

#include "tessera/status.h"

#define TSR_EXPORT(name) __attribute__((export_name(#name)))

/* The host's: fills [pointer, pointer + size) from `file` of the store `store`; 0 when it could. */
__attribute__((import_module("env"), import_name("tsr_read"))) extern uint32_t tsr_read(uint32_t store, uint32_t file,
                                                                                       uint64_t offset, void *pointer, uint32_t size);

/* One file of a store as JavaScript lays it down: 16 bytes each. */
typedef struct tessera_file {
    uint32_t name; /* pointer to UTF-8 */
    uint32_t name_size;
    uint64_t size;
} tessera_file;

typedef enum tessera_document_kind {
    TESSERA_INSPECT = 1,
    TESSERA_FINDINGS = 2,
    TESSERA_FINDINGS_DEEP = 3, /* reads every byte */
    TESSERA_LAYOUT = 4
} tessera_document_kind;

#endif
