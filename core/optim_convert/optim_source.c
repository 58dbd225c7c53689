/* Opens the source of an optimizer conversion as value trees, and finds the optimizer in them. */
#include <inttypes.h>

#include "optim_convert/optim_job.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/store_read.h"
#include "tessera/sys/try.h"

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

static tsr_status find_member(const tsr_optim_job *j, const tsr_value *root, const tsr_value **out, tsr_error *err)
{
    size_t found = 0;
    if (j->request.at.data) {
        *out = root->kind == TSR_VALUE_DICT ? tsr_value_get(root, j->request.at) : NULL;
        TSR_FAIL_IF(!*out, err, TSR_E_NOT_FOUND, "there is no '%.*s'", TSR_STR_ARG(j->request.at));
        return TSR_OK;
    }
    *out = root;
    if (is_optimizer(root) || root->kind != TSR_VALUE_DICT) return TSR_OK;
    for (size_t i = 1; i < root->count; i += 2) {
        if (!is_optimizer(root->items[i])) continue;
        *out = root->items[i];
        found++;
    }
    TSR_FAIL_IF(found > 1, err, TSR_E_USAGE, "there are %zu optimizers; choose one with --at NAME", found);
    return TSR_OK;
}

tsr_status tsr_optim_find(const tsr_optim_job *j, const tsr_value *root, const tsr_value **out, tsr_error *err)
{
    const tsr_status status = find_member(j, root, out, err);
    if (status != TSR_OK && j->request.source) tsr_error_context(err, "%s", j->request.source);
    return status;
}
