/* Joins the ranks' tensors. The entries are added stage by stage, so that the layers of the whole model are in order. A name
 * that several stages have (a shared embedding, a buffer) must be the same tensor in each. */
#include "formats/shards/shards_join.h"

#include <inttypes.h>

#include "formats/common/joined_entries.h"
#include "formats/shards/shards_chunks.h"
#include "formats/shards/shards_equal.h"
#include "formats/shards/shards_rules.h"
#include "formats/shards/shards_stages.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

typedef struct join {
    tsr_checkpoint *checkpoint;
    const tsr_shards *map;
    tsr_arena *arena;
    tsr_shards_equality equality;
    tsr_shards_settings settings;
    tsr_shards_stages stages;
    uint32_t ranks; /* tensor-parallel ranks of each stage */
    tsr_map *names; /* FQN → number in `joined` */
    tsr_vec joined; /* of tsr_entry */
    uint64_t left;  /* number of tensors that are still listed per rank */
    tsr_error *err;
} join;

/* ---- pipeline stages ---- */

static const tsr_entry *const *held_by(const join *j, const tsr_entry *entry, uint32_t stage)
{
    return entry->per_rank->tensors + (size_t)stage * j->ranks;
}

static const tsr_entry *first_of(const join *j, const tsr_entry *const *held)
{
    for (uint32_t r = 0; r < j->ranks; r++)
        if (held[r]) return held[r];
    return NULL;
}

/* For a built-in map: counts the layers of each stage. */
static tsr_status count_layers(const join *j, uint64_t *layers)
{
    const tsr_catalog *catalog = &j->checkpoint->catalog;
    uint64_t all = 0;
    for (uint64_t e = 0; e < catalog->entry_count; e++) {
        tsr_str digits;
        uint64_t layer;
        if (!tsr_shards_layer_of(&j->stages, catalog->entries[e].fqn, &digits, &layer)) continue;
        for (uint32_t s = 0; s < j->stages.count; s++)
            if (first_of(j, held_by(j, &catalog->entries[e], s)) && layer >= layers[s]) layers[s] = layer + 1;
    }
    for (uint32_t s = 0; s < j->stages.count; s++) all += layers[s];
    TSR_FAIL_IF(j->settings.layers && all != j->settings.layers, j->err, TSR_E_FORMAT,
                "the stages have %" PRIu64 " layers in total, but the model has %" PRIu64, all, j->settings.layers);
    return TSR_OK;
}

static tsr_status number_stages(join *j)
{
    const tsr_shards *map = j->map;
    tsr_shards_stages *stages = &j->stages;
    stages->count = j->checkpoint->stages ? j->checkpoint->stages : 1;
    const tsr_str pattern =
        map->family && map->family->stage_pattern ? tsr_str_from(map->family->stage_pattern) : map->stage_pattern;
    if (!pattern.size) return TSR_OK;
    TSR_FAIL_IF(!map->family && map->stage_count != stages->count, j->err, TSR_E_FORMAT,
                "%.*s lists the layers of %u pipeline stages, but there are files of %u", TSR_STR_ARG(map->name),
                map->stage_count, stages->count);
    TSR_TRY(tsr_shards_stages_of(pattern, j->arena, stages, j->err));
    stages->layers = map->stage_layers;
    if (map->family) {
        uint64_t *layers = tsr_arena_array(j->arena, stages->count, sizeof *layers, j->err);
        if (!layers) return TSR_E_NOMEM;
        TSR_TRY(count_layers(j, layers));
        stages->layers = layers;
    }
    return tsr_shards_stages_number(stages, j->arena, j->err);
}

/* ---- the tensors of one stage ---- */

static tsr_str file_of(const join *j, const tsr_entry *entry, uint32_t rank)
{
    const bool has_file = entry && entry->chunk_count && entry->chunks[0].file != TSR_NO_FILE;
    if (has_file) return j->checkpoint->store->files[entry->chunks[0].file].name;
    return tsr_arena_format(j->arena, j->err, "rank %u", rank);
}

static tsr_status check_present(const join *j, const tsr_shards_held *held, const tsr_shards_rule *rule)
{
    for (uint32_t r = 0; r < held->ranks; r++) {
        const tsr_entry *entry = held->tensors[r];
        TSR_FAIL_IF(!entry, j->err, TSR_E_FORMAT, "rank %u has no '%.*s', which the rule '%.*s' joins from all %u ranks", r,
                    TSR_STR_ARG(held->fqn), TSR_STR_ARG(rule->match), held->ranks);
        TSR_FAIL_IF(!tsr_shards_is_whole(entry), j->err, TSR_E_UNSUPPORTED,
                    "'%.*s' is not a dense tensor on rank %u; only dense tensors can be joined", TSR_STR_ARG(held->fqn), r);
    }
    return TSR_OK;
}

/* Keeps the first rank's tensor, with those of the other ranks as replicas. */
static tsr_status keep_first(const join *j, const tsr_shards_held *held, tsr_entry *out)
{
    tsr_chunk *replicas = tsr_arena_array(j->arena, held->ranks, sizeof *replicas, j->err);
    if (!replicas) return TSR_E_NOMEM;
    for (uint32_t r = 1; r < held->ranks; r++) replicas[r - 1] = held->tensors[r]->chunks[0];
    out->replicas = replicas;
    out->replica_count = held->ranks - 1;
    return TSR_OK;
}

/* Sets *other to the first rank whose tensor differs from rank 0's, or to held->ranks if none does. */
static tsr_status find_other(join *j, const tsr_shards_held *held, uint32_t *other)
{
    for (*other = 0; *other < held->ranks; ++*other) {
        bool same = held->tensors[0] && held->tensors[*other] && tsr_shards_is_whole(held->tensors[0]);
        if (same && *other) TSR_TRY(tsr_shards_equal(&j->equality, held->tensors[0], held->tensors[*other], &same, j->err));
        if (!same) return TSR_OK;
    }
    return TSR_OK;
}

static tsr_status replicate(join *j, const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_entry *out)
{
    uint32_t other;
    TSR_TRY(find_other(j, held, &other));
    TSR_FAIL_IF(other < held->ranks, j->err, TSR_E_FORMAT,
                "'%.*s' differs between %.*s and %.*s, but the rule '%.*s' treats it as replicated", TSR_STR_ARG(held->fqn),
                TSR_STR_ARG(file_of(j, held->tensors[0], 0)), TSR_STR_ARG(file_of(j, held->tensors[other], other)),
                TSR_STR_ARG(rule->match));
    return keep_first(j, held, out);
}

/* Checks that the replicas of a joined tensor, which are copies according to the rule, are equal to their chunks. */
static tsr_status check_copies(join *j, const tsr_entry *entry)
{
    for (uint64_t c = 0; c < entry->replica_count; c++) {
        const tsr_chunk *copy = &entry->replicas[c];
        for (uint64_t i = 0; i < entry->chunk_count; i++) {
            bool same = true;
            if (memcmp(entry->chunks[i].offsets, copy->offsets, entry->ndim * sizeof *copy->offsets) != 0) continue;
            TSR_TRY(tsr_shards_equal_chunks(&j->equality, entry, &entry->chunks[i], copy, &same, j->err));
            TSR_FAIL_IF(!same, j->err, TSR_E_FORMAT, "'%.*s' has blocks that should be replicas, but %.*s and %.*s differ",
                        TSR_STR_ARG(entry->fqn), TSR_STR_ARG(j->checkpoint->store->files[entry->chunks[i].file].name),
                        TSR_STR_ARG(j->checkpoint->store->files[copy->file].name));
        }
    }
    return TSR_OK;
}

static tsr_status only_rank(const join *j, const tsr_shards_held *held, const tsr_shards_rule *rule, tsr_entry *out)
{
    const tsr_entry *entry = rule->rank < held->ranks ? held->tensors[rule->rank] : NULL;
    TSR_FAIL_IF(!entry, j->err, TSR_E_FORMAT, "'%.*s' is not on rank %u, where the rule '%.*s' expects it (%u ranks)",
                TSR_STR_ARG(held->fqn), rule->rank, TSR_STR_ARG(rule->match), held->ranks);
    const tsr_str fqn = out->fqn;
    const tsr_path_item *path = out->path;
    *out = *entry;
    out->fqn = fqn;
    out->path = path;
    out->storage_id = 0;
    return TSR_OK;
}

static tsr_status apply(join *j, const tsr_shards_held *held, const tsr_shards_choice *choice, tsr_entry *out)
{
    const tsr_shards_rule *rule = &choice->rule;
    if (rule->kind == TSR_SHARDS_ONLY_RANK) return only_rank(j, held, rule, out);
    TSR_TRY(check_present(j, held, rule));
    if (rule->kind == TSR_SHARDS_REPLICATE) return replicate(j, held, rule, out);
    out->storage_id = 0; /* a tensor joined from several storages shares none */
    if (rule->kind == TSR_SHARDS_STACK) return tsr_shards_stack(held, rule, j->arena, out, j->err);
    TSR_TRY(tsr_shards_concat(held, rule, j->arena, out, j->err));
    TSR_FAIL_IF(choice->expected && out->shape[rule->dim] != choice->expected, j->err, TSR_E_FORMAT,
                "'%.*s' has size %" PRIu64
                " along dim %d after joining %u ranks, but according to the model's settings it should be %" PRIu64,
                TSR_STR_ARG(out->fqn), out->shape[rule->dim], (int)rule->dim, held->ranks, choice->expected);
    return check_copies(j, out);
}

/* For a tensor without a rule: keeps it as a whole tensor if all ranks have the same, otherwise lists it per rank. */
static tsr_status keep_per_rank(join *j, const tsr_entry *entry, const tsr_shards_held *held, uint32_t stage, tsr_entry *out)
{
    const uint32_t all = entry->per_rank->count;
    const tsr_entry **tensors = tsr_arena_array(j->arena, all, sizeof *tensors, j->err);
    if (!tensors) return TSR_E_NOMEM;
    memcpy(tensors + (size_t)stage * j->ranks, held->tensors, held->ranks * sizeof(const tsr_entry *));
    TSR_TRY(tsr_entry_list_per_rank(out, tensors, all, j->arena, j->err));
    j->left++;
    return TSR_OK;
}

static tsr_status settle(join *j, const tsr_entry *entry, const tsr_shards_held *held, uint32_t stage, tsr_entry *out)
{
    tsr_shards_choice choice;
    uint32_t other = held->ranks;
    TSR_TRY(tsr_shards_choose_rule(j->map, &j->settings, held, &choice, j->err));
    if (choice.known) return apply(j, held, &choice, out);
    const bool may_be_whole = choice.equal_is_enough || held->ranks == 1;
    if (held->ranks == 1 && out->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    if (may_be_whole) TSR_TRY(find_other(j, held, &other));
    return may_be_whole && other == held->ranks ? keep_first(j, held, out) : keep_per_rank(j, entry, held, stage, out);
}

/* ---- all entries ---- */

static bool is_tensor(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR || entry->dtype != TSR_DTYPE_NONE;
}

/* If two stages have the same boxes with the same elements, those of the later stage become replicas. */
static tsr_status merge_stages(join *j, tsr_entry *first, const tsr_entry *second)
{
    bool same = first->kind == TSR_ENTRY_TENSOR && second->kind == TSR_ENTRY_TENSOR && first->dtype == second->dtype &&
                first->chunk_count == second->chunk_count && tsr_entry_same_shape(first, second);
    for (uint64_t c = 0; same && c < first->chunk_count; c++) {
        const tsr_chunk *a = &first->chunks[c], *b = &second->chunks[c];
        same = !first->ndim || memcmp(a->offsets, b->offsets, first->ndim * sizeof *a->offsets) == 0;
        if (same) TSR_TRY(tsr_shards_equal_chunks(&j->equality, first, a, b, &same, j->err));
    }
    TSR_FAIL_IF(!same, j->err, TSR_E_FORMAT, "'%.*s' is in several pipeline stages and differs between them%s",
                TSR_STR_ARG(first->fqn), j->stages.first ? "" : "; if it is a layer, the map needs \"stages\"");
    return tsr_entry_add_replicas(first, second, j->arena, j->err);
}

static tsr_status add(join *j, const tsr_entry *made)
{
    uint32_t *number;
    bool is_new;
    TSR_TRY(tsr_map_put(j->names, made->fqn, (uint32_t)j->joined.count, &number, &is_new, j->err));
    tsr_entry *known = is_new ? tsr_vec_push(&j->joined, j->err) : (tsr_entry *)j->joined.items + *number;
    if (!known) return TSR_E_NOMEM;
    if (is_new) *known = *made;
    else if (is_tensor(made) && is_tensor(known)) return merge_stages(j, known, made);
    return TSR_OK; /* for objects, the first stage's is kept, as is the first rank's (torch/rank-object) */
}

static tsr_status join_entry(join *j, const tsr_entry *entry, uint32_t stage)
{
    tsr_shards_held held = {held_by(j, entry, stage), j->ranks, {NULL, 0}};
    const tsr_entry *first = first_of(j, held.tensors);
    if (!first) return TSR_OK;
    tsr_entry made = *first;
    if (entry->storage_id && first == entry->per_rank->tensors[0]) made.storage_id = entry->storage_id;
    else made.storage_id = 0;
    TSR_TRY(tsr_shards_rename(&j->stages, stage, j->arena, &made, j->err));
    held.fqn = made.fqn;
    bool any_tensor = false;
    for (uint32_t r = 0; r < j->ranks; r++) any_tensor = any_tensor || (held.tensors[r] && is_tensor(held.tensors[r]));
    if (any_tensor) TSR_TRY(settle(j, entry, &held, stage, &made));
    return add(j, &made);
}

static tsr_status report_left(const join *j)
{
    if (!j->left) return TSR_OK;
    return tsr_finding_add_at(j->checkpoint->findings, (tsr_rated_rule){"torch/rank-differs", TSR_NOTE}, TSR_NOWHERE, j->err,
                              "%" PRIu64 " %s no rule in %.*s and %s listed per rank", j->left,
                              j->left == 1 ? "tensor has" : "tensors have", TSR_STR_ARG(j->map->name),
                              j->left == 1 ? "stays" : "stay");
}

static tsr_status join_all(join *j)
{
    tsr_catalog *catalog = &j->checkpoint->catalog;
    TSR_TRY(number_stages(j));
    for (uint32_t s = 0; s < j->stages.count; s++)
        for (uint64_t e = 0; e < catalog->entry_count; e++) TSR_TRY(join_entry(j, &catalog->entries[e], s));
    tsr_entry *entries = tsr_arena_array(j->arena, j->joined.count, sizeof *entries, j->err);
    if (!entries) return TSR_E_NOMEM;
    if (j->joined.count) memcpy(entries, j->joined.items, j->joined.count * sizeof *entries);
    catalog->entries = entries;
    catalog->entry_count = j->joined.count;
    catalog->format = TSR_FORMAT_SHARDS;
    return report_left(j);
}

tsr_status tsr_shards_join(tsr_checkpoint *checkpoint, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    const tsr_catalog *catalog = &checkpoint->catalog;
    if (!checkpoint->joined_ranks || !catalog->entry_count) return TSR_OK;
    join j = {.checkpoint = checkpoint,
              .map = checkpoint->options.shards,
              .arena = checkpoint->arena,
              .equality = tsr_shards_equality_of(checkpoint),
              .joined = tsr_vec_of(allocator, sizeof(tsr_entry)),
              .err = err};
    const uint32_t stages = checkpoint->stages ? checkpoint->stages : 1;
    j.ranks = catalog->entries[0].per_rank->count / stages;
    j.names = tsr_map_new(allocator, 0, err);
    tsr_status status = j.names ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK && j.map->family) status = j.map->family->settings(checkpoint, j.ranks, stages, &j.settings, err);
    if (status == TSR_OK) status = join_all(&j);
    tsr_map_free(j.names);
    tsr_vec_free(&j.joined);
    return status;
}
