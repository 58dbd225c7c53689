/* See dcp_metadata.h. */
#include "formats/dcp/dcp_metadata.h"

#include "formats/common/expansion.h"
#include "formats/dcp/dcp_fold.h"
#include "tessera/sys/try.h"

/* Sets *out to a DICT, to the items of an OrderedDict, or to none. */
static tsr_status take_dict(const tsr_dcp_metadata *metadata, tsr_ref state, const char *name, tsr_ref *out, tsr_error *err)
{
    const tsr_pickle *pickle = metadata->pickle;
    tsr_ref ref = tsr_pickle_get(pickle, state, name, NULL);
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    *out = ref;
    if (kind == TSR_PICKLE_OBJECT && tsr_pickle_class_id(pickle, ref) == TSR_DCP_ID_LISTED)
        *out = tsr_pickle_dict_items(pickle, ref);
    else
        TSR_FAIL_AT(kind != TSR_PICKLE_DICT && kind != TSR_PICKLE_NONE, err, TSR_E_FORMAT, tsr_pickle_position(pickle, ref),
                    "dcp: '%s' is not a dict", name);
    return TSR_OK;
}

static tsr_status take_root(tsr_dcp_metadata *metadata, tsr_error *err)
{
    const tsr_pickle *pickle = metadata->pickle;
    tsr_ref root = tsr_pickle_root(pickle), state = tsr_pickle_state(pickle, root);
    TSR_FAIL_AT(tsr_pickle_class_id(pickle, root) != TSR_DCP_ID_METADATA, err, TSR_E_FORMAT, 0,
                "dcp: the pickle does not contain a torch.distributed.checkpoint Metadata object");
    TSR_FAIL_AT(tsr_pickle_kind_of(pickle, state) != TSR_PICKLE_DICT, err, TSR_E_FORMAT, tsr_pickle_position(pickle, root),
                "dcp: Metadata lacks its state");
    TSR_TRY(take_dict(metadata, state, "state_dict_metadata", &metadata->state_dict, err));
    TSR_TRY(take_dict(metadata, state, "storage_data", &metadata->storage_data, err));
    tsr_ref planner = tsr_pickle_get(pickle, state, "planner_data", NULL);
    if (tsr_pickle_kind_of(pickle, planner) == TSR_PICKLE_DICT)
        metadata->planner_data = planner; /* its contents depend on the planner */
    bool has_data, has_plans;
    tsr_ref mcore = tsr_pickle_get(pickle, state, "mcore_data", &has_data);
    tsr_pickle_get(pickle, state, "all_local_plans", &has_plans);
    metadata->is_megatron = has_data || has_plans;
    if (tsr_pickle_kind_of(pickle, mcore) == TSR_PICKLE_DICT) metadata->mcore_data = mcore;
    return TSR_OK;
}

tsr_status tsr_dcp_metadata_open(tsr_str bytes, const tsr_host *host, tsr_dcp_metadata *out, tsr_error *err)
{
    uint64_t room = host->limits.expansion;
    tsr_expansion_add(&room, bytes.size);
    *out = (tsr_dcp_metadata){.dims = tsr_vec_of(host->allocator, sizeof(uint64_t)),
                              .records = tsr_vec_of(host->allocator, sizeof(uint64_t)),
                              .fqns = tsr_dcp_names_of(host->allocator, room),
                              .paths = tsr_dcp_names_of(host->allocator, room),
                              .odd_getattr = TSR_NO_POSITION,
                              .odd_enum = TSR_NO_POSITION,
                              .unloadable = TSR_NO_POSITION,
                              .misused = TSR_NO_POSITION,
                              .newer = TSR_NO_POSITION};
    tsr_status status = tsr_dcp_fold(bytes, host, out, err);
    if (status == TSR_OK) status = take_root(out, err);
    if (status != TSR_OK) tsr_dcp_metadata_close(out);
    return status;
}

void tsr_dcp_metadata_forget(tsr_dcp_metadata *metadata)
{
    tsr_pickle_free(metadata->pickle);
    metadata->pickle = NULL;
    if (metadata->records.allocator) tsr_vec_free(&metadata->records);
    tsr_dcp_names_free(&metadata->fqns);
    tsr_dcp_names_free(&metadata->paths);
}

void tsr_dcp_metadata_close(tsr_dcp_metadata *metadata)
{
    tsr_dcp_metadata_forget(metadata);
    if (metadata->dims.allocator) tsr_vec_free(&metadata->dims);
}
