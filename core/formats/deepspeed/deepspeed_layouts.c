/* Joins what tensor-parallel ranks hold. */
#include "formats/deepspeed/deepspeed_weights.h"

#include "formats/common/rank_entries.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* Names of parameters are searched for in a map. Other patterns are few, and every name is matched with each. */
enum { MOST_PATTERNS = 64, MOST_PIECES = 4096, AFFINE_VERSION = 1 };

typedef enum category { AFFINE, REPLICATED, AVERAGED, ROWS, VOCABULARY, HALVES, PARTS, UNSUPPORTED, CATEGORIES } category;

typedef struct pattern {
    tsr_regex *regex;
    uint32_t number;
} pattern;

/* Patterns of one category, and what each stands for. */
typedef struct patterns {
    tsr_map *names; /* patterns that match one name → number */
    tsr_vec others; /* of pattern */
} patterns;

struct tsr_ds_layouts {
    const tsr_ds_files *files;
    tsr_arena *arena;
    const tsr_value *info;
    patterns of[CATEGORIES];
    tsr_vec items;             /* of const tsr_value *: by number, the map or the parts of a parameter; otherwise NULL */
    tsr_map *buffers;          /* names that are not of parameters */
    uint64_t vocabulary, work; /* what is left of TSR_REGEX_WORK */
    tsr_error *err;
};

/* ---- patterns ---- */

/* The name that a pattern such as "^model\.norm\.weight$" matches alone. Its data is NULL for other patterns. */
static tsr_str only_name(const tsr_ds_layouts *l, tsr_str text)
{
    const tsr_str none = {NULL, 0};
    if (text.size < 2 || text.data[0] != '^' || text.data[text.size - 1] != '$') return none;
    char *name = tsr_arena_array(l->arena, text.size, 1, NULL);
    size_t size = 0;
    for (size_t i = 1; name && i + 1 < text.size; i++) {
        const bool is_escaped = text.data[i] == '\\' && i + 2 < text.size;
        const char c = text.data[i += is_escaped];
        const bool is_word = tsr_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (is_escaped ? is_word : !is_word && c != '-') return none;
        name[size++] = c;
    }
    return (tsr_str){name, size};
}

static tsr_status add_pattern(tsr_ds_layouts *l, category of, const tsr_value *text, const tsr_value *item)
{
    patterns *p = &l->of[of];
    TSR_FAIL_IF(text->kind != TSR_VALUE_STR, l->err, TSR_E_FORMAT, "a pattern is not a text");
    const tsr_value **place = tsr_vec_push(&l->items, l->err);
    if (!place) return TSR_E_NOMEM;
    *place = item;
    const uint32_t number = (uint32_t)l->items.count - 1;
    const tsr_str name = only_name(l, text->text);
    if (name.data) return tsr_map_put(p->names, name, number, NULL, NULL, l->err);
    TSR_FAIL_IF(p->others.count == MOST_PATTERNS, l->err, TSR_E_LIMIT,
                "more than %u patterns are not the name of one parameter", (unsigned)MOST_PATTERNS);
    pattern *other = tsr_vec_push(&p->others, l->err);
    if (!other) return TSR_E_NOMEM;
    other->number = number;
    return tsr_regex_compile(text->text, l->files->checkpoint->host->allocator, l->arena, &other->regex, l->err);
}

/* Adds the texts of a LIST or TUPLE, or the keys of a DICT, whose values then are their items. */
static tsr_status add_patterns(tsr_ds_layouts *l, category of, const tsr_value *list, const tsr_value *item)
{
    const bool is_dict = list && list->kind == TSR_VALUE_DICT;
    const bool is_list = list && (list->kind == TSR_VALUE_LIST || list->kind == TSR_VALUE_TUPLE);
    for (size_t i = 0; (is_dict || is_list) && i < list->count; i += is_dict ? 2 : 1)
        TSR_TRY(add_pattern(l, of, list->items[i], is_dict && !item ? list->items[i + 1] : item));
    return TSR_OK;
}

/* Sets *number to that of the first pattern that matches, or to UINT32_MAX. */
static tsr_status find(tsr_ds_layouts *l, category of, tsr_str name, uint32_t *number)
{
    const pattern *others = l->of[of].others.items;
    *number = tsr_map_get(l->of[of].names, name, UINT32_MAX);
    for (size_t i = 0; *number == UINT32_MAX && i < l->of[of].others.count; i++) {
        bool matches;
        TSR_TRY(tsr_regex_match(others[i].regex, name, &l->work, &matches, l->err));
        if (matches) *number = others[i].number;
    }
    return TSR_OK;
}

static tsr_status read_info(tsr_ds_layouts *l)
{
    static const struct {
        category of;
        const char *key;
    } lists[] = {{REPLICATED, "tp_replicated_parameter_patterns"},  {AVERAGED, "parameter_to_average_patterns"},
                 {ROWS, "parameter_with_row_parallelism_patterns"}, {VOCABULARY, "vocabulary_parameter_patterns"},
                 {HALVES, "parameter_with_2_sub_params_cat_dim_0"}, {UNSUPPORTED, "autotp_unsupported_parameter_patterns"}};
    const tsr_value *affine = tsr_ds_dict(l->info, "affine_map"), *parts = tsr_ds_list(l->info, "parameter_with_sub_params");
    uint64_t version = AFFINE_VERSION;
    tsr_ds_number(tsr_ds_get(affine, "version"), &version);
    TSR_FAIL_IF(version > AFFINE_VERSION, l->err, TSR_E_UNSUPPORTED, "affine_map has version %llu; version %u is known",
                (unsigned long long)version, (unsigned)AFFINE_VERSION);
    TSR_TRY(add_patterns(l, AFFINE, tsr_ds_dict(affine, "params"), NULL));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        TSR_TRY(add_patterns(l, lists[i].of, tsr_ds_get(l->info, lists[i].key), NULL));
    for (size_t i = 0; i < tsr_ds_count(parts); i++)
        TSR_TRY(add_patterns(l, PARTS, tsr_ds_get(parts->items[i], "patterns"), parts->items[i]));
    if (!tsr_ds_number(tsr_ds_get(l->info, "original_vocab_size"), &l->vocabulary)) l->vocabulary = UINT64_MAX;
    for (uint32_t c = 0; c < l->files->column_count; c++) {
        const tsr_ds_file *model = l->files->columns[c].model;
        if (model) TSR_TRY(tsr_ds_add_names(tsr_ds_list(model->root, "buffer_names"), l->buffers, l->err));
    }
    return TSR_OK;
}

static tsr_status open_all(tsr_ds_layouts *l)
{
    const tsr_allocator *allocator = l->files->checkpoint->host->allocator;
    l->items = tsr_vec_of(allocator, sizeof(const tsr_value *));
    l->buffers = tsr_map_new(allocator, 0, l->err);
    for (unsigned c = 0; l->buffers && c < CATEGORIES; c++) {
        l->of[c] = (patterns){tsr_map_new(allocator, 0, l->err), tsr_vec_of(allocator, sizeof(pattern))};
        if (!l->of[c].names) return TSR_E_NOMEM;
    }
    return l->buffers ? read_info(l) : TSR_E_NOMEM;
}

tsr_status tsr_ds_layouts_open(const tsr_ds_files *files, tsr_ds_layouts **out, tsr_error *err)
{
    const tsr_ds_file *first = files->column_count ? files->columns[0].model : NULL;
    const tsr_value *info = first ? tsr_ds_dict(first->root, "universal_checkpoint_info") : NULL;
    tsr_error why = {0};
    *out = NULL;
    if (files->tensor_ranks < 2 || !info) return TSR_OK;
    tsr_ds_layouts *l = TSR_ARENA_NEW(files->checkpoint->arena, tsr_ds_layouts, err);
    if (!l) return TSR_E_NOMEM;
    *l = (tsr_ds_layouts){
        .files = files, .arena = files->checkpoint->arena, .info = info, .work = TSR_REGEX_WORK, .err = &why};
    const tsr_status status = open_all(l);
    l->err = err;
    if (status == TSR_OK) {
        *out = l;
        return TSR_OK;
    }
    tsr_ds_layouts_close(l);
    if (status == TSR_E_NOMEM) {
        if (err) *err = why;
        return status;
    }
    return tsr_finding_add_at(files->checkpoint->findings, (tsr_rated_rule){"torch/rank-differs", TSR_NOTE},
                              (tsr_place){tsr_ds_file_name(files, first), TSR_NO_POSITION, {NULL, 0}}, err,
                              "universal_checkpoint_info is not understood, so tensors are listed per rank: %s",
                              why.message);
}

void tsr_ds_layouts_close(tsr_ds_layouts *l)
{
    for (unsigned c = 0; l && c < CATEGORIES; c++) {
        tsr_map_free(l->of[c].names);
        if (l->of[c].others.items) tsr_vec_free(&l->of[c].others);
    }
    if (l && l->items.items) tsr_vec_free(&l->items);
    if (l) tsr_map_free(l->buffers);
}

/* ---- which boxes ---- */

/* A box that a rank holds. */
typedef struct piece {
    uint32_t rank;
    tsr_box in_rank, in_whole; /* of the same sizes */
} piece;

typedef struct joining {
    tsr_ds_layouts *l;
    const tsr_entry *const *held;
    uint32_t ranks, ndim;
    uint64_t *shape; /* of the whole tensor */
    tsr_vec pieces;
    bool is_vocabulary;
    bool fits; /* false: the description is not of these tensors */
} joining;

/* Adds a box with these sizes; returns its offsets for the caller to set, those in the rank's tensor first. */
static uint64_t *add_piece(joining *j, uint32_t rank, const uint64_t *sizes)
{
    piece *added = tsr_vec_push(&j->pieces, j->l->err);
    uint64_t *numbers = added ? tsr_arena_array(j->l->arena, 3 * (size_t)j->ndim, sizeof *numbers, j->l->err) : NULL;
    if (!numbers) return NULL;
    if (j->ndim) memcpy(numbers, sizes, j->ndim * sizeof *sizes);
    *added = (piece){rank, {j->ndim, numbers + j->ndim, numbers}, {j->ndim, numbers + 2 * (size_t)j->ndim, numbers}};
    return numbers + j->ndim;
}

static tsr_status add_whole(joining *j)
{
    if (j->ndim) memcpy(j->shape, j->held[0]->shape, j->ndim * sizeof *j->shape);
    for (uint32_t r = 0; r < j->ranks; r++)
        if (!add_piece(j, r, j->held[r]->shape)) return TSR_E_NOMEM;
    return TSR_OK;
}

/* Concatenates parts along `dim`. Part p of rank r has widths[p * ranks + r]; NULL: `count` equal parts. */
static tsr_status add_parts(joining *j, uint32_t dim, uint64_t count, const uint64_t *widths)
{
    uint64_t *sizes = tsr_arena_array(j->l->arena, j->ndim, sizeof *sizes, j->l->err);
    uint64_t *from = tsr_arena_array(j->l->arena, j->ranks, sizeof *from, j->l->err);
    if (!sizes || !from) return TSR_E_NOMEM;
    j->fits = dim < j->ndim && count <= MOST_PIECES / j->ranks;
    if (!j->fits) return TSR_OK;
    memcpy(j->shape, j->held[0]->shape, j->ndim * sizeof *j->shape);
    memcpy(sizes, j->shape, j->ndim * sizeof *sizes);
    j->shape[dim] = 0;
    for (uint64_t p = 0; p < count; p++)
        for (uint32_t r = 0; r < j->ranks; r++) {
            sizes[dim] = widths ? widths[p * j->ranks + r] : j->held[r]->shape[dim] / count;
            uint64_t *offsets = add_piece(j, r, sizes);
            if (!offsets) return TSR_E_NOMEM;
            offsets[dim] = from[r];
            offsets[j->ndim + dim] = j->shape[dim];
            from[r] += sizes[dim];
            if (sizes[dim] > UINT32_MAX) j->fits = false; /* so that sums cannot overflow */
            j->shape[dim] += sizes[dim];
        }
    for (uint32_t r = 0; r < j->ranks; r++) j->fits = j->fits && from[r] == j->held[r]->shape[dim];
    return TSR_OK;
}

/* {patterns, shape, partition_dim}: the shape has a number for each dim, and a tuple of sizes for partition_dim. */
static tsr_status add_sub_params(joining *j, tsr_str name, const tsr_value *item)
{
    const tsr_value *shape = tsr_ds_get(item, "shape"), *all = tsr_ds_dict(j->l->info, "sub_param_shard_widths");
    const tsr_value *own = tsr_ds_get(item, "patterns"), *of_name = NULL;
    uint64_t dim, count = 0;
    j->fits = shape && tsr_ds_number(tsr_ds_get(item, "partition_dim"), &dim) && shape->count == j->ndim && dim < j->ndim;
    if (!j->fits) return TSR_OK;
    const tsr_value *sizes = shape->items[dim];
    const bool is_list = sizes->kind == TSR_VALUE_TUPLE || sizes->kind == TSR_VALUE_LIST;
    for (size_t i = 0; own && i < own->count && !of_name; i++) { /* the widths are listed under the pattern of the name */
        tsr_regex *regex;
        bool matches;
        if (own->items[i]->kind != TSR_VALUE_STR) continue;
        TSR_TRY(tsr_regex_compile(own->items[i]->text, j->l->files->checkpoint->host->allocator, j->l->arena, &regex,
                                  j->l->err));
        TSR_TRY(tsr_regex_match(regex, name, &j->l->work, &matches, j->l->err));
        if (matches && all) of_name = tsr_value_get(all, own->items[i]->text);
    }
    if (is_list) count = sizes->count;
    else j->fits = tsr_ds_number(sizes, &count);
    j->fits = j->fits && count && count <= MOST_PIECES / j->ranks;
    uint64_t *widths = j->fits ? tsr_arena_array(j->l->arena, (size_t)count * j->ranks, sizeof *widths, j->l->err) : NULL;
    if (j->fits && !widths) return TSR_E_NOMEM;
    for (uint64_t p = 0; j->fits && p < count; p++) {
        const tsr_value *row = tsr_ds_item(of_name, (size_t)p);
        uint64_t size = 0;
        if (is_list) j->fits = tsr_ds_number(sizes->items[p], &size) && (row || size % j->ranks == 0);
        for (uint32_t r = 0; j->fits && r < j->ranks; r++) {
            uint64_t *width = &widths[p * j->ranks + r];
            if (row) j->fits = tsr_ds_number(tsr_ds_item(row, r), width);
            else *width = is_list ? size / j->ranks : j->held[r]->shape[dim] / count;
        }
    }
    return j->fits ? add_parts(j, (uint32_t)dim, count, widths) : TSR_OK;
}

/* Where an offset and strides, as for torch.as_strided, begin in a contiguous tensor. False if they are not a box of it. */
static bool to_box(const tsr_value *place, const uint64_t *sizes, uint32_t ndim, const uint64_t *shape, uint64_t *offsets)
{
    const tsr_value *strides = tsr_ds_item(place, 1);
    uint64_t at, step = 1;
    if (!tsr_ds_number(tsr_ds_item(place, 0), &at) || tsr_ds_count(strides) != ndim) return false;
    for (uint32_t d = ndim; d-- > 0; step *= shape[d]) {
        uint64_t stride;
        if (!tsr_ds_number(tsr_ds_item(strides, d), &stride) || (sizes[d] > 1 && stride != step)) return false;
        if (!shape[d]) return false;
        offsets[d] = at / step % shape[d];
    }
    return at < step;
}

static tsr_status add_affine(joining *j, const tsr_value *item)
{
    const tsr_value *ranks = tsr_ds_dict(item, "ranks");
    const uint64_t *shape, *sizes;
    uint64_t elements, rank;
    uint32_t ndim;
    TSR_TRY(tsr_ds_shape(j->l->arena, tsr_ds_get(item, "logical_shape"), &shape, &ndim, &elements, j->l->err));
    j->fits = ndim == j->ndim;
    if (!j->fits) return TSR_OK;
    if (ndim) memcpy(j->shape, shape, ndim * sizeof *shape);
    for (size_t i = 0; j->fits && i < tsr_ds_count(ranks); i++) {
        const tsr_value *of_rank = ranks->items[2 * i + 1], *pieces = tsr_ds_list(of_rank, "pieces");
        j->fits = tsr_ds_number(ranks->items[2 * i], &rank) && rank < j->ranks;
        if (!j->fits) break;
        TSR_TRY(tsr_ds_shape(j->l->arena, tsr_ds_get(of_rank, "shard_shape"), &shape, &ndim, &elements, j->l->err));
        j->fits = tsr_shape_equal(ndim, shape, j->ndim, j->held[rank]->shape);
        for (size_t p = 0; j->fits && p < tsr_ds_count(pieces); p++) {
            const tsr_value *one = pieces->items[p];
            TSR_TRY(tsr_ds_shape(j->l->arena, tsr_ds_get(one, "shape"), &sizes, &ndim, &elements, j->l->err));
            j->fits = ndim == j->ndim && j->pieces.count < MOST_PIECES && !tsr_ds_get(one, "scale");
            if (!j->fits || !elements) continue;
            uint64_t *offsets = add_piece(j, (uint32_t)rank, sizes);
            if (!offsets) return TSR_E_NOMEM;
            j->fits = to_box(tsr_ds_get(one, "dest"), sizes, ndim, j->held[rank]->shape, offsets) &&
                      to_box(tsr_ds_get(one, "source"), sizes, ndim, j->shape, offsets + ndim);
        }
    }
    return TSR_OK;
}

/* Buffers are not described. They are whole if all ranks have the same. */
static tsr_status add_buffer(joining *j)
{
    for (uint32_t r = 1; j->fits && r < j->ranks; r++) {
        const tsr_entry *a = j->held[0], *b = j->held[r];
        j->fits = a->chunk_count == 1 && b->chunk_count == 1 && tsr_shape_equal(a->ndim, a->shape, b->ndim, b->shape);
        if (j->fits) TSR_TRY(tsr_rank_bytes_match(j->l->files->checkpoint, a, b, &j->fits, j->l->err));
    }
    return j->fits ? add_whole(j) : TSR_OK;
}

static tsr_status describe(joining *j, tsr_str name)
{
    const tsr_value *const *items = j->l->items.items;
    uint32_t found[CATEGORIES];
    if (!j->ndim) return add_whole(j); /* a step, which is each rank's own in name only */
    if (tsr_map_get(j->l->buffers, name, 0)) return add_buffer(j);
    for (unsigned c = 0; c < CATEGORIES; c++) TSR_TRY(find(j->l, (category)c, name, &found[c]));
    j->is_vocabulary = found[VOCABULARY] != UINT32_MAX;
    j->fits = found[AVERAGED] == UINT32_MAX && found[UNSUPPORTED] == UINT32_MAX;
    if (!j->fits) return TSR_OK;
    if (found[AFFINE] != UINT32_MAX) return add_affine(j, items[found[AFFINE]]);
    if (found[REPLICATED] != UINT32_MAX) return add_whole(j);
    if (found[HALVES] != UINT32_MAX) return add_parts(j, 0, 2, NULL);
    if (found[PARTS] != UINT32_MAX) return add_sub_params(j, name, items[found[PARTS]]);
    return add_parts(j, found[ROWS] != UINT32_MAX, 1, NULL);
}

/* ---- joining ---- */

/* Whether the pieces are boxes of the ranks' tensors, and cover the whole tensor once, copies aside. */
static bool is_covered(const joining *j, uint8_t *copies)
{
    const piece *pieces = j->pieces.items;
    const tsr_box whole = {j->ndim, NULL, j->shape};
    uint64_t left, volume;
    if (!tsr_box_volume(whole, &left)) return false;
    for (size_t i = 0; i < j->pieces.count; i++) {
        const piece *p = &pieces[i];
        const tsr_entry *held = j->held[p->rank];
        if (!tsr_box_contains((tsr_box){j->ndim, NULL, held->shape}, p->in_rank) || !tsr_box_contains(whole, p->in_whole))
            return false;
        for (size_t k = 0; k < i && !copies[i]; k++)
            copies[i] = pieces[k].rank != p->rank &&
                        !memcmp(pieces[k].in_whole.offsets, p->in_whole.offsets, j->ndim * sizeof *j->shape) &&
                        !memcmp(pieces[k].in_whole.sizes, p->in_whole.sizes, j->ndim * sizeof *j->shape);
        if (copies[i]) continue;
        if (!tsr_box_volume(p->in_whole, &volume) || volume > left) return false;
        left -= volume;
    }
    return !left;
}

/* Adds the part of a rank's chunk that is in the piece. */
static tsr_status add_chunk(const joining *j, const piece *p, const tsr_chunk *chunk, uint32_t item, tsr_vec *out)
{
    uint64_t low[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    if (!tsr_box_intersect(p->in_rank, (tsr_box){j->ndim, chunk->offsets, chunk->sizes}, low, sizes)) return TSR_OK;
    uint64_t *offsets = tsr_arena_array(j->l->arena, j->ndim, sizeof *offsets, j->l->err);
    tsr_chunk *added = offsets ? tsr_vec_push(out, j->l->err) : NULL;
    if (!added) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < j->ndim; d++)
        offsets[d] = low[d] - tsr_box_offset(p->in_rank, d) + tsr_box_offset(p->in_whole, d);
    TSR_TRY(tsr_chunk_cut(chunk, (tsr_box){j->ndim, low, sizes}, item, j->l->arena, added, j->l->err));
    added->offsets = offsets;
    return TSR_OK;
}

static tsr_status copy_chunks(const joining *j, const tsr_vec *from, const tsr_chunk **out, uint64_t *count)
{
    tsr_chunk *chunks = tsr_arena_array(j->l->arena, from->count, sizeof *chunks, j->l->err);
    if (!chunks) return TSR_E_NOMEM;
    if (from->count) memcpy(chunks, from->items, from->count * sizeof *chunks);
    *out = chunks;
    *count = from->count;
    return TSR_OK;
}

static tsr_status make(const joining *j, const uint8_t *copies, tsr_entry *out)
{
    const tsr_allocator *allocator = j->l->files->checkpoint->host->allocator;
    tsr_vec chunks = tsr_vec_of(allocator, sizeof(tsr_chunk)), replicas = chunks;
    const piece *pieces = j->pieces.items;
    const uint32_t item = tsr_dtype_size(j->held[0]->dtype);
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < j->pieces.count; i++) {
        const tsr_entry *held = j->held[pieces[i].rank];
        for (uint64_t c = 0; c < held->chunk_count && status == TSR_OK; c++)
            status = add_chunk(j, &pieces[i], &held->chunks[c], item, copies[i] ? &replicas : &chunks);
        for (uint64_t c = 0; c < held->replica_count && status == TSR_OK; c++)
            status = add_chunk(j, &pieces[i], &held->replicas[c], item, &replicas);
    }
    *out = *j->held[0];
    out->storage_id = 0;
    out->shape = j->shape;
    if (status == TSR_OK) status = copy_chunks(j, &chunks, &out->chunks, &out->chunk_count);
    if (status == TSR_OK) status = copy_chunks(j, &replicas, &out->replicas, &out->replica_count);
    tsr_vec_free(&chunks);
    tsr_vec_free(&replicas);
    return status;
}

/* Cuts the pieces of a padded vocabulary to its size. */
static void trim(joining *j, uint64_t size)
{
    piece *pieces = j->pieces.items;
    if (!j->ndim || size >= j->shape[0]) return;
    j->shape[0] = size;
    for (size_t i = 0; i < j->pieces.count; i++) {
        const uint64_t at = tsr_box_offset(pieces[i].in_whole, 0);
        uint64_t *sizes = (uint64_t *)(uintptr_t)pieces[i].in_whole.sizes;
        if (at >= size) sizes[0] = 0;
        else if (sizes[0] > size - at) sizes[0] = size - at;
    }
}

/* Describes the tensors of a name. A description that is not understood does not fit them. */
static tsr_status describe_or_not(joining *j, tsr_str name, tsr_error *err)
{
    tsr_error why = {0};
    j->l->err = &why;
    const tsr_status status = describe(j, name);
    j->l->err = err;
    if (status != TSR_OK) j->fits = false;
    if (status != TSR_E_NOMEM && status != TSR_E_IO) return TSR_OK;
    if (err) *err = why;
    return status;
}

static tsr_status join(joining *j, tsr_str name, tsr_entry *entry)
{
    tsr_entry made;
    j->ndim = j->held[0]->ndim;
    j->shape = tsr_arena_array(j->l->arena, j->ndim, sizeof *j->shape, j->l->err);
    if (!j->shape) return TSR_E_NOMEM;
    TSR_TRY(describe_or_not(j, name, j->l->err));
    uint8_t *copies = tsr_arena_array(j->l->arena, j->pieces.count, sizeof *copies, j->l->err);
    if (!copies) return TSR_E_NOMEM;
    if (!j->fits || !is_covered(j, copies)) return TSR_OK;
    if (j->is_vocabulary) trim(j, j->l->vocabulary);
    TSR_TRY(make(j, copies, &made));
    *entry = made;
    return TSR_OK;
}

/* Whether all ranks hold a dense tensor of one dtype and number of dims. */
static bool are_alike(const tsr_per_rank *all)
{
    for (uint32_t r = 0; r < all->count; r++) {
        const tsr_entry *a = all->tensors[0], *b = all->tensors[r];
        if (!a || !b || b->kind != TSR_ENTRY_TENSOR || a->dtype != b->dtype || a->ndim != b->ndim ||
            !tsr_dtype_size(b->dtype))
            return false;
    }
    return all->count > 0;
}

tsr_status tsr_ds_layouts_join(tsr_ds_layouts *l, tsr_ds_rows *rows, tsr_error *err)
{
    const tsr_ds_row *items = rows->rows.items;
    tsr_status status = TSR_OK;
    if (!l) return TSR_OK;
    l->err = err;
    for (size_t i = 0; i < rows->rows.count && status == TSR_OK; i++) {
        tsr_entry *entry = (tsr_entry *)tsr_ds_tensor(items[i].value);
        if (!entry || !entry->per_rank || !are_alike(entry->per_rank)) continue;
        joining j = {.l = l,
                     .held = entry->per_rank->tensors,
                     .ranks = entry->per_rank->count,
                     .pieces = tsr_vec_of(l->files->checkpoint->host->allocator, sizeof(piece)),
                     .fits = true};
        status = join(&j, items[i].name, entry);
        tsr_vec_free(&j.pieces);
    }
    return status;
}
