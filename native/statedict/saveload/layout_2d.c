/* Determines which slice of each parameter belongs to this rank's data-parallel group. A checkpoint describes only whole
 * tensors, so this comes from the model's sharded state. */
#include "statedict/tensor/path.h"
#include "statedict/tensor/state_dict.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/sys/sharded_optimizer.h"

static tsr_status check_value(const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    TSR_FAIL_IF(key->kind != TSR_VALUE_STR, err, TSR_E_USAGE,
                "the model's state has a key of type %s; keys are names of tensors", tsr_python_type(key));
    TSR_FAIL_IF(value->kind != TSR_VALUE_TENSOR, err, TSR_E_USAGE,
                "'%.*s' of the model's state is of type %s, which has no size; pass a state dict that holds only tensors",
                TSR_STR_ARG(key->text), tsr_python_type(value));
    return TSR_OK;
}

/* Whether the tensor is a slice. Refuses the nestings that PyTorch refuses. */
static tsr_status is_slice(tsr_str name, const tsr_tensor *tensor, bool *slice, tsr_error *err)
{
    const tsr_tensor *nested = tensor->nested;
    *slice = false;
    if (!nested || nested->spread == TSR_WHOLE) return TSR_OK;
    if (tensor->spread == TSR_IN_BOXES && tensor->part_count == 0) return TSR_OK;
    TSR_FAIL_IF(tensor->spread != TSR_IN_BOXES || nested->spread != TSR_IN_BOXES, err, TSR_E_UNSUPPORTED,
                "'%.*s' of the model's state is a %s inside a %s; only a ShardedTensor inside a ShardedTensor shows its "
                "slice",
                TSR_STR_ARG(name), nested->spread == TSR_IN_BOXES ? "ShardedTensor" : "DTensor",
                tensor->spread == TSR_IN_BOXES ? "ShardedTensor"
                : tensor->spread == TSR_WHOLE  ? "plain tensor"
                                               : "DTensor");
    TSR_FAIL_IF(tensor->part_count != 1, err, TSR_E_UNSUPPORTED,
                "'%.*s' of the model's state has %u shards on this rank; a slice must be the only one", TSR_STR_ARG(name),
                (unsigned)tensor->part_count);
    TSR_FAIL_IF(!nested->group, err, TSR_E_USAGE,
                "'%.*s' of the model's state does not state which ranks share its slice; set `group` of its nested tensor",
                TSR_STR_ARG(name));
    *slice = true;
    return TSR_OK;
}

static tsr_status use_group(tsr_str name, tsr_comm *group, tsr_str *first, tsr_layout_2d *out, tsr_error *err)
{
    if (!out->group) {
        *first = name;
        out->group = group;
    }
    TSR_FAIL_IF(group->size != out->group->size || group->rank != out->group->rank, err, TSR_E_USAGE,
                "the slice of '%.*s' is shared by a group where this is rank %u of %u, that of '%.*s' by one where it is "
                "rank %u of %u; all slices need the same group",
                TSR_STR_ARG(*first), (unsigned)out->group->rank, (unsigned)out->group->size, TSR_STR_ARG(name),
                (unsigned)group->rank, (unsigned)group->size);
    return TSR_OK;
}

tsr_status tsr_state_dict_layout_2d(const tsr_value *model_state, tsr_arena *arena, tsr_layout_2d *out, tsr_error *err)
{
    tsr_str first = TSR_STR("");
    TSR_FAIL_IF(model_state->kind != TSR_VALUE_DICT, err, TSR_E_USAGE,
                "the model's state is a %s; expected a dict of tensors", tsr_python_type(model_state));
    *out = (tsr_layout_2d){.count = tsr_value_pairs(model_state)};
    tsr_tp_slice *slices = tsr_arena_array(arena, out->count, sizeof *slices, err);
    if (!slices) return TSR_E_NOMEM;
    out->slices = slices;
    for (size_t i = 0; i < out->count; i++) {
        const tsr_value *key = model_state->items[2 * i];
        bool slice;
        TSR_TRY(check_value(key, model_state->items[2 * i + 1], err));
        const tsr_tensor *tensor = tsr_tensor_of(model_state->items[2 * i + 1]);
        const tsr_entry *entry = &tensor->entry;
        slices[i] = (tsr_tp_slice){key->text, entry->ndim, NULL, entry->shape, entry->shape};
        TSR_TRY(is_slice(key->text, tensor, &slice, err));
        if (!slice) continue;
        slices[i].offsets = tensor->parts[0].offsets;
        slices[i].sizes = tensor->parts[0].sizes;
        TSR_TRY(use_group(key->text, tensor->nested->group, &first, out, err));
    }
    return TSR_OK;
}
