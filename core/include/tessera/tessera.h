/* All headers of the core that programs use. What needs an operating system has headers of its own: tessera/path.h opens and
 * writes checkpoints by their paths, and tessera/native_host.h lends the core threads and fast checksums. The headers in
 * tessera/sys/ are what Tessera's own modules share. They are installed, but any release may change them.
 *
 * This program lists the tensors of a checkpoint. samples/c has it and eight more.
 *
 * Example:
 *
 *     #include <stdio.h>
 *
 *     #include <tessera/native_host.h>
 *     #include <tessera/path.h>
 *
 *     static void print_tensors(const tsr_catalog *catalog)
 *     {
 *         for (uint64_t i = 0; i < catalog->entry_count; i++) {
 *             const tsr_entry *entry = &catalog->entries[i];
 *             if (entry->kind != TSR_ENTRY_TENSOR) continue;
 *             printf("%.*s %s [", TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
 *             for (uint32_t d = 0; d < entry->ndim; d++) printf("%s%llu", d ? ", " : "", (unsigned long long)entry->shape[d]);
 *             printf("]\n");
 *         }
 *     }
 *
 *     int main(int argc, char **argv)
 *     {
 *         tsr_native_host native;
 *         tsr_checkpoint *checkpoint;
 *         tsr_error err = {0};
 *         if (argc != 2) {
 *             fprintf(stderr, "usage: list PATH\n");
 *             return 2;
 *         }
 *         tsr_native_host_open(&native, 0);
 *         const tsr_status status = tsr_path_open(argv[1], &native.host, NULL, &checkpoint, &err);
 *         if (status == TSR_OK) print_tensors(tsr_checkpoint_catalog(checkpoint));
 *         else fprintf(stderr, "list: %s\n", err.message);
 *         tsr_path_close(checkpoint);
 *         tsr_native_host_close(&native);
 *         return status == TSR_OK ? 0 : 2;
 *     } */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include "tessera/api.h"
#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/check.h"
#include "tessera/checkpoint.h"
#include "tessera/comm.h"
#include "tessera/compare.h"
#include "tessera/convert.h"
#include "tessera/diff.h"
#include "tessera/document_read.h"
#include "tessera/dtype.h"
#include "tessera/findings.h"
#include "tessera/fqn.h"
#include "tessera/glob.h"
#include "tessera/host.h"
#include "tessera/memory.h"
#include "tessera/mesh.h"
#include "tessera/modules.h"
#include "tessera/optim.h"
#include "tessera/optim_convert.h"
#include "tessera/output.h"
#include "tessera/plan.h"
#include "tessera/read.h"
#include "tessera/shards.h"
#include "tessera/status.h"
#include "tessera/store.h"
#include "tessera/str.h"
#include "tessera/target.h"
#include "tessera/torch_version.h"
#include "tessera/validate.h"
#include "tessera/value.h"
#include "tessera/version.h"

#endif
