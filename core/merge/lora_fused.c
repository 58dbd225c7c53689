/* Tensors that transformers takes apart, or joins, when it loads a model. An adapter changes them as they are in memory, so its base is
 * opened as it is in memory, and what was folded is opened as the base has it on the disk:
 *
 *     base               attn.qkv.weight
 *     in memory          attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight     tsr_lora_open_loaded
 *     folded             the same names
 *     result             attn.qkv.weight                                               tsr_lora_open_saved
 *
 * Only tensors that the adapter changes are taken apart or joined. */
#include "codec/json.h"
#include "mapping/mapped.h"
#include "merge/lora_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

enum { MOST_PIECES = 4 };

/* How a tensor consists of its pieces. The first rows are those of the first piece, and so on. */
typedef enum fusing {
    FUSED_EQUAL,   /* pieces of equal size */
    FUSED_GROUPED, /* k and v are of one size, and q has the other rows */
    FUSED_ROTARY, /* the same as EQUAL; rows of q and k alternate between the halves of a head, where memory has one after the other */
    FUSED_INTERLEAVED, /* the same as EQUAL, but the rows of the halves alternate */
    FUSED_DELTA_NET,   /* q, k and v; z; b; a of a gated delta net, whose sizes are in config.json */
    FUSED_IN_MEMORY    /* the pieces are stored, and memory has the whole */
} fusing;

/* `whole` and `pieces` are the last components of the names of modules; "_weight" and "_bias" may follow `whole`, too. Those of experts are
 * of parameters, [experts, rows, columns]. */
typedef struct fused_row {
    const char *types; /* of models: model_type of config.json or of one of the configs in it */
    const char *whole, *pieces[MOST_PIECES];
    fusing how;
    const char *under; /* a component that the name must have, or NULL */
    bool experts;
} fused_row;

/* Source: transformers 5.24, conversion_mapping.py. */
/* clang-format off */
static const fused_row fused_rows[] = {
    {"radio\0qianfan_ocr\0tipsv2\0tipsv2_dpt\0tipsv2_vision_model\0", "attn.qkv", {"attn.q_proj", "attn.k_proj", "attn.v_proj"}, FUSED_EQUAL, NULL, false},
    {"gte\0unlimited_ocr\0", "qkv_proj", {"q_proj", "k_proj", "v_proj"}, FUSED_EQUAL, NULL, false},
    {"nomic_bert\0jina_embeddings_v3\0", "Wqkv", {"q_proj", "k_proj", "v_proj"}, FUSED_EQUAL, NULL, false},
    {"nemo_speechlm\0", "w_qkv", {"q_proj", "k_proj", "v_proj"}, FUSED_EQUAL, NULL, false},
    {"tipsv2\0tipsv2_text_model\0", "in_proj", {"q_proj", "k_proj", "v_proj"}, FUSED_EQUAL, NULL, false},
    {"hrm_text\0", "gqkv_proj", {"gate_proj", "q_proj", "k_proj", "v_proj"}, FUSED_EQUAL, NULL, false},
    {"gradium_phonon_tts\0step3p5_vision\0", "in_proj", {"q_proj", "k_proj", "v_proj"}, FUSED_ROTARY, NULL, false},
    {"kimi_k25\0", "wqkv", {"attn.q_proj", "attn.k_proj", "attn.v_proj"}, FUSED_ROTARY, NULL, false},
    {"mistral_large4\0", "wq", {"q_proj"}, FUSED_ROTARY, "vision_encoder", false},
    {"mistral_large4\0", "wk", {"k_proj"}, FUSED_ROTARY, "vision_encoder", false},
    {"sarvam_moe\0", "query_key_value", {"q_proj", "k_proj", "v_proj"}, FUSED_GROUPED, NULL, false},
    {"hrm_text\0", "gate_up_proj", {"gate_proj", "up_proj"}, FUSED_EQUAL, NULL, false},
    {"dinov2\0dinov2_with_registers\0", "weights_in", {"gate_proj", "up_proj"}, FUSED_EQUAL, NULL, false},
    {"tipsv2\0tipsv2_vision_model\0", "w12", {"gate_proj", "up_proj"}, FUSED_EQUAL, NULL, false},
    {"gte\0", "up_gate_proj", {"up_proj", "gate_proj"}, FUSED_EQUAL, NULL, false},
    {"sapiens2\0", "ffn.w12", {"mlp.gate_proj", "mlp.up_proj"}, FUSED_EQUAL, NULL, false},
    {"lara_mini\0", "in_proj", {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"}, FUSED_DELTA_NET, "linear_attn", false},
    {"inkling_mm_model\0", "mlp.w13_dn", {"mlp.gate_proj", "mlp.up_proj"}, FUSED_INTERLEAVED, NULL, false},
    {"inkling_mm_model\0inkling2_text\0inkling2_loop_text\0", "experts.w13_weight", {"experts.gate_up_proj"}, FUSED_INTERLEAVED, NULL, true},
    {"minimax_m3_vl\0", "gate_up_proj", {"gate_proj", "up_proj"}, FUSED_IN_MEMORY, NULL, false},
    {"step3p7\0", "mlp.experts.gate_up_proj", {"moe.gate_proj.weight", "moe.up_proj.weight"}, FUSED_IN_MEMORY, NULL, true},
};
/* clang-format on */

/* A tensor of the base and the tensors in memory that it consists of; or, IN_MEMORY, the other way round. */
typedef struct fused {
    const fused_row *row;
    const tsr_entry *whole; /* in the base; NULL if it is in memory */
    const tsr_entry *stored[MOST_PIECES];
    uint64_t orders[MOST_PIECES]; /* of `stored` among the base's entries; the first one is that of `whole`, too */
    tsr_str names[MOST_PIECES];   /* in memory, of the pieces; IN_MEMORY: the first one is that of the whole */
    uint64_t sizes[MOST_PIECES];
    uint64_t heads;
    uint32_t count;
    uint32_t changed; /* a piece that the adapter changes */
} fused;

/* What tsr_lora_open_loaded did, in the arena of the checkpoint that it opened. */
typedef struct loaded {
    tsr_checkpoint *base;
    fused **of; /* by entry of the base; NULL: it is the same in memory */
    uint64_t count;
} loaded;

/* What is looked for while the adapter's names are read. */
typedef struct finding {
    tsr_mapped *m;
    tsr_lora_names names;
    loaded *result;
    tsr_map *
        pieces; /* names in memory, as they are compared, of experts without the last component → its number in `candidates` */
    tsr_vec candidates; /* of fused */
    tsr_error *err;
} finding;

/* ---- what the base has ---- */

/* Splits a name into what is before `last`, the last components of its module, and "weight" or "bias"; nothing follows those of experts. */
static bool split_name(tsr_str name, tsr_str last, bool experts, tsr_str *before, tsr_str *kind)
{
    static const char *const kinds[] = {"weight", "bias"};
    if (experts) {
        *kind = (tsr_str){"", 0};
        *before = (tsr_str){name.data, name.size - last.size};
        return name.size > last.size && tsr_str_ends(name, last) && name.data[before->size - 1] == '.';
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        *kind = tsr_str_from(kinds[i]);
        if (name.size < last.size + 1 + kind->size || !tsr_str_ends(name, *kind)) continue;
        const size_t at = name.size - kind->size - 1 - last.size;
        const char between = name.data[at + last.size];
        if ((between != '.' && between != '_') || memcmp(name.data + at, last.data, last.size) != 0) continue;
        *before = (tsr_str){name.data, at};
        return !at || name.data[at - 1] == '.';
    }
    return false;
}

static bool has_component(tsr_str name, const char *component)
{
    const tsr_str part = tsr_str_from(component);
    for (size_t at = 0; at + part.size < name.size; at++)
        if ((!at || name.data[at - 1] == '.') && name.data[at + part.size] == '.' &&
            !memcmp(name.data + at, part.data, part.size))
            return true;
    return false;
}

static tsr_str join_name(const finding *f, tsr_str before, const char *last, tsr_str kind)
{
    return tsr_arena_format(f->m->own->arena, f->err, "%.*s%s%s%.*s", TSR_STR_ARG(before), last, kind.size ? "." : "",
                            TSR_STR_ARG(kind));
}

static tsr_str without_last(tsr_str name)
{
    const tsr_str last = tsr_last_component(name);
    return (tsr_str){name.data, last.size < name.size ? name.size - last.size - 1 : 0};
}

/* Adds a name that the model has in memory. */
static tsr_status add_name(const finding *f, tsr_str before, const char *last, tsr_str kind, size_t candidate, tsr_str *name)
{
    uint32_t *number;
    bool inserted;
    *name = join_name(f, before, last, kind);
    if (!name->data) return TSR_E_NOMEM;
    const tsr_str compared = tsr_lora_compared(&f->names, kind.size ? *name : without_last(*name), f->err);
    if (!compared.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(f->pieces, compared, (uint32_t)candidate, &number, &inserted, f->err));
    if (!inserted) *number = UINT32_MAX - 1; /* it could be either */
    return TSR_OK;
}

static fused *push(finding *f, const fused_row *row)
{
    fused *c = tsr_vec_push(&f->candidates, f->err);
    if (!c) return NULL;
    *c = (fused){.row = row, .heads = 1};
    while (c->count < MOST_PIECES && row->pieces[c->count]) c->count++;
    return c;
}

/* Adds a tensor that is taken apart, if the entry is one. */
static tsr_status add_whole(finding *f, const fused_row *row, uint64_t order)
{
    const tsr_entry *entry = &f->result->base->catalog.entries[order];
    tsr_str before, kind;
    if (!split_name(entry->fqn, tsr_str_from(row->whole), row->experts, &before, &kind)) return TSR_OK;
    fused *c = push(f, row);
    if (!c) return TSR_E_NOMEM;
    c->whole = entry;
    c->orders[0] = order;
    for (uint32_t i = 0; i < c->count; i++)
        TSR_TRY(add_name(f, before, row->pieces[i], kind, f->candidates.count - 1, &c->names[i]));
    return TSR_OK;
}

/* Adds tensors that are joined, if the entry is the first of them. */
static tsr_status add_pieces(finding *f, const fused_row *row, uint64_t order)
{
    const tsr_checkpoint *base = f->result->base;
    tsr_str before, kind;
    const tsr_str first = base->catalog.entries[order].fqn;
    if (!split_name(first, tsr_str_from(row->pieces[0]), row->experts, &before, &kind)) return TSR_OK;
    fused *c = push(f, row);
    if (!c) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < c->count; i++) {
        const tsr_str name = join_name(f, before, row->pieces[i], kind);
        if (!name.data) return TSR_E_NOMEM;
        c->stored[i] = tsr_checkpoint_entry(base, name);
        if (!c->stored[i] || c->stored[i]->kind != TSR_ENTRY_TENSOR || c->stored[i]->ndim <= row->experts)
            return f->candidates.count--, TSR_OK;
        c->orders[i] = (uint64_t)(c->stored[i] - base->catalog.entries);
        c->sizes[i] = c->stored[i]->shape[row->experts];
    }
    return add_name(f, before, row->whole, kind, f->candidates.count - 1, &c->names[0]);
}

static tsr_status find_candidates(finding *f)
{
    const tsr_catalog *catalog = &f->result->base->catalog;
    for (size_t r = 0; r < sizeof fused_rows / sizeof *fused_rows; r++) {
        const fused_row *row = &fused_rows[r];
        if (!tsr_lora_is_of_type(f->m, row->types)) continue;
        for (uint64_t i = 0; i < catalog->entry_count; i++) {
            const tsr_entry *entry = &catalog->entries[i];
            if (entry->kind != TSR_ENTRY_TENSOR || !entry->ndim || (row->experts ? entry->ndim != 3 : entry->ndim > 2))
                continue;
            if (row->under && !has_component(entry->fqn, row->under)) continue;
            TSR_TRY(row->how == FUSED_IN_MEMORY ? add_pieces(f, row, i) : add_whole(f, row, i));
        }
    }
    return TSR_OK;
}

/* ---- what the adapter changes ---- */

/* The tensor in memory that a tensor of the adapter changes. Its data is NULL for one that need not be looked for: each change has another
 * one that is. */
static tsr_status find_target(const finding *f, const tsr_entry *entry, tsr_str *out)
{
    tsr_str module, adapter;
    const tsr_lora_kind kind = tsr_lora_kind_of(entry->fqn, &module, &adapter);
    *out = (tsr_str){NULL, 0};
    if (kind == TSR_LORA_WHOLE) return tsr_lora_base_name(&f->names, entry->fqn, out, f->err);
    if (kind != TSR_LORA_B && kind != TSR_LORA_BIAS) return TSR_OK;
    TSR_TRY(tsr_lora_base_name(&f->names, module, &module, f->err));
    *out = tsr_arena_format(f->m->own->arena, f->err, "%.*s.%s", TSR_STR_ARG(module),
                            kind == TSR_LORA_BIAS ? "bias" : "weight");
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* A size of config.json, or of the config of its language model. */
static uint64_t size_in(const tsr_mapped *m, const char *name)
{
    const cJSON *item = tsr_mapped_stated(m, name);
    return cJSON_IsNumber(item) && item->valuedouble >= 1 && item->valuedouble < 1e6 ? (uint64_t)item->valuedouble : 0;
}

/* Sets the sizes of the pieces. `rows` is that of the piece which the adapter changes. False if they do not fit. */
static bool set_sizes(const tsr_mapped *m, fused *c, uint64_t rows)
{
    const uint64_t all = c->whole->shape[c->row->experts];
    for (uint32_t i = 0; i < c->count; i++) c->sizes[i] = all / c->count;
    if (c->row->how == FUSED_INTERLEAVED) return all % 2 == 0;
    if (c->row->how == FUSED_DELTA_NET) {
        const uint64_t heads = size_in(m, "linear_num_value_heads"), z = heads * size_in(m, "linear_value_head_dim");
        const uint64_t qk = 2 * size_in(m, "linear_num_key_heads") * size_in(m, "linear_key_head_dim");
        c->sizes[0] = qk + z;
        c->sizes[1] = z;
        c->sizes[2] = c->sizes[3] = heads;
        return qk && z && qk + 2 * (z + heads) == all;
    }
    if (c->row->how != FUSED_GROUPED) return all % c->count == 0;
    const uint64_t each = c->changed ? rows : rows < all ? (all - rows) / 2 : 0;
    if (!each || each > (all - 1) / 2) return false;
    c->sizes[0] = all - 2 * each;
    c->sizes[1] = c->sizes[2] = each;
    return c->changed || c->sizes[0] == rows;
}

/* The number of heads whose rows are in another order; 1 if config.json states none, as in transformers. */
static uint64_t heads_of(const tsr_mapped *m)
{
    const cJSON *vision = cJSON_GetObjectItemCaseSensitive(m->config, "vision_config");
    const cJSON *heads = cJSON_GetObjectItemCaseSensitive(vision ? vision : m->config, "num_attention_heads");
    return cJSON_IsNumber(heads) && heads->valuedouble >= 1 && heads->valuedouble < 1e6 ? (uint64_t)heads->valuedouble : 1;
}

static tsr_status mark(const finding *f, fused *c)
{
    const tsr_arithmetic sum = {.dtype = TSR_DTYPE_NONE};
    const uint32_t stored = c->whole ? 1 : c->count;
    fused *kept = TSR_ARENA_NEW(f->m->own->arena, fused, f->err);
    if (!kept) return TSR_E_NOMEM;
    *kept = *c;
    for (uint32_t i = 0; i < stored; i++) {
        TSR_TRY(tsr_check_arithmetic_on(f->result->base, c->whole ? c->whole : c->stored[i], &sum, f->err));
        f->result->of[c->orders[i]] = kept;
    }
    f->result->count++;
    return TSR_OK;
}

/* Whether the candidate has this name, as it is compared. */
static tsr_status name_piece(const finding *f, fused *c, tsr_str compared, tsr_str target)
{
    const uint32_t names = c->whole ? c->count : 1;
    for (uint32_t i = 0; i < names; i++) {
        const tsr_str own = tsr_lora_compared(&f->names, c->names[i], f->err);
        if (!own.data) return TSR_E_NOMEM;
        if (!tsr_str_equal(own, compared)) continue;
        c->names[i] = target;
        c->changed = i;
    }
    return TSR_OK;
}

/* The matrices of experts are those of a parameter, of which the adapter's names show the module only. */
static tsr_status find_experts(const finding *f, tsr_str target)
{
    const tsr_str module = without_last(target), compared = tsr_lora_compared(&f->names, module, f->err);
    if (!compared.data) return TSR_E_NOMEM;
    const uint32_t number = tsr_map_get(f->pieces, compared, UINT32_MAX);
    fused *c = number < f->candidates.count ? (fused *)f->candidates.items + number : NULL;
    if (!c || !c->row->experts || f->result->of[c->orders[0]]) return TSR_OK;
    c->names[0] = tsr_arena_format(f->m->own->arena, f->err, "%.*s.%.*s", TSR_STR_ARG(module),
                                   TSR_STR_ARG(tsr_last_component(c->names[0])));
    if (!c->names[0].data) return TSR_E_NOMEM;
    return c->whole && !set_sizes(f->m, c, 0) ? TSR_OK : mark(f, c);
}

static tsr_status find_change(const finding *f, const tsr_entry *entry)
{
    tsr_str target, stored;
    TSR_TRY(find_target(f, entry, &target));
    if (!target.data) return TSR_OK;
    TSR_TRY(find_experts(f, target));
    TSR_TRY(tsr_lora_stored((tsr_lora_names *)(uintptr_t)&f->names, target, &stored, f->err));
    const tsr_str compared = tsr_lora_compared(&f->names, target, f->err);
    if (!compared.data) return TSR_E_NOMEM;
    const uint32_t number = tsr_map_get(f->pieces, compared, UINT32_MAX);
    if (number >= f->candidates.count) return TSR_OK;
    fused *c = (fused *)f->candidates.items + number;
    /* A tensor of a similar name that is there is the one, unless a single one is only turned. */
    if (c->count > 1 && tsr_checkpoint_entry(f->result->base, stored)) return TSR_OK;
    fused *known = f->result->of[c->orders[0]];
    TSR_TRY(name_piece(f, known ? known : c, compared, target));
    if (known) return TSR_OK;
    if (c->whole && !set_sizes(f->m, c, entry->ndim ? entry->shape[0] : 0)) return TSR_OK;
    if (c->row->how == FUSED_ROTARY) c->heads = heads_of(f->m);
    return mark(f, c);
}

static tsr_status find_changes(finding *f, const tsr_checkpoint *adapter)
{
    uint64_t first, end;
    tsr_lora_range(adapter, &f->names, &first, &end);
    for (uint64_t i = first; i < end; i++) TSR_TRY(tsr_lora_names_note(&f->names, adapter->catalog.entries[i].fqn, f->err));
    for (uint64_t i = first; i < end; i++) TSR_TRY(find_change(f, &adapter->catalog.entries[i]));
    return TSR_OK;
}

/* ---- rows in another order ---- */

/* Brings the rows, which are those of a dimension, from the order of [heads, half, 2] into that of [heads, 2, half], or back. */
static tsr_status turn(tsr_mapped *m, tsr_mapped_tensor *tensor, const fused *c, bool back, tsr_error *err)
{
    const uint32_t dim = c->row->experts;
    const uint64_t heads = c->heads, half = tensor->shape[dim] / heads / 2;
    uint32_t order[] = {0, 1, 2, 3, 4};
    order[dim + 1] = dim + 2;
    order[dim + 2] = dim + 1;
    TSR_FAIL_IF(half * heads * 2 != tensor->shape[dim], err, TSR_E_FORMAT,
                "'%.*s' has %llu rows, but config.json says %llu attention heads", TSR_STR_ARG(tensor->name),
                (unsigned long long)tensor->shape[dim], (unsigned long long)heads);
    const uint64_t factors[] = {heads, back ? 2 : half, back ? half : 2};
    TSR_TRY(tsr_boxes_split_dim(&m->maker, tensor, dim, factors, 3, tensor));
    TSR_TRY(tsr_boxes_transpose(&m->maker, tensor, order, tensor));
    return tsr_boxes_merge_dims(&m->maker, tensor, dim, 3, tensor);
}

static bool is_turned(const fused *c, uint32_t piece)
{
    return c->row->how == FUSED_ROTARY && piece < 2; /* q and k */
}

/* ---- in memory ---- */

static tsr_status add_row(tsr_mapped *m, const tsr_mapped_tensor *tensor, const tsr_entry *like, tsr_str name,
                          const tsr_entry *source, uint64_t order, tsr_error *err)
{
    const tsr_entry **sources = TSR_ARENA_NEW(m->own->arena, const tsr_entry *, err);
    tsr_mapped_row *row = sources ? tsr_vec_push(&m->rows, err) : NULL;
    if (!row) return TSR_E_NOMEM;
    *sources = source;
    *row = (tsr_mapped_row){.order = order, .sources = sources, .source_count = 1};
    TSR_TRY(tsr_mapped_entry(m, tensor, like, name, &row->entry, err));
    if (tsr_str_equal(name, like->fqn)) row->entry.path = like->path, row->entry.path_length = like->path_length;
    return TSR_OK;
}

/* Adds the pieces of a tensor under `names`, or those of them that have one. */
static tsr_status take_apart(tsr_mapped *m, const fused *c, const tsr_entry *whole, const tsr_str *names, tsr_error *err)
{
    tsr_mapped_tensor tensor, piece;
    uint64_t first = 0;
    TSR_TRY(tsr_boxes_of_entry(&m->maker, whole, &tensor));
    if (c->row->how == FUSED_INTERLEAVED) TSR_TRY(turn(m, &tensor, c, false, err));
    for (uint32_t i = 0; i < c->count; first += c->sizes[i++]) {
        TSR_TRY(tsr_boxes_slice(&m->maker, &tensor, c->row->experts, (tsr_span){first, c->sizes[i]}, &piece));
        if (is_turned(c, i)) TSR_TRY(turn(m, &piece, c, false, err));
        TSR_TRY(add_row(m, &piece, c->whole ? whole : c->stored[i], names[i], whole, c->orders[c->whole ? 0 : i], err));
    }
    return TSR_OK;
}

/* Adds the tensor that consists of `pieces`, which may have been folded to another dtype. */
static tsr_status join(tsr_mapped *m, const fused *c, const tsr_entry *const *pieces, const tsr_entry *like, tsr_str name,
                       tsr_error *err)
{
    tsr_mapped_tensor tensors[MOST_PIECES], whole;
    const tsr_entry *changed = pieces[c->changed];
    for (uint32_t i = 0; i < c->count; i++) {
        TSR_TRY(tsr_boxes_of_entry(&m->maker, pieces[i], &tensors[i]));
        if (is_turned(c, i)) TSR_TRY(turn(m, &tensors[i], c, true, err));
        if (tensors[i].dtype != changed->dtype) TSR_TRY(tsr_mapped_cast(m, &tensors[i], changed->dtype, &tensors[i], err));
    }
    TSR_TRY(tsr_boxes_concat(&m->maker, tensors, c->count, c->row->experts, &whole));
    if (c->row->how == FUSED_INTERLEAVED) TSR_TRY(turn(m, &whole, c, true, err));
    return add_row(m, &whole, like, name, changed, c->orders[0], err);
}

static tsr_status fill_loaded(finding *f, const tsr_checkpoint *adapter)
{
    const tsr_catalog *catalog = &f->result->base->catalog;
    TSR_TRY(find_candidates(f));
    if (f->candidates.count) TSR_TRY(find_changes(f, adapter));
    for (uint64_t i = 0; i < catalog->entry_count && f->result->count; i++) {
        const fused *c = f->result->of[i];
        if (!c) TSR_TRY(tsr_mapped_keep(f->m, &catalog->entries[i], i, f->err));
        else if (c->whole) TSR_TRY(take_apart(f->m, c, c->whole, c->names, f->err));
        else if (i == c->orders[0]) TSR_TRY(join(f->m, c, c->stored, c->stored[0], c->names[0], f->err));
    }
    return TSR_OK;
}

static tsr_status load(tsr_mapped *m, void *ctx, tsr_error *err)
{
    const tsr_allocator *allocator = m->own->host->allocator;
    finding f = {.m = m, .err = err, .candidates = tsr_vec_of(allocator, sizeof(fused))};
    tsr_lora_names_open(&f.names, m);
    loaded *result = f.result = m->ctx = TSR_ARENA_NEW(m->own->arena, loaded, err);
    if (!result) return TSR_E_NOMEM;
    result->base = m->source;
    result->of = tsr_arena_array(m->own->arena, (size_t)m->source->catalog.entry_count, sizeof *result->of, err);
    f.pieces = result->of ? tsr_map_new(allocator, 0, err) : NULL;
    const tsr_status status = f.pieces ? fill_loaded(&f, ctx) : TSR_E_NOMEM;
    tsr_map_free(f.pieces);
    tsr_vec_free(&f.candidates);
    tsr_lora_names_close(&f.names);
    return status;
}

tsr_status tsr_lora_open_loaded(tsr_checkpoint *base, tsr_checkpoint *adapter, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_mapped_scheme scheme = {.fill = load, .ctx = adapter};
    TSR_TRY(tsr_mapped_open(base, &scheme, out, err));
    const loaded *result = ((tsr_mapped *)(*out)->state)->ctx;
    if (result->count) return TSR_OK;
    tsr_checkpoint_close(*out);
    *out = NULL;
    return TSR_OK;
}

/* ---- as the base has it ---- */

static tsr_status save_fused(tsr_mapped *m, const fused *c, uint64_t order, tsr_error *err)
{
    const tsr_entry *pieces[MOST_PIECES];
    tsr_str names[MOST_PIECES];
    for (uint32_t i = 0; i < c->count; i++) {
        pieces[i] = tsr_checkpoint_entry(m->source, c->names[c->whole ? i : 0]); /* folding leaves out output layers only */
        if (!c->whole) names[i] = c->stored[i]->fqn;
    }
    if (c->whole) return join(m, c, pieces, c->whole, c->whole->fqn, err);
    return order == c->orders[0] ? take_apart(m, c, pieces[0], names, err) : TSR_OK;
}

static tsr_status save(tsr_mapped *m, void *ctx, tsr_error *err)
{
    const tsr_checkpoint *pieces = ctx;
    const loaded *result = tsr_mapped_state(pieces)->ctx;
    const tsr_catalog *base = &result->base->catalog, *folded = &m->source->catalog;
    for (uint64_t i = 0; i < base->entry_count; i++) {
        const tsr_entry *same = tsr_checkpoint_entry(m->source, base->entries[i].fqn);
        if (result->of[i]) TSR_TRY(save_fused(m, result->of[i], i, err));
        else if (same) TSR_TRY(tsr_mapped_keep(m, same, i, err));
    }
    for (uint64_t i = 0; i < folded->entry_count; i++) /* modules that the adapter adds */
        if (!tsr_checkpoint_entry(pieces, folded->entries[i].fqn))
            TSR_TRY(tsr_mapped_keep(m, &folded->entries[i], base->entry_count, err));
    return TSR_OK;
}

tsr_status tsr_lora_open_saved(tsr_checkpoint *folded, tsr_checkpoint *pieces, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_mapped_scheme scheme = {.fill = save, .ctx = pieces};
    const tsr_catalog *base = &((const loaded *)tsr_mapped_state(pieces)->ctx)->base->catalog;
    TSR_TRY(tsr_mapped_open(folded, &scheme, out, err));
    tsr_catalog *own = &(*out)->catalog; /* the entries are the base's again, in its order */
    own->mappings = base->mappings;
    own->mapping_count = base->mapping_count;
    own->parts = base->parts;
    own->part_count = base->part_count;
    return TSR_OK;
}
