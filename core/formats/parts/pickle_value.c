/* Reads a file that contains just one pickle. */
#include "formats/common/expansion.h"
#include "formats/parts/mount.h"
#include "formats/torch/torch_build.h"
#include "formats/torch/torch_verdict.h"
#include "tessera/sys/try.h"

static tsr_status build_value(tsr_torch_build *build, size_t consumed, const tsr_value **out, tsr_error *err)
{
    TSR_TRY(tsr_torch_build_open(build, err));
    TSR_TRY(tsr_torch_values(build, tsr_pickle_root(build->pickle), out, err));
    TSR_FAIL_AT(build->storages.count, err, TSR_E_FORMAT, 0, "a bare pickle with tensors, whose bytes are not in the file");
    return tsr_torch_verdict_on_end(build, consumed, build->pickle_bytes.size, err);
}

static tsr_status read_value(tsr_checkpoint *checkpoint, uint32_t file, tsr_str bytes, const tsr_value **out, tsr_error *err)
{
    tsr_pickle *pickle;
    size_t consumed;
    const tsr_store_file *named = &checkpoint->store->files[file];
    TSR_TRY(tsr_pickle_parse(bytes, checkpoint->host, &tsr_torch_names, &pickle, &consumed, err));
    tsr_torch_build build = {.pickle = pickle,
                             .pickle_bytes = bytes,
                             .host = checkpoint->host,
                             .arena = checkpoint->arena,
                             .findings = checkpoint->findings,
                             .file_name = named->name,
                             .file = file};
    const tsr_status status = build_value(&build, consumed, out, err);
    tsr_torch_build_close(&build);
    tsr_pickle_free(pickle);
    return status;
}

tsr_status tsr_pickle_file_value(tsr_checkpoint *checkpoint, uint32_t file, const tsr_value **out, tsr_error *err)
{
    const tsr_store_file *from = &checkpoint->store->files[file];
    tsr_bytes bytes;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &bytes, err));
    const tsr_str kept = tsr_arena_str(checkpoint->arena, bytes.data, err); /* the texts of the value point into it */
    tsr_status status = kept.data ? read_value(checkpoint, file, kept, out, err) : TSR_E_NOMEM;
    tsr_bytes_free(&bytes);
    if (status == TSR_OK) tsr_expansion_add(&checkpoint->expansion, from->size);
    else tsr_error_context(err, "%.*s", TSR_STR_ARG(from->name));
    return status;
}
