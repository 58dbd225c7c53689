/* Opens the source of an optimizer conversion as value trees, and finds the optimizer in them. */
#include <inttypes.h>

#include "optim_convert/optim_job.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/try.h"
#include "tessera/sys/validate.h"
#include "tessera/sys/write_tree.h"

static tsr_status find_rank_files(const tsr_optim_job *j, uint32_t *files, tsr_error *err)
{
    TSR_FAIL_IF(j->flat.file_count != j->flat.world_size, err, TSR_E_USAGE,
                "the flat-params document does not list the ranks' files; list one per rank under \"files\"");
    for (uint32_t rank = 0; rank < j->flat.world_size; rank++) {
        files[rank] = tsr_store_find(j->store, j->flat.files[rank]);
        if (files[rank] != TSR_NO_FILE) continue;
        tsr_fail(err, TSR_E_NOT_FOUND, "there is no file '%.*s' for rank %" PRIu32, TSR_STR_ARG(j->flat.files[rank]), rank);
        if (j->request.source) tsr_error_context(err, "%s", j->request.source);
        return TSR_E_NOT_FOUND;
    }
    return TSR_OK;
}

/* Rejects the source if a finding is an error, such as a pickle that would call something. */
static tsr_status refuse_errors(const tsr_optim_job *j, tsr_error *err)
{
    const tsr_findings *findings = tsr_checkpoint_findings(j->trees.checkpoint);
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        TSR_FAIL_IF(f->level == TSR_ERROR, err, TSR_E_FORMAT, "%.*s", TSR_STR_ARG(f->message));
        if (f->level == TSR_WARNING) tsr_optim_warn(j, f->message);
    }
    return TSR_OK;
}

tsr_status tsr_optim_open_source(tsr_optim_job *j, tsr_error *err)
{
    if (j->request.action == TSR_OPTIM_UNSHARD) {
        uint32_t *files = tsr_arena_array(j->arena, j->flat.world_size, sizeof *files, err);
        if (!files) return TSR_E_NOMEM;
        TSR_TRY(find_rank_files(j, files, err));
        TSR_TRY(tsr_trees_open(j->store, j->host, files, j->flat.world_size, &j->trees, err));
    } else {
        TSR_TRY(tsr_trees_of_part(j->store, j->host, j->request.part, j->request.action == TSR_OPTIM_SHARD, &j->trees, err));
    }
    return refuse_errors(j, err);
}

/* Whether a value is an optimizer's state dict: nested, or flat with at least one key. */
static bool is_optimizer(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_DICT) return false;
    if (tsr_value_get(value, TSR_STR("param_groups"))) return true;
    return value->count && value->items[0]->kind == TSR_VALUE_STR &&
           (tsr_str_starts(value->items[0]->text, TSR_STR("state.")) ||
            tsr_str_starts(value->items[0]->text, TSR_STR("param_groups.")));
}

/* ---- by its name ---- */

/* Removes a key or position and its dot from the beginning of `at`. False if `at` does not begin with it. */
static bool take_step(tsr_str *at, tsr_str step)
{
    if (!tsr_str_starts(*at, step) || at->size == step.size + 1) return false;
    if (at->size > step.size && at->data[step.size] != '.') return false;
    const size_t used = step.size + (at->size > step.size ? 1 : 0);
    *at = (tsr_str){at->data + used, at->size - used};
    return true;
}

/* The value at `at`, keys and positions joined by dots; NULL if there is none. Keys may contain dots. Every step shortens the
 * name, which bounds the depth. */
static const tsr_value *value_at(const tsr_value *value, tsr_str at)
{
    const bool is_dict = value->kind == TSR_VALUE_DICT;
    if (!at.size) return value;
    if (!is_dict && value->kind != TSR_VALUE_LIST && value->kind != TSR_VALUE_TUPLE) return NULL;
    for (size_t i = 0; i < value->count; i += is_dict ? 2 : 1) {
        const tsr_value *key = is_dict ? value->items[i] : NULL;
        const tsr_path_item number = {.kind = TSR_PATH_INDEX, .integer = key ? key->as.integer : (int64_t)i};
        char digits[TSR_PATH_DIGITS];
        tsr_str rest = at;
        if (key && key->kind != TSR_VALUE_STR && key->kind != TSR_VALUE_INT) continue;
        const tsr_str step = key && key->kind == TSR_VALUE_STR ? key->text : tsr_path_item_text(&number, digits);
        if (!step.size || !take_step(&rest, step)) continue;
        const tsr_value *found = value_at(value->items[is_dict ? i + 1 : i], rest);
        if (found) return found;
    }
    return NULL;
}

/* ---- by its look ---- */

enum { MOST_DEPTH = 8, MOST_CONTAINERS = 1 << 16, OPTIMIZERS_SHOWN = 5 };

typedef struct search {
    const tsr_optim_job *job;
    tsr_found_optimizer first;
    size_t count, containers;
    tsr_str names; /* of those found, for the message */
    tsr_error *err;
} search;

static tsr_status add_found(search *s, const tsr_value *value, tsr_str name)
{
    if (!s->count++) s->first = (tsr_found_optimizer){value, name};
    if (s->count > OPTIMIZERS_SHOWN) return TSR_OK;
    s->names = tsr_arena_format(s->job->arena, s->err, "%.*s%s'%.*s'", TSR_STR_ARG(s->names), s->names.size ? ", " : "",
                                TSR_STR_ARG(name));
    return s->names.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status look_into(search *s, const tsr_value *value, tsr_str name, unsigned depth)
{
    const bool is_dict = value->kind == TSR_VALUE_DICT;
    if (is_optimizer(value)) return add_found(s, value, name);
    if (depth == MOST_DEPTH || (!is_dict && value->kind != TSR_VALUE_LIST)) return TSR_OK;
    for (size_t i = 0; i < value->count && s->containers < MOST_CONTAINERS; i += is_dict ? 2 : 1) {
        const tsr_value *item = value->items[is_dict ? i + 1 : i];
        tsr_str key;
        if (item->kind != TSR_VALUE_DICT && item->kind != TSR_VALUE_LIST) continue;
        s->containers++;
        char digits[TSR_PATH_DIGITS];
        const tsr_value *named = is_dict ? value->items[i] : NULL;
        if (named && named->kind != TSR_VALUE_STR && named->kind != TSR_VALUE_INT) continue;
        const tsr_path_item number = {.kind = TSR_PATH_INDEX, .integer = named ? named->as.integer : (int64_t)i};
        key = named && named->kind == TSR_VALUE_STR ? named->text : tsr_path_item_text(&number, digits);
        const tsr_str full =
            tsr_arena_format(s->job->arena, s->err, "%.*s%s%.*s", TSR_STR_ARG(name), name.size ? "." : "", TSR_STR_ARG(key));
        if (!full.data) return TSR_E_NOMEM;
        TSR_TRY(look_into(s, item, full, depth + 1));
    }
    return TSR_OK;
}

static tsr_status find_optimizer(const tsr_optim_job *j, const tsr_value *root, tsr_found_optimizer *out, tsr_error *err)
{
    search s = {.job = j, .names = {"", 0}, .err = err};
    *out = (tsr_found_optimizer){root, TSR_STR("")};
    if (j->request.at.data) {
        *out = (tsr_found_optimizer){j->request.at.size ? value_at(root, j->request.at) : NULL, j->request.at};
        TSR_FAIL_IF(!out->value, err, TSR_E_NOT_FOUND, "there is no '%.*s'", TSR_STR_ARG(j->request.at));
        return TSR_OK;
    }
    TSR_TRY(look_into(&s, root, TSR_STR(""), 0));
    TSR_FAIL_IF(s.count > 1, err, TSR_E_USAGE, "there are %zu optimizers; choose one with --at: %.*s%s", s.count,
                TSR_STR_ARG(s.names), s.count > OPTIMIZERS_SHOWN ? ", …" : "");
    if (s.count) *out = s.first;
    return TSR_OK;
}

tsr_status tsr_optim_find(const tsr_optim_job *j, const tsr_value *root, tsr_found_optimizer *out, tsr_error *err)
{
    const tsr_status status = find_optimizer(j, root, out, err);
    if (status != TSR_OK && j->request.source) tsr_error_context(err, "%s", j->request.source);
    return status;
}

/* ---- its states ---- */

static tsr_status refuse_states(const tsr_optim_job *j, const tsr_findings *findings, tsr_str name, const char *advice,
                                tsr_error *err)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *f = tsr_findings_at(findings, i);
        const bool inside =
            !name.size || (tsr_str_starts(f->fqn, name) && f->fqn.size > name.size && f->fqn.data[name.size] == '.');
        if (f->level != TSR_ERROR || !inside) continue;
        tsr_fail(err, TSR_E_FORMAT, "%.*s: %.*s%s", TSR_STR_ARG(f->fqn), TSR_STR_ARG(f->message), advice);
        if (j->request.source) tsr_error_context(err, "%s", j->request.source);
        return TSR_E_FORMAT;
    }
    return TSR_OK;
}

static tsr_status check_states(const tsr_optim_job *j, const tsr_catalog *catalog, tsr_str name, const char *advice,
                               tsr_error *err)
{
    tsr_findings *findings = tsr_findings_new(j->host->allocator, 0, err);
    tsr_status status = findings ? tsr_validate_optimizers(catalog, j->host, findings, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = refuse_states(j, findings, name, advice, err);
    tsr_findings_free(findings);
    return status;
}

tsr_status tsr_optim_check_joined(const tsr_optim_job *j, tsr_error *err)
{
    const tsr_open_options options = {.purpose = TSR_FOR_NAMES};
    const tsr_stored_tree tree = {.name = TSR_STR("optim.pt"), .root = j->result};
    tsr_store *store;
    tsr_checkpoint *checkpoint = NULL;
    TSR_TRY(tsr_tree_store_new(j->trees.checkpoint, &tree, 1, &store, err));
    tsr_status status = tsr_checkpoint_open(store, j->host, &options, &checkpoint, err);
    if (status == TSR_OK) status = check_states(j, tsr_checkpoint_catalog(checkpoint), TSR_STR(""), "", err);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    return status;
}

tsr_status tsr_optim_check_states(const tsr_optim_job *j, tsr_str name, tsr_error *err)
{
    static const char advice[] = "; run tessera validate to list all such states";
    const tsr_open_options options = {.purpose = TSR_FOR_NAMES, .part = j->request.part};
    const tsr_catalog *catalog = tsr_checkpoint_catalog(j->trees.checkpoint);
    tsr_checkpoint *checkpoint = NULL;
    if (catalog->entry_count) return check_states(j, catalog, name, advice, err);
    TSR_TRY(tsr_checkpoint_open(j->store, j->host, &options, &checkpoint, err)); /* a pickle was opened as a tree only */
    const tsr_status status = check_states(j, tsr_checkpoint_catalog(checkpoint), name, advice, err);
    tsr_checkpoint_close(checkpoint);
    return status;
}
