/* Chooses the rank that writes (or first reads) each distinct shard. Shards held by a single rank count toward its load from
 * the start. Each shard that several ranks hold then goes to the least loaded of them, in order, so that only one number per
 * rank is needed. */
#include "plan/plan_room.h"
#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/holders.h"
#include "tessera/sys/plan_items.h"

typedef struct assignment {
    const tsr_plan *plan;
    uint64_t *loads;          /* bits, by rank */
    const tsr_layout *layout; /* the layout whose copies are listed */
    tsr_vec copies;           /* of uint64_t: distance of each copy's rank from the first holder */
} assignment;

/* Counts the ranks that hold the shard whose lowest holder according to the layout is `first`. *lowest (may be NULL) is the
 * lowest of them. */
static uint64_t count_copies(const tsr_plan_class *c, uint64_t first, uint64_t *lowest)
{
    uint64_t copies = 0;
    if (lowest) *lowest = first;
    if (tsr_holders_are_all(&c->holders)) return c->layout->copies;
    for (uint64_t k = c->layout->copies; k-- > 0;) {
        const uint64_t holder = tsr_layout_copy(c->layout, first, k);
        if (!tsr_holders_have(&c->holders, holder)) continue;
        copies++;
        if (lowest) *lowest = holder;
    }
    return copies;
}

tsr_status tsr_plan_check_holders(const tsr_plan_class *c, uint64_t ranks, tsr_error *err)
{
    if (tsr_holders_are_all(&c->holders)) return TSR_OK;
    for (uint64_t r = 0; r < ranks; r++) {
        if (!tsr_layout_is_first(c->layout, r) || !tsr_layout_elements(c->layout, r)) continue;
        TSR_FAIL_IF(!count_copies(c, r, NULL), err, TSR_E_USAGE,
                    "the rule for '%.*s' leaves some of its elements without a rank: its placements assign them to rank "
                    "%llu, which is not among the ranks or the stage of the rule",
                    TSR_STR_ARG(c->sample->fqn), (unsigned long long)r);
    }
    return TSR_OK;
}

/* For a class with ranks that hold nothing: adds each shard with one holder to that rank's load. */
static void load_alone_of(const assignment *a, const tsr_plan_class *c)
{
    for (uint64_t r = 0; r < a->plan->ranks; r++) {
        uint64_t holder;
        const uint64_t elements = tsr_layout_is_first(c->layout, r) ? tsr_layout_elements(c->layout, r) : 0;
        if (elements && count_copies(c, r, &holder) == 1) a->loads[holder] += elements * c->element_bits;
    }
}

static void load_alone(const assignment *a)
{
    for (size_t i = 0; i < a->plan->classes.count; i++) {
        const tsr_plan_class *c = &tsr_plan_classes(a->plan)[i];
        if (!tsr_holders_are_all(&c->holders)) load_alone_of(a, c);
        if (c->layout->copies > 1 || !tsr_holders_are_all(&c->holders)) continue;
        for (uint64_t r = 0; r < a->plan->ranks; r++) a->loads[r] += tsr_layout_elements(c->layout, r) * c->element_bits;
    }
}

static tsr_status list_copies(assignment *a, const tsr_layout *layout, tsr_error *err)
{
    if (a->layout == layout) return TSR_OK;
    a->copies.count = 0;
    TSR_TRY(tsr_vec_reserve(&a->copies, layout->copies, err));
    for (uint64_t k = 0; k < layout->copies; k++) {
        /* Rank 0 is always a first holder. */
        ((uint64_t *)a->copies.items)[a->copies.count++] = tsr_layout_copy(layout, 0, k);
    }
    a->layout = layout;
    return TSR_OK;
}

static uint64_t least_loaded(const assignment *a, const tsr_holders *holders, uint64_t first)
{
    const uint64_t *behind = a->copies.items;
    uint64_t best = UINT64_MAX;
    for (size_t k = 0; k < a->copies.count; k++) {
        uint64_t holder = first + behind[k];
        if (!tsr_holders_are_all(holders) && !tsr_holders_have(holders, holder)) continue;
        if (best == UINT64_MAX || a->loads[holder] < a->loads[best]) best = holder;
    }
    return best;
}

static tsr_status assign_tensor(assignment *a, uint64_t t, tsr_visit_shard *visit, void *ctx, tsr_error *err)
{
    const tsr_plan_tensor *tensor = &tsr_plan_tensors(a->plan)[t];
    const tsr_plan_class *c = &tsr_plan_classes(a->plan)[tensor->class_number];
    const tsr_layout *layout = c->layout;
    TSR_TRY(list_copies(a, layout, err));
    for (uint64_t r = 0; r < a->plan->ranks; r++) {
        if (!tsr_layout_is_first(layout, r)) continue;
        uint64_t elements = tsr_layout_elements(layout, r), owner = r;
        if (elements == 0) continue;
        if (layout->copies > 1) {
            owner = least_loaded(a, &c->holders, r);
            if (count_copies(c, r, NULL) > 1) a->loads[owner] += elements * tsr_plan_bits(tensor);
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
    tsr_arena *arena; /* for the tensor being visited */
    uint64_t next;    /* next tensor to visit; the ones before it are finished */
} writing;

static uint64_t first_holder(const tsr_plan_class *c)
{
    uint64_t rank = 0;
    while (!tsr_holders_have(&c->holders, rank)) rank++;
    return rank;
}

/* Tensors without elements have no shards to visit. Writes one box for each, the whole tensor, on the first rank that holds
 * it. */
static tsr_status write_empty(writing *w, uint64_t until, tsr_error *err)
{
    for (; w->next < until; w->next++) {
        const tsr_plan_class *c = &tsr_plan_classes(w->plan)[tsr_plan_tensors(w->plan)[w->next].class_number];
        const uint64_t zeros[TSR_MAX_NDIM] = {0};
        const tsr_shard_box whole = {zeros, c->sample->shape, zeros};
        const tsr_shard shard = {c->sample->ndim, c->sample->shape, zeros, &whole, 1};
        if (c->elements == 0) TSR_TRY(w->each(w->ctx, w->next, first_holder(c), &shard, err));
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
