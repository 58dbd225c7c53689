/* tessera.latest/1: the newest checkpoint of a run that would load, and the newer ones that would not. */
#include "tessera/sys/document.h"
#include "tessera/sys/latest.h"
#include "tessera/sys/try.h"

tsr_status tsr_latest_path(tsr_str run, tsr_str path, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const bool is_separate = path.size && run.size && run.data[run.size - 1] != '/';
    *out = tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(run), is_separate ? "/" : "", TSR_STR_ARG(path));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status put_path(tsr_json *json, tsr_str run, tsr_str path, tsr_arena *arena, tsr_error *err)
{
    tsr_str whole;
    TSR_TRY(tsr_latest_path(run, path, arena, &whole, err));
    tsr_json_put_str(json, "path", whole);
    return TSR_OK;
}

tsr_status tsr_document_latest(const tsr_latest *latest, tsr_str run, tsr_arena *arena, tsr_json *json, tsr_error *err)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.latest/1");
    tsr_json_put_str(json, "run", run);
    if (latest->found) {
        TSR_TRY(put_path(json, run, latest->path, arena, err));
        if (latest->has_step) tsr_json_put_uint(json, "step", latest->step);
    }
    tsr_json_put_array(json, "passed_over");
    for (size_t i = 0; i < latest->passed_count; i++) {
        const tsr_passed_over *passed = &latest->passed_over[i];
        tsr_json_object(json);
        TSR_TRY(put_path(json, run, passed->path, arena, err));
        if (passed->has_step) tsr_json_put_uint(json, "step", passed->step);
        tsr_json_put_str(json, "reason", passed->reason);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_object_end(json);
    return json->status;
}
