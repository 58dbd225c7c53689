/* Which rank writes (or first reads) each distinct shard. What a rank holds alone is its load from the start; shards that
 * several ranks hold then go to the least loaded of them, in order, so that the choice needs one number a rank. */
#include "base/try.h"
#include "layout/plan_room.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/plan_items.h"

typedef struct assignment {
    const tsr_plan *plan;
    uint64_t *loads;          /* bits, by rank */
    const tsr_layout *layout; /* whose copies are listed */
    tsr_vec copies;           /* of uint64_t: how far each copy's rank is behind the first holder's */
} assignment;

static void load_alone(const assignment *a)
{
    for (size_t i = 0; i < a->plan->classes.count; i++) {
        const tsr_plan_class *c = &tsr_plan_classes(a->plan)[i];
        if (c->layout->copies > 1) continue;
        for (uint64_t r = 0; r < a->plan->ranks; r++) a->loads[r] += tsr_layout_elements(c->layout, r) * c->element_bits;
    }
}

static tsr_status list_copies(assignment *a, const tsr_layout *layout, tsr_error *err)
{
    if (a->layout == layout) return TSR_OK;
    a->copies.count = 0;
    TSR_TRY(tsr_vec_reserve(&a->copies, layout->copies, err));
    for (uint64_t k = 0; k < layout->copies; k++) {
        ((uint64_t *)a->copies.items)[a->copies.count++] = tsr_layout_copy(layout, 0, k); /* rank 0 is a first holder */
    }
    a->layout = layout;
    return TSR_OK;
}

static uint64_t least_loaded(const assignment *a, uint64_t first)
{
    const uint64_t *behind = a->copies.items;
    uint64_t best = first;
    for (size_t k = 1; k < a->copies.count; k++) {
        uint64_t holder = first + behind[k];
        if (a->loads[holder] < a->loads[best]) best = holder;
    }
    return best;
}

static tsr_status assign_tensor(assignment *a, uint64_t t, tsr_visit_shard *visit, void *ctx, tsr_error *err)
{
    const tsr_plan_tensor *tensor = &tsr_plan_tensors(a->plan)[t];
    const tsr_layout *layout = tsr_plan_classes(a->plan)[tensor->class_number].layout;
    TSR_TRY(list_copies(a, layout, err));
    for (uint64_t r = 0; r < a->plan->ranks; r++) {
        if (!tsr_layout_is_first(layout, r)) continue;
        uint64_t elements = tsr_layout_elements(layout, r), owner = r;
        if (elements == 0) continue;
        if (layout->copies > 1) {
            owner = least_loaded(a, r);
            a->loads[owner] += elements * tsr_plan_bits(tensor);
        }
        TSR_TRY(visit(ctx, t, r, owner, elements, err));
    }
    return TSR_OK;
}

tsr_status tsr_plan_assign(const tsr_plan *plan, bool shared_only, tsr_visit_shard *visit, void *ctx, tsr_error *err)
{
    const tsr_allocator *allocator = plan->host->allocator;
    assignment a = {.plan = plan, .loads = tsr_alloc(allocator, plan->ranks, sizeof *a.loads, err)};
    a.copies = tsr_vec_of(allocator, sizeof(uint64_t));
    tsr_status status = TSR_OK;
    if (!a.loads) return TSR_E_NOMEM;
    memset(a.loads, 0, plan->ranks * sizeof *a.loads);
    load_alone(&a);
    for (uint64_t t = 0; t < plan->tensors.count && status == TSR_OK; t++) {
        const tsr_plan_class *c = &tsr_plan_classes(plan)[tsr_plan_tensors(plan)[t].class_number];
        if (c->layout->copies > 1 || !shared_only) status = assign_tensor(&a, t, visit, ctx, err);
    }
    tsr_vec_free(&a.copies);
    tsr_free(allocator, a.loads, plan->ranks, sizeof *a.loads);
    return status;
}

typedef struct writing {
    const tsr_plan *plan;
    tsr_each_write *each;
    void *ctx;
    tsr_arena *arena; /* of the tensor being visited */
    uint64_t next;    /* tensor to visit; those before it are done */
} writing;

/* Tensors without elements have no shard to visit: each gets one box, the whole of it, of rank 0. */
static tsr_status write_empty(writing *w, uint64_t until, tsr_error *err)
{
    for (; w->next < until; w->next++) {
        const tsr_plan_class *c = &tsr_plan_classes(w->plan)[tsr_plan_tensors(w->plan)[w->next].class_number];
        const uint64_t zeros[TSR_MAX_RANK] = {0};
        const tsr_shard_box whole = {zeros, c->sample->shape, zeros};
        const tsr_shard shard = {c->sample->rank, c->sample->shape, zeros, &whole, 1};
        if (c->elements == 0) TSR_TRY(w->each(w->ctx, w->next, 0, &shard, err));
    }
    return TSR_OK;
}

static tsr_status write_shard(void *ctx, uint64_t tensor, uint64_t first, uint64_t owner, uint64_t elements, tsr_error *err)
{
    writing *w = ctx;
    tsr_shard shard;
    (void)elements;
    if (w->next <= tensor) {
        TSR_TRY(write_empty(w, tensor, err));
        w->next = tensor + 1;
        tsr_arena_free(w->arena);
        w->arena = tsr_arena_new(w->plan->host->allocator, 0, err);
        if (!w->arena) return TSR_E_NOMEM;
    }
    TSR_TRY(tsr_layout_shard(tsr_plan_classes(w->plan)[tsr_plan_tensors(w->plan)[tensor].class_number].layout, first,
                             w->arena, &shard, err));
    return w->each(w->ctx, tensor, owner, &shard, err);
}

tsr_status tsr_plan_each_write(const tsr_plan *plan, tsr_each_write *each, void *ctx, tsr_error *err)
{
    writing w = {plan, each, ctx, NULL, 0};
    tsr_status status = tsr_plan_assign(plan, false, write_shard, &w, err);
    if (status == TSR_OK) status = write_empty(&w, plan->tensors.count, err);
    tsr_arena_free(w.arena);
    return status;
}
