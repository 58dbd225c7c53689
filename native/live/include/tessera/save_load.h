/* Checkpoints of state dicts that ranks hold together: every rank writes and reads its own shards.
 *
 *   rank 0   __0_0.distcp   objects, its shards ┐
 *   rank 1   __1_0.distcp   its shards          ├ all durable ──▶ rank 0 publishes `.metadata`
 *   rank 2   __2_0.distcp   its shards          ┘
 *
 * Saving writes a DCP directory as torch.distributed.checkpoint.save does, from any number of ranks, and
 * torch.distributed.checkpoint.load reads it. Loading reads any checkpoint that Tessera can open. Names are those of DCP's
 * flatten_state_dict: dicts are flattened, and so are lists that hold tensors or dicts; keys are joined by '.'. Both calls are
 * collective: all ranks return the same status. tessera/statedict.h describes how they report ranks that disagree.
 *
 * Example:
 *
 *     tsr_state_dict *loaded;
 *     status = tsr_state_dict_save(tsr_state_dict_root(dict), comm, "step-1000", NULL, host, &err);
 *     if (status == TSR_OK) status = tsr_state_dict_new(host, &loaded, &err);
 *     if (status == TSR_OK)
 *         status = tsr_state_dict_load("step-1000", tsr_state_dict_root(dict), comm, NULL, loaded, &err); */
#ifndef TESSERA_SAVE_LOAD_H
#define TESSERA_SAVE_LOAD_H

#include "tessera/statedict.h"

TSR_API_BEGIN

typedef struct tsr_save_options {
    size_t size;    /* TSR_OPTIONS sets it */
    bool overwrite; /* replace an existing checkpoint; readers see either the old one or the new one */
    /* Size of the buffer for memory that is not contiguous or is on a device, for which it is page-locked; 0: 16 MiB. */
    size_t buffer_bytes;
    tsr_warnings warnings;
} tsr_save_options;

/* Writes the directory `path`, which all ranks must see, or the URL of an object store (s3://, gs://, az://), to which each rank uploads
 * its own file. A shard that several ranks hold is written once, by the least loaded
 * of them. Objects are written by rank 0, with its values. The checkpoint becomes visible only when all of it is durable. A
 * failed or killed save leaves an earlier checkpoint as it was; the next save to that path removes the files of a killed one,
 * but not those that are still being written (a lock shows which). In an object store the files of a killed save stay until they are
 * removed, next to the old checkpoint or without `.metadata`. Besides its buffer a rank needs a few hundred bytes for each
 * shard of all ranks. `options` may be NULL. Warns rank 0 when `overwrite` replaces a checkpoint, as FileSystemWriter does, and
 * other ranks of objects whose values differ from rank 0's. Errors: TSR_E_EXISTS, TSR_E_IO, TSR_E_UNSUPPORTED (a tensor inside
 * a tuple, a value that cannot be pickled, a partial tensor). */
tsr_status tsr_state_dict_save(const tsr_value *state, tsr_comm *comm, const char *path, const tsr_save_options *options,
                               const tsr_host *host, tsr_error *err);

typedef struct tsr_load_options {
    size_t size;        /* TSR_OPTIONS sets it */
    bool allow_missing; /* a name that the checkpoint does not have keeps its value; otherwise it is an error that names the
                            first */
    /* Size of the buffer for boxes that are not contiguous or are on a device, for which it is page-locked; 0: 16 MiB. */
    size_t buffer_bytes;
    tsr_warnings warnings;
    bool ignore_crc; /* do not compare the bytes read with the CRCs that the checkpoint states */
} tsr_load_options;

/* Fills the tensors of `state`, of any distribution, with this rank's boxes of the checkpoint at `path`, which any number of
 * ranks may have saved. Meta tensors get memory in `out`. The result has the same structure; values that are not tensors are
 * the checkpoint's. Entries that are not in `state` are ignored, as in DCP. Warns about these, and about names that
 * allow_missing leaves unchanged. Shapes and dtypes must be the same; otherwise the call fails with TSR_E_USAGE and names both.
 *
 * What a rank reads whole is compared with the CRC-32 that the checkpoint states of it: chunks of a DCP, storages of a torch file,
 * safetensors files with tessera.crc32. Damage is TSR_E_FORMAT with the name; tensors that were read until then are filled. Without a CRC,
 * in compressed items, and of chunks that the rank needs only a part of, nothing is compared.
 *
 * Other errors: TSR_E_NOT_FOUND for missing names, those of opening and reading. `options` may be NULL. */
tsr_status tsr_state_dict_load(const char *path, const tsr_value *state, tsr_comm *comm, const tsr_load_options *options,
                               tsr_state_dict *out, tsr_error *err);

TSR_API_END

#endif
