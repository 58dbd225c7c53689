/* PyTorch's _check_state_dict_similarity: whether two state dicts have the same structure. */
#include "statedict/tensor/state_dict.h"
#include "tessera/sys/statedict.h"

static tsr_status compare(void *ctx, const tsr_tensor *tensor, const tsr_tensor *companion, tsr_state_dict *out,
                          const tsr_tensor **result, tsr_error *err)
{
    (void)ctx;
    if (!companion) return TSR_OK; /* the walk reports what the companion has instead */
    *result = companion;           /* so that the walk has nothing to copy */
    return tsr_tensor_same_place(tensor, companion, &(tsr_likeness){"the state dict", "the companion", true}, out->arena,
                                 err);
}

tsr_status tsr_state_dict_similar(const tsr_value *state, const tsr_value *other, const tsr_host *host, bool *same,
                                  tsr_error *difference, tsr_error *err)
{
    const tsr_iterate how = {
        .whole = compare, .over_mesh = compare, .in_boxes = compare, .companion = other, .any_type = true};
    tsr_error found = {0};
    tsr_state_dict *passing;
    TSR_TRY(tsr_state_dict_new(host, &passing, err));
    const tsr_status status = tsr_state_dict_iterate(state, &how, passing, &found);
    tsr_state_dict_free(passing);
    *same = status == TSR_OK;
    if (status == TSR_OK) return TSR_OK;
    if (status != TSR_E_USAGE) return tsr_raise(err, status, TSR_NO_POSITION, "%s", found.message);
    if (difference) *difference = found;
    return TSR_OK;
}
