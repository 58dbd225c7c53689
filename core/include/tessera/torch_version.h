/* Versions of PyTorch, and the features of checkpoints that they can load. Only 2.x is supported, so a version is its second
 * number.
 *
 * Example:
 *
 *     tsr_error err = {0};
 *     tsr_convert_options options = TSR_OPTIONS(tsr_convert_options);
 *     if (tsr_torch_version_parse(TSR_STR("2.15"), &options.for_torch, &err) != TSR_OK) puts(err.message); */
#ifndef TESSERA_TORCH_VERSION_H
#define TESSERA_TORCH_VERSION_H

#include "tessera/status.h"

TSR_API_BEGIN

/* 15: PyTorch 2.15. 0: 2.4, the oldest version that names the objects of a DCP as all newer ones do, or the oldest one that
 * has what is written. */
typedef uint32_t tsr_torch_version;

enum {
    TSR_TORCH_OLDEST = 3, /* the supported ones */
    TSR_TORCH_NEWEST = 15,
    TSR_TORCH_WITH_STORAGE_META = 4,  /* older ones refuse a `.metadata` with a StorageMeta */
    TSR_TORCH_WITH_SPLIT_OBJECTS = 4, /* older ones keep a dict without tensors as one object */
    TSR_TORCH_WITH_MESH_LAYOUT = 13,  /* older ones refuse the DTensors that newer ones pickle */
    TSR_TORCH_WITH_STRIDES = 15       /* older ones refuse a `.metadata` with the strides of tensors */
};

/* Reads "2.15" and what `torch.__version__` holds, such as "2.15.0+cu132". TSR_E_USAGE for any other text, and for versions
 * outside the supported ones. */
tsr_status tsr_torch_version_parse(tsr_str text, tsr_torch_version *out, tsr_error *err);

TSR_API_END

#endif
