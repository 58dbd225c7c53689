#include "write/object_json.h"

#include "formats/pickle/enum_names.h"

#include "tessera/sys/value_walk.h"

enum { REPR_BYTES = 1000, VALUE_DEPTH = 59 /* four containers are open around a value, the emitter allows 63 */ };

void tsr_put_dtype_and_shape(tsr_json *json, const tsr_entry *entry)
{
    tsr_json_key(json, "dtype");
    tsr_json_text(json, tsr_dtype_describe(entry->dtype)->name);
    if (entry->kind == TSR_ENTRY_OPAQUE && !entry->shape) return; /* not known */
    tsr_json_key(json, "shape");
    tsr_json_u64s(json, entry->shape, entry->rank);
}

void tsr_put_object(tsr_json *json, const tsr_entry *entry, const tsr_host *host)
{
    char text[REPR_BYTES];
    tsr_json_key(json, "type");
    tsr_json_str(json, entry->type);
    if (entry->kind == TSR_ENTRY_OPAQUE && entry->dtype != TSR_DTYPE_NONE) tsr_put_dtype_and_shape(json, entry);
    if (!entry->value) return;
    const tsr_value *member = tsr_enum_value(entry->value), *value = member ? member : entry->value;
    if (entry->kind == TSR_ENTRY_OBJECT && tsr_value_is_json(value, VALUE_DEPTH, host->limits.expansion)) {
        tsr_json_key(json, "value");
        tsr_json_value(json, value);
    } else {
        tsr_json_key(json, "repr");
        tsr_json_text(json, tsr_value_text(entry->value, text, sizeof text));
    }
}
