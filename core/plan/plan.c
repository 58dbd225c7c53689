/* Makes a plan: gives every tensor its placements, its layout and its class. Each class is checked and indexed once. */
#include <stdlib.h>

#include "base/cursor.h"
#include "layout/shard.h"
#include "plan/plan_room.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/try.h"
#include "tessera/target.h"

/* ---- writes ---- */

/* Chooses the rank that writes (or first reads) each distinct shard. Shards held by a single rank count toward its load from
 * the start. Each shard that several ranks hold then goes to the least loaded of them, in order, so that only one number per
 * rank is needed. */

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

/* Checks that every shard with elements is held by some rank. Fails with TSR_E_USAGE and the tensor's name
 * otherwise. */
static tsr_status plan_check_holders(const tsr_plan_class *c, uint64_t ranks, tsr_error *err)
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

static tsr_status plan_assign(const tsr_plan *plan, bool shared_only, tsr_visit_shard *visit, void *ctx, tsr_error *err)
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
    tsr_status status = plan_assign(plan, false, write_shard, &w, err);
    if (status == TSR_OK) status = write_empty(&w, plan->tensors.count, err);
    tsr_arena_free(w.arena);
    return status;
}

/* ---- totals ---- */

/* Computes what a plan costs, class by class: counts the elements for one tensor and multiplies by the bits of all tensors
 * of the class. */

typedef struct chunk_reads {
    uint64_t items;
    uint64_t elements;
} chunk_reads;

/* The totals of the reads for one tensor of a class. */
typedef struct class_reads {
    chunk_reads *by_chunk; /* counts every distinct shard once */
    uint64_t items;
    uint64_t elements;
    uint64_t span_elements;
    uint64_t largest; /* elements of the largest item */
} class_reads;

/* The number of elements of the chunk from the first to the last element of a box. */
static uint64_t span_of(const tsr_chunk *chunk, uint32_t ndim, const uint64_t *offsets, const uint64_t *sizes)
{
    tsr_box box = {ndim, chunk->offsets, chunk->sizes};
    uint64_t last[TSR_MAX_NDIM];
    for (uint32_t d = 0; d < ndim; d++) last[d] = offsets[d] + sizes[d] - 1;
    return tsr_box_index(box, last) - tsr_box_index(box, offsets) + 1;
}

static void count_box(const tsr_plan_class *c, const tsr_shard_box *box, class_reads *reads)
{
    tsr_chunk_query query;
    uint64_t chunk, offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], elements;
    uint32_t ndim = c->sample->ndim;
    tsr_chunk_query_start(&query, &c->index, (tsr_box){ndim, box->offsets, box->sizes});
    while (tsr_chunk_query_next(&query, &chunk, offsets, sizes)) {
        uint64_t runs = 1;
        tsr_box_volume((tsr_box){ndim, NULL, sizes}, &elements);
        if (c->layout->flat) {
            const uint32_t split = tsr_flat_split(ndim, box->sizes, sizes, &runs);
            for (uint32_t d = 0; d < split; d++) sizes[d] = 1;
        }
        reads->by_chunk[chunk].items += runs;
        reads->by_chunk[chunk].elements += elements;
        reads->items += runs;
        reads->elements += elements;
        reads->span_elements += runs * span_of(&c->sample->chunks[chunk], ndim, offsets, sizes);
        if (elements / runs > reads->largest) reads->largest = elements / runs;
    }
}

static tsr_status count_shard(const tsr_plan_class *c, uint64_t holder, const tsr_allocator *allocator, class_reads *reads,
                              tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    tsr_shard shard;
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_layout_shard(c->layout, holder, arena, &shard, err);
    for (uint64_t b = 0; status == TSR_OK && b < shard.box_count; b++) count_box(c, &shard.boxes[b], reads);
    tsr_arena_free(arena);
    return status;
}

static tsr_status count_class(const tsr_plan *plan, const tsr_plan_class *c, tsr_rank_load *per_rank, tsr_arena *arena,
                              class_reads *reads, tsr_error *err)
{
    reads->by_chunk = tsr_arena_array(arena, c->sample->chunk_count, sizeof *reads->by_chunk, err);
    if (!reads->by_chunk) return TSR_E_NOMEM;
    for (uint64_t r = 0; r < plan->ranks; r++) {
        uint64_t elements = tsr_layout_elements(c->layout, r), bytes = elements * c->element_bits / 8;
        if (tsr_holders_have(&c->holders, r)) per_rank[r].held += bytes;
        if (c->layout->copies == 1) per_rank[r].read += bytes;
        if (elements == 0 || !tsr_layout_is_first(c->layout, r)) continue;
        TSR_TRY(count_shard(c, r, plan->host->allocator, reads, err));
    }
    return TSR_OK;
}

/* Adds up the reads per file, up to the highest file number that is read. */
static tsr_status add_files(const tsr_plan *plan, const class_reads *reads, tsr_vec *files, tsr_error *err)
{
    for (uint64_t t = 0; t < plan->tensors.count; t++) {
        const tsr_plan_tensor *tensor = &tsr_plan_tensors(plan)[t];
        const tsr_entry *entry = tensor->packed;
        const chunk_reads *by_chunk = reads[tensor->class_number].by_chunk;
        for (uint64_t i = 0; i < entry->chunk_count; i++) {
            uint32_t file = tsr_plan_source(tensor, i)->file;
            if (by_chunk[i].items == 0 || file == TSR_NO_FILE) continue;
            while (files->count <= file) {
                if (!tsr_vec_push(files, err)) return TSR_E_NOMEM;
            }
            tsr_file_load *load = (tsr_file_load *)files->items + file;
            load->reads += by_chunk[i].items;
            load->bytes += by_chunk[i].elements * tsr_plan_bits(tensor) / 8;
        }
    }
    return TSR_OK;
}

typedef struct shared_reads {
    const tsr_plan *plan;
    tsr_rank_load *per_rank;
} shared_reads;

static tsr_status count_shared(void *ctx, uint64_t tensor, uint64_t first, uint64_t owner, uint64_t elements, tsr_error *err)
{
    const shared_reads *to = ctx;
    (void)first;
    (void)err;
    to->per_rank[owner].read += elements * tsr_plan_bits(&tsr_plan_tensors(to->plan)[tensor]) / 8;
    return TSR_OK;
}

static void sum_up(const tsr_plan *plan, const class_reads *reads, tsr_rank_load *per_rank, tsr_plan_totals *out)
{
    double held = 0;
    for (uint64_t r = 0; r < plan->ranks; r++) {
        per_rank[r].received = per_rank[r].held - per_rank[r].read;
        if (per_rank[r].held > out->held_max) out->held_max = per_rank[r].held;
        held += (double)per_rank[r].held;
    }
    for (size_t i = 0; i < plan->classes.count; i++) {
        const tsr_plan_class *c = &tsr_plan_classes(plan)[i];
        out->reads += reads[i].items * c->tensors;
        out->bytes += reads[i].elements * c->element_bits / 8;
        out->span_bytes += reads[i].span_elements * c->element_bits / 8;
    }
    for (uint64_t t = 0; t < plan->tensors.count; t++) {
        const tsr_plan_tensor *tensor = &tsr_plan_tensors(plan)[t];
        uint64_t bytes = reads[tensor->class_number].largest * tsr_plan_bits(tensor) / 8;
        if (bytes > out->largest_read) out->largest_read = bytes;
    }
    out->imbalance = held > 0 ? (double)out->held_max * (double)plan->ranks / held : 0;
    out->amplification = out->bytes ? (double)out->span_bytes / (double)out->bytes : 1;
}

static tsr_status count_all(const tsr_plan *plan, class_reads *reads, tsr_rank_load *per_rank, tsr_vec *files,
                            tsr_arena *arena, tsr_error *err)
{
    shared_reads shared = {plan, per_rank};
    for (size_t i = 0; i < plan->classes.count; i++) {
        TSR_TRY(count_class(plan, &tsr_plan_classes(plan)[i], per_rank, arena, &reads[i], err));
    }
    TSR_TRY(plan_assign(plan, true, count_shared, &shared, err));
    return add_files(plan, reads, files, err);
}

tsr_status tsr_plan_count_totals(const tsr_plan *plan, tsr_arena *arena, tsr_plan_totals *out, tsr_error *err)
{
    class_reads *reads = tsr_arena_array(arena, plan->classes.count, sizeof *reads, err);
    tsr_rank_load *per_rank = reads ? tsr_arena_array(arena, plan->ranks, sizeof *per_rank, err) : NULL;
    if (!per_rank) return TSR_E_NOMEM;
    tsr_vec files = tsr_vec_of(plan->host->allocator, sizeof(tsr_file_load));
    *out = (tsr_plan_totals){.ranks = plan->ranks, .per_rank = per_rank, .classes = plan->classes.count};
    tsr_status status = count_all(plan, reads, per_rank, &files, arena, err);
    tsr_file_load *per_file = status == TSR_OK ? tsr_arena_array(arena, files.count, sizeof *per_file, err) : NULL;
    if (per_file && files.count) memcpy(per_file, files.items, files.count * sizeof *per_file);
    out->per_file = per_file;
    out->file_count = (uint32_t)files.count;
    tsr_vec_free(&files);
    if (status != TSR_OK || !per_file) return status == TSR_OK ? TSR_E_NOMEM : status;
    sum_up(plan, reads, per_rank, out);
    return TSR_OK;
}

/* ---- plan ---- */

/* The bytes to be read from each file, so far. */
typedef struct source_loads {
    tsr_vec bytes; /* of uint64_t, by file number */
} source_loads;

typedef struct maker {
    tsr_plan *plan;
    tsr_map *layouts;    /* placements and shape → number in layout_list */
    tsr_map *classes;    /* layout and chunk boxes → number of the class */
    tsr_vec layout_list; /* of const tsr_layout * */
    source_loads loads;
} maker;

/* Copies an entry with float4 counted in single elements as one that counts pairs: the last dimension of its shape and
 * chunks is halved. */
static tsr_status pack_entry(const tsr_entry *entry, tsr_arena *arena, const tsr_entry **out, tsr_error *err)
{
    uint32_t ndim = entry->ndim, last = ndim - 1;
    tsr_entry *copy = TSR_ARENA_NEW(arena, tsr_entry, err);
    uint64_t *numbers = copy ? tsr_arena_array(arena, 2 * entry->chunk_count + 1, ndim * sizeof *numbers, err) : NULL;
    tsr_chunk *chunks = numbers ? tsr_arena_array(arena, entry->chunk_count, sizeof *chunks, err) : NULL;
    if (!chunks) return TSR_E_NOMEM;
    *copy = *entry;
    memcpy(numbers, entry->shape, ndim * sizeof *numbers);
    bool even = tsr_dtype_pack(&copy->dtype, &numbers[last]);
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        uint64_t *offsets = numbers + (2 * i + 1) * ndim, *sizes = offsets + ndim;
        memcpy(offsets, entry->chunks[i].offsets, ndim * sizeof *offsets);
        memcpy(sizes, entry->chunks[i].sizes, ndim * sizeof *sizes);
        even = even && offsets[last] % 2 == 0 && sizes[last] % 2 == 0;
        offsets[last] /= 2;
        sizes[last] /= 2;
        chunks[i] = entry->chunks[i];
        chunks[i].offsets = offsets;
        chunks[i].sizes = sizes;
    }
    TSR_FAIL_IF(!even, err, TSR_E_UNSUPPORTED, "'%.*s' is float4, and the target splits it in the middle of a byte",
                TSR_STR_ARG(entry->fqn));
    copy->shape = numbers;
    copy->chunks = chunks;
    *out = copy;
    return TSR_OK;
}

/* Adds a key unless the map already has it; an existing value is not replaced. */
static tsr_status put_key(tsr_map *map, tsr_str key, uint32_t value, tsr_arena *arena, tsr_error *err)
{
    uint32_t *existing;
    bool inserted;
    tsr_str kept = tsr_arena_str(arena, key, err);
    if (!kept.data) return TSR_E_NOMEM;
    return tsr_map_put(map, kept, value, &existing, &inserted, err);
}

/* Finds the layout for a shape and its placements, or makes it on first use. */
static tsr_status find_layout(maker *m, const tsr_entry *entry, const tsr_placement *placements, uint32_t *number,
                              tsr_error *err)
{
    tsr_arena *arena = m->plan->arena;
    const tsr_mesh *mesh = &m->plan->target->mesh;
    size_t head = mesh->dim_count * sizeof *placements, size = head + entry->ndim * sizeof *entry->shape;
    char key[TSR_MESH_MAX_DIMS * sizeof *placements + TSR_MAX_NDIM * sizeof *entry->shape];
    memcpy(key, placements, head);
    if (entry->ndim) memcpy(key + head, entry->shape, size - head);
    *number = tsr_map_get(m->layouts, (tsr_str){key, size}, UINT32_MAX);
    if (*number != UINT32_MAX) return TSR_OK;
    *number = (uint32_t)m->layout_list.count;
    TSR_TRY(put_key(m->layouts, (tsr_str){key, size}, *number, arena, err));
    tsr_layout *layout = TSR_ARENA_NEW(arena, tsr_layout, err), **slot = layout ? tsr_vec_push(&m->layout_list, err) : NULL;
    if (!slot) return TSR_E_NOMEM;
    *slot = layout;
    return tsr_layout_over_mesh(&(tsr_sharding){mesh, placements, m->plan->target->strided},
                                (tsr_shape){entry->ndim, entry->shape}, arena, layout, err);
}

/* Adds a layout supplied by the caller. */
static tsr_status take_layout(maker *m, const tsr_entry *entry, const tsr_layout *layout, uint32_t *number, tsr_error *err)
{
    tsr_box shape = {entry->ndim, NULL, entry->shape};
    bool fits = layout->ranks == m->plan->ranks && tsr_box_equal(shape, (tsr_box){layout->ndim, NULL, layout->shape});
    TSR_FAIL_IF(!fits, err, TSR_E_USAGE, "the layout given for '%.*s' has a different shape or number of ranks",
                TSR_STR_ARG(entry->fqn));
    const tsr_layout **slot = tsr_vec_push(&m->layout_list, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = layout;
    *number = (uint32_t)m->layout_list.count - 1;
    return TSR_OK;
}

/* What tensors of one class have in common, except for the chunks. */
typedef struct placing {
    uint32_t layout; /* number in layout_list */
    const tsr_placement *placements;
    tsr_holders holders;
} placing;

static tsr_status choose_layout(maker *m, const tsr_plan_options *options, tsr_plan_tensor *tensor, placing *out,
                                tsr_error *err)
{
    const tsr_layout *own = options && options->layout ? options->layout(options->layout_ctx, tensor->entry) : NULL;
    *out = (placing){.holders = {.mesh = &m->plan->target->mesh}};
    if (own) return take_layout(m, tensor->packed, own, &out->layout, err);
    TSR_TRY(
        tsr_target_placements(m->plan->target, tensor->packed, m->plan->arena, &out->placements, &tensor->replicated, err));
    TSR_TRY(tsr_target_holders(m->plan->target, tensor->packed, &out->holders, err));
    return find_layout(m, tensor->packed, out->placements, &out->layout, err);
}

static uint64_t hash_boxes(const tsr_entry *entry)
{
    uint64_t hash = entry->chunk_count;
    size_t size = entry->ndim * sizeof(uint64_t);
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        hash = tsr_hash_bytes(entry->chunks[i].offsets, size, hash);
        hash = tsr_hash_bytes(entry->chunks[i].sizes, size, hash);
    }
    return hash;
}

static bool same_boxes(const tsr_entry *a, const tsr_entry *b)
{
    if (a->ndim != b->ndim || a->chunk_count != b->chunk_count) return false;
    for (uint64_t i = 0; i < a->chunk_count; i++) {
        tsr_box box_a = {a->ndim, a->chunks[i].offsets, a->chunks[i].sizes};
        if (!tsr_box_equal(box_a, (tsr_box){a->ndim, b->chunks[i].offsets, b->chunks[i].sizes})) return false;
    }
    return true;
}

static tsr_status check_class(const maker *m, const tsr_plan_class *c, tsr_error *err)
{
    const tsr_entry *entry = c->sample;
    TSR_TRY(tsr_entry_must_tile(entry, m->plan->host->allocator, err));
    bool cut = c->layout->dims == NULL;
    for (uint32_t d = 0; d < entry->ndim && !cut; d++) cut = c->layout->dims[d].positions > 1;
    TSR_FAIL_IF(cut && tsr_dtype_size(entry->dtype) == 0, err, TSR_E_UNSUPPORTED,
                "'%.*s' is %s, whose elements are not byte-aligned, so it cannot be split", TSR_STR_ARG(entry->fqn),
                tsr_dtype_describe(entry->dtype)->name);
    return plan_check_holders(c, m->plan->ranks, err);
}

static tsr_status add_class(maker *m, const tsr_entry *entry, const placing *place, tsr_error *err)
{
    tsr_plan_class *c = tsr_vec_push(&m->plan->classes, err);
    if (!c) return TSR_E_NOMEM;
    c->sample = entry;
    c->layout = ((const tsr_layout *const *)m->layout_list.items)[place->layout];
    c->placements = place->placements;
    c->holders = place->holders;
    TSR_TRY(check_class(m, c, err));
    tsr_entry_elements(entry, &c->elements); /* cannot overflow, since the tiling was checked */
    return tsr_chunk_index_build(entry->ndim, entry->chunks, entry->chunk_count, m->plan->arena, &c->index, err);
}

/* Finds the class of a tensor, or adds it. If another class has the same hash but different boxes, adds a second class. */
static tsr_status find_class(maker *m, const tsr_entry *entry, const placing *place, uint32_t *number, tsr_error *err)
{
    /* float6 tensors cannot be split, so the checks of a class depend on the element size. The pointer to a rule's list of
     * ranks identifies the rule. */
    const tsr_holders *holders = &place->holders;
    const uint64_t key[] = {place->layout,
                            hash_boxes(entry),
                            tsr_dtype_size(entry->dtype) == 0,
                            (uintptr_t)holders->ranks,
                            holders->at_coordinate ? holders->mesh_dim + UINT64_C(1) : 0,
                            holders->coordinate};
    tsr_str text = {(const char *)key, sizeof key};
    *number = tsr_map_get(m->classes, text, UINT32_MAX);
    if (*number != UINT32_MAX && same_boxes(tsr_plan_classes(m->plan)[*number].sample, entry)) return TSR_OK;
    *number = (uint32_t)m->plan->classes.count;
    TSR_TRY(add_class(m, entry, place, err));
    return put_key(m->classes, text, *number, m->plan->arena, err);
}

/* Adds up the bytes of all tensors. Below this limit, later sums of their bytes and bits cannot overflow 64 bits. */
static tsr_status count_bytes(tsr_plan *plan, const tsr_entry *entry, tsr_error *err)
{
    uint64_t bytes;
    bool fits = tsr_entry_bytes(entry, &bytes) && tsr_add_u64(plan->byte_total, bytes, &plan->byte_total);
    TSR_FAIL_IF(!fits || plan->byte_total >> 60, err, TSR_E_LIMIT, "the tensors up to '%.*s' have 2^60 bytes or more",
                TSR_STR_ARG(entry->fqn));
    return TSR_OK;
}

/* ---- which copy of a chunk is read ---- */

/* Matches replicas with their chunks by sorting both lists by box, and then chooses for every chunk the copy whose file has
 * the fewest bytes to read. */

typedef struct sources_copy {
    uint32_t ndim;
    const tsr_chunk *chunk;
    uint64_t number; /* number of the chunk; replicas are numbered after all chunks */
} sources_copy;

static int compare_boxes(const sources_copy *a, const sources_copy *b)
{
    for (uint32_t d = 0; d < a->ndim; d++) {
        const tsr_chunk *x = a->chunk, *y = b->chunk;
        if (x->offsets[d] != y->offsets[d]) return x->offsets[d] < y->offsets[d] ? -1 : 1;
        if (x->sizes[d] != y->sizes[d]) return x->sizes[d] < y->sizes[d] ? -1 : 1;
    }
    return 0;
}

static int compare_copies(const void *left, const void *right)
{
    const sources_copy *a = left, *b = right;
    int order = compare_boxes(a, b);
    return order ? order : (a->number > b->number) - (a->number < b->number);
}

/* The bytes to be read from a file. A missing file has more than any other. */
static uint64_t load_of(const source_loads *loads, uint32_t file)
{
    if (file == TSR_NO_FILE) return UINT64_MAX;
    return file < loads->bytes.count ? ((const uint64_t *)loads->bytes.items)[file] : 0;
}

static tsr_status add_load(source_loads *loads, const tsr_chunk *chunk, tsr_error *err)
{
    if (chunk->file == TSR_NO_FILE) return TSR_OK;
    while (loads->bytes.count <= chunk->file) {
        if (!tsr_vec_push(&loads->bytes, err)) return TSR_E_NOMEM;
    }
    ((uint64_t *)loads->bytes.items)[chunk->file] += chunk->byte_length;
    return TSR_OK;
}

/* Chooses the best copy in each run of equal boxes. The first of a run is the chunk, unless no chunk has that box. */
static tsr_status choose(source_loads *loads, const sources_copy *copies, uint64_t count, uint64_t chunk_count,
                         const tsr_chunk **chosen, tsr_error *err)
{
    for (uint64_t i = 0, end; i < count; i = end) {
        const tsr_chunk *best = copies[i].chunk;
        for (end = i + 1; end < count && compare_boxes(&copies[i], &copies[end]) == 0; end++) {
            if (load_of(loads, copies[end].chunk->file) < load_of(loads, best->file)) best = copies[end].chunk;
        }
        if (copies[i].number >= chunk_count) continue;
        chosen[copies[i].number] = best;
        TSR_TRY(add_load(loads, best, err));
    }
    return TSR_OK;
}

/* Chooses a copy for each of the entry's chunks: the chunk itself, or the one of entry->replicas whose file has the fewest
 * bytes to read so far. In a tie, prefers the chunk, then the first copy. A missing file is chosen only if there is no other
 * copy. *out is NULL for an entry without replicas. Updates the loads. */
static tsr_status choose_sources(source_loads *loads, const tsr_entry *entry, tsr_arena *arena, const tsr_chunk *const **out,
                                 tsr_error *err)
{
    const tsr_allocator *allocator = tsr_arena_allocator(arena);
    uint64_t count = entry->chunk_count + entry->replica_count;
    *out = NULL;
    if (entry->replica_count == 0) {
        for (uint64_t i = 0; i < entry->chunk_count; i++) TSR_TRY(add_load(loads, &entry->chunks[i], err));
        return TSR_OK;
    }
    const tsr_chunk **chosen = tsr_arena_array(arena, entry->chunk_count, sizeof *chosen, err);
    sources_copy *copies = chosen ? tsr_alloc(allocator, count, sizeof *copies, err) : NULL;
    if (!copies) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        copies[i] = (sources_copy){entry->ndim, &entry->chunks[i], i};
        chosen[i] = &entry->chunks[i];
    }
    for (uint64_t i = entry->chunk_count; i < count; i++) {
        copies[i] = (sources_copy){entry->ndim, &entry->replicas[i - entry->chunk_count], i};
    }
    qsort(copies, count, sizeof *copies, compare_copies);
    tsr_status status = choose(loads, copies, count, entry->chunk_count, chosen, err);
    tsr_free(allocator, copies, count, sizeof *copies);
    *out = chosen;
    return status;
}

static tsr_status add_tensor(maker *m, const tsr_entry *entry, const tsr_plan_options *options, tsr_error *err)
{
    tsr_plan *plan = m->plan;
    placing place;
    tsr_plan_tensor tensor = {.entry = entry, .packed = entry};
    TSR_FAIL_IF(entry->ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "'%.*s' has %u dimensions; at most %u are supported",
                TSR_STR_ARG(entry->fqn), entry->ndim, TSR_MAX_NDIM);
    TSR_TRY(count_bytes(plan, entry, err));
    if (entry->dtype == TSR_FLOAT4_E2M1FN && entry->ndim) TSR_TRY(pack_entry(entry, plan->arena, &tensor.packed, err));
    TSR_TRY(choose_layout(m, options, &tensor, &place, err));
    TSR_TRY(find_class(m, tensor.packed, &place, &tensor.class_number, err));
    TSR_TRY(choose_sources(&m->loads, entry, plan->arena, &tensor.sources, err));
    tsr_plan_class *c = (tsr_plan_class *)plan->classes.items + tensor.class_number;
    c->tensors++;
    c->element_bits += tsr_plan_bits(&tensor);
    tsr_plan_tensor *slot = tsr_vec_push(&plan->tensors, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = tensor;
    return TSR_OK;
}

/* Tensor subclasses are not planned: their inner tensors stay together, so they can be neither cut nor joined. */
static tsr_status refuse_cut(const maker *m, const tsr_entry *entry, tsr_error *err)
{
    const tsr_target *target = m->plan->target;
    const tsr_placement *placements;
    bool cut = entry->is_sharded, replicated = false;
    if (!tsr_entry_is_subclass(entry)) return TSR_OK;
    if (!cut) TSR_TRY(tsr_target_placements(target, entry, m->plan->arena, &placements, &replicated, err));
    for (uint32_t d = 0; d < target->mesh.dim_count && !cut && !replicated; d++)
        cut = placements[d].kind != TSR_REPLICATE && target->mesh.shape[d] > 1;
    TSR_FAIL_IF(cut, err, TSR_E_UNSUPPORTED, "'%.*s' is a tensor of the class %.*s, %s; leave it out with --exclude%s",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(entry->type),
                entry->is_sharded ? "whose shards cannot be joined or cut" : "which cannot be cut",
                entry->is_sharded ? "" : ", or replicate it");
    return TSR_OK;
}

static tsr_status add_tensors(maker *m, const tsr_plan_options *options, tsr_error *err)
{
    const tsr_catalog *catalog = m->plan->catalog;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        bool wanted = !options || !options->want || options->want(options->want_ctx, entry->fqn);
        if (wanted && entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(add_tensor(m, entry, options, err));
        else if (wanted && !(options && options->layout)) TSR_TRY(refuse_cut(m, entry, err));
    }
    return TSR_OK;
}

static tsr_status make(tsr_plan *plan, const tsr_plan_options *options, tsr_error *err)
{
    const tsr_allocator *allocator = plan->host->allocator;
    maker m = {.plan = plan};
    m.layout_list = tsr_vec_of(allocator, sizeof(tsr_layout *));
    m.loads.bytes = tsr_vec_of(allocator, sizeof(uint64_t));
    m.layouts = tsr_map_new(allocator, 0, err);
    m.classes = m.layouts ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = m.classes ? tsr_target_check(plan->target, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = add_tensors(&m, options, err);
    tsr_vec_free(&m.layout_list);
    tsr_vec_free(&m.loads.bytes);
    tsr_map_free(m.layouts);
    tsr_map_free(m.classes);
    return status;
}

tsr_status tsr_plan_new(const tsr_catalog *catalog, const tsr_target *target, const tsr_plan_options *options,
                        const tsr_host *host, tsr_plan **out, tsr_error *err)
{
    tsr_plan_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_plan_options, err));
    const uint64_t ranks = tsr_mesh_ranks(&target->mesh);
    TSR_FAIL_IF(ranks > TSR_PLAN_MAX_RANKS, err, TSR_E_LIMIT, "the mesh has %llu ranks; a plan can have at most %llu",
                (unsigned long long)ranks, (unsigned long long)TSR_PLAN_MAX_RANKS);
    tsr_arena *arena = tsr_arena_new(host->allocator, host->limits.memory_bytes, err);
    tsr_plan *plan = arena ? TSR_ARENA_NEW(arena, tsr_plan, err) : NULL;
    if (!plan) {
        tsr_arena_free(arena);
        return TSR_E_NOMEM;
    }
    *plan = (tsr_plan){.host = host, .catalog = catalog, .target = target, .arena = arena, .ranks = ranks};
    plan->classes = tsr_vec_of(host->allocator, sizeof(tsr_plan_class));
    plan->tensors = tsr_vec_of(host->allocator, sizeof(tsr_plan_tensor));
    plan->flat_units = own.flat_units;
    plan->flat_unit_count = own.flat_unit_count;
    plan->storage = own.storage;
    tsr_status status = make(plan, &own, err);
    if (status != TSR_OK) {
        tsr_plan_free(plan);
        return status;
    }
    *out = plan;
    return TSR_OK;
}

void tsr_plan_free(tsr_plan *plan)
{
    if (!plan) return;
    tsr_vec_free(&plan->classes);
    tsr_vec_free(&plan->tensors);
    tsr_arena_free(plan->arena);
}

uint64_t tsr_plan_ranks(const tsr_plan *plan)
{
    return plan->ranks;
}
const tsr_fsdp1_unit *tsr_plan_flat_units(const tsr_plan *plan, uint64_t *count)
{
    *count = plan->flat_unit_count;
    return plan->flat_units;
}
uint64_t tsr_plan_count(const tsr_plan *plan)
{
    return plan->tensors.count;
}

tsr_planned tsr_plan_tensor_at(const tsr_plan *plan, uint64_t index)
{
    const tsr_plan_tensor *tensor = &tsr_plan_tensors(plan)[index];
    const tsr_plan_class *c = &tsr_plan_classes(plan)[tensor->class_number];
    return (tsr_planned){tensor->entry, tensor->packed->shape, c->placements, c->layout, c->holders, tensor->replicated};
}
