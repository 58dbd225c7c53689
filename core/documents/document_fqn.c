/* tessera.fqn/1: canonical names, what was removed from each and why, and names that collide. */
#include "tessera/sys/document.h"

static void put_removed(tsr_json *json, const tsr_name *name)
{
    tsr_json_key(json, "removed");
    tsr_json_array(json);
    for (size_t i = 0; i < name->removed_count; i++) {
        tsr_json_object(json);
        tsr_json_key(json, "component");
        tsr_json_str(json, name->removed[i].component);
        tsr_json_key(json, "why");
        tsr_json_str(json, name->removed[i].why);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void put_name(tsr_json *json, const tsr_name *name)
{
    tsr_json_object(json);
    tsr_json_key(json, "raw");
    tsr_json_str(json, name->raw);
    tsr_json_strs(json, "fqns", name->fqns, name->fqn_count);
    put_removed(json, name);
    if (name->ambiguity.size) {
        tsr_json_key(json, "ambiguity");
        tsr_json_str(json, name->ambiguity);
    }
    tsr_json_object_end(json);
}

static void put_collisions(tsr_json *json, const tsr_fqn_document *d)
{
    tsr_json_key(json, "collisions");
    tsr_json_array(json);
    for (size_t i = 0; i < d->collision_count; i++) {
        tsr_json_object(json);
        tsr_json_key(json, "fqn");
        tsr_json_str(json, d->collisions[i].fqn);
        tsr_json_key(json, "raw");
        tsr_json_array(json);
        for (size_t n = 0; n < d->collisions[i].count; n++) tsr_json_str(json, d->names[d->collisions[i].names[n]].raw);
        tsr_json_array_end(json);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

tsr_status tsr_document_fqn(const tsr_fqn_document *d, tsr_json *json)
{
    tsr_json_object(json);
    tsr_json_key(json, "schema");
    tsr_json_text(json, "tessera.fqn/1");
    tsr_json_key(json, "by");
    tsr_json_text(json, d->by_text ? "text" : "modules");
    tsr_json_key(json, "names");
    tsr_json_array(json);
    for (size_t i = 0; i < d->count; i++) put_name(json, &d->names[i]);
    tsr_json_array_end(json);
    put_collisions(json, d);
    if (d->more) d->more(d->more_ctx, json);
    tsr_json_object_end(json);
    return json->status;
}
