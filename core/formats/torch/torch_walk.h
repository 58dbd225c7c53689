/* The walk that turns a torch.save pickle into values, as torch_value.c (the walk, plain values) and torch_object.c (objects of
 * known classes) share it. A frame is a node whose children are being made. Its children go to items[first + i × step]: an
 * object that is shown as a dictionary of named parts has the names at the even places before the walk fills in the odd. */
#ifndef TSR_FORMATS_TORCH_TORCH_WALK_H
#define TSR_FORMATS_TORCH_TORCH_WALK_H

#include "formats/torch/torch_build.h"

/* What to do when the children of a frame are there. */
typedef enum tsr_torch_then {
    TSR_THEN_NOTHING,
    TSR_THEN_PARAMETER,
    TSR_THEN_BYTES,
    TSR_THEN_ATTRIBUTES,
    TSR_THEN_DEVICE_TENSOR,
    TSR_THEN_DTENSOR,
    TSR_THEN_SHARDED
} tsr_torch_then;

typedef struct tsr_torch_frame {
    tsr_value *value;
    tsr_ref ref;
    tsr_torch_then then;
    tsr_ref args; /* of the wrapper (DTENSOR, SHARDED) or the call (PARAMETER) */
    tsr_ref state;
    const tsr_ref *children;
    const tsr_value **items;
    size_t count, next, first, step;
} tsr_torch_frame;

/* Starts out->value, that of an OBJECT node: complete at once, or with children left in `out`. */
tsr_status tsr_torch_enter_object(tsr_torch_build *build, tsr_ref ref, tsr_torch_frame *out, tsr_error *err);
/* What the children of an object's frame make of it. */
tsr_status tsr_torch_finish_object(tsr_torch_build *build, const tsr_torch_frame *frame, tsr_error *err);

/* Makes out->value a container of `kind` and leaves its children in `out`. */
tsr_status tsr_torch_fill(tsr_torch_build *build, tsr_value_kind kind, const tsr_ref *children, size_t count,
                          tsr_torch_frame *out, tsr_error *err);
void tsr_torch_set_tensor(tsr_value *value, const tsr_torch_dense *dense);
/* "module.name" of a class, function, or what stands for one, in the arena; `data` is NULL on failure. */
tsr_str tsr_torch_class_text(tsr_torch_build *build, tsr_ref ref, tsr_error *err);
/* A text of the pickle that may outlive it: what its parser had to decode is copied. */
tsr_status tsr_torch_keep_text(tsr_torch_build *build, tsr_ref ref, tsr_str *out, tsr_error *err);

#endif
