/* The command line's documents that depend on options. Each call opens the checkpoint again, as the command does. */
#include "request.h"
#include "tessera/sys/checkpoint.h"

typedef struct call_kind {
    const char *name;
    tsr_purpose purpose;
    bool whole;        /* examines every entry, whatever is selected */
    bool skip_objects; /* unless --hash was given */
    bool reads_values;
    tsr_status (*write)(call *call, tsr_json *json, tsr_error *err);
} call_kind;

static const call_kind kinds[] = {
    {"inspect", TSR_FOR_NAMES, true, false, false, tessera_write_inspect},
    {"layout", TSR_FOR_VALUES, false, true, false, tessera_write_layout},
    {"manifest", TSR_FOR_VALUES, false, false, true, tessera_write_manifest},
    {"validate", TSR_FOR_FINDINGS, true, false, false, tessera_write_validate},
    {"verify", TSR_FOR_VALUES, true, false, true, tessera_write_verify},
    {"plan", TSR_FOR_VALUES, false, true, false, tessera_write_plan},
};

typedef struct writing {
    const call_kind *kind;
    call *call;
} writing;

static tsr_status write_call(void *ctx, tsr_json *json, tsr_error *err)
{
    const writing *w = ctx;
    return w->kind->write(w->call, json, err);
}

static document *make(const call_kind *kind, uint32_t handle, const tessera_option *options, uint32_t count, tsr_error *err)
{
    call c = {.path = {NULL, 0}};
    writing w = {kind, &c};
    document *made = NULL;
    tsr_status status = tessera_call_start(&c, kind->name, options, count, err);
    const tsr_open_options wanted = {.skip_objects = kind->skip_objects && !c.request.options.hash,
                                     .purpose = kind->purpose,
                                     .selects = kind->whole ? NULL : tsr_globs_select,
                                     .selects_ctx = &c.request.options.selection};
    if (status == TSR_OK) status = tessera_call_open(&c, handle, &wanted, !kind->reads_values, err);
    if (status == TSR_OK) made = tessera_make_document(write_call, &w, err);
    tessera_call_close(&c);
    return made;
}

static tsr_status write_step(void *ctx, tsr_json *json, tsr_error *err)
{
    (void)err;
    const opened *item = ctx;
    const char *marker;
    const tsr_str step = item->checkpoint ? tsr_checkpoint_step(item->checkpoint, &marker) : (tsr_str){NULL, 0};
    tsr_json_str(json, step.data ? step : TSR_STR(""));
    return json->status;
}

/* Returns the directory of the checkpoint below the root that was opened, as a JSON string. Empty if it is the root
 * itself. */
TSR_EXPORT(tessera_step) document *tessera_step(uint32_t handle, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    return item ? tessera_make_document(write_step, item, err) : NULL;
}

/* Returns the document of the command with this name. */
TSR_EXPORT(tessera_call)
document *tessera_call(uint32_t handle, const char *name, const tessera_option *options, uint32_t count, tsr_error *err)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) return make(&kinds[i], handle, options, count, err);
    tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "there is no call '%s'", name);
    return NULL;
}
