/* tessera.fqn/1: canonical names, what was removed from each and why, and names that collide. */
#include "tessera/sys/document.h"

static void put_removed(tsr_json *json, const tsr_name *name)
{
    tsr_json_put_array(json, "removed");
    for (size_t i = 0; i < name->removed_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "component", name->removed[i].component);
        tsr_json_put_str(json, "why", name->removed[i].why);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_name(tsr_json *json, const tsr_name *name)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "raw", name->raw);
    tsr_json_put_strs(json, "fqns", name->fqns, name->fqn_count);
    put_removed(json, name);
    if (name->ambiguity.size) tsr_json_put_str(json, "ambiguity", name->ambiguity);
    tsr_json_object_end(json);
}

static void put_collisions(tsr_json *json, const tsr_fqn_document *d)
{
    tsr_json_put_array(json, "collisions");
    for (size_t i = 0; i < d->collision_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "fqn", d->collisions[i].fqn);
        tsr_json_put_array(json, "raw");
        for (size_t n = 0; n < d->collisions[i].count; n++) tsr_json_str(json, d->names[d->collisions[i].names[n]].raw);
        tsr_json_array_end(json);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

tsr_status tsr_document_fqn(const tsr_fqn_document *d, tsr_json *json)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.fqn/1");
    tsr_json_put_text(json, "by", d->by_text ? "text" : "modules");
    tsr_json_put_array(json, "names");
    for (size_t i = 0; i < d->count; i++) put_name(json, &d->names[i]);
    tsr_json_array_end(json);
    put_collisions(json, d);
    if (d->more) d->more(d->more_ctx, json);
    tsr_json_object_end(json);
    return json->status;
}
