/* Finds the built-in maps by name. */
#include "mapping/mapping_builtin.h"

#include "codec/json.h"
#include "formats/common/shown_names.h"
#include "mapping/mapping_match.h"
#include "tessera/mapping.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/try.h"

#define TRANSFORMERS "transformers-"

tsr_str tsr_mapping_builtin_name(size_t index)
{
    const char *name = tsr_builtin_names;
    while (index-- && *name) name += strlen(name) + 1;
    return tsr_str_from(name);
}

tsr_status tsr_mapping_unknown(tsr_str name, tsr_error *err)
{
    tsr_shown_names names = {.used = 0};
    tsr_str builtin;
    for (size_t i = 0; (builtin = tsr_mapping_builtin_name(i)).size; i++) tsr_shown_names_add(&names, builtin);
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--map '%.*s' is neither a file nor a built-in map (%s%s)",
                     TSR_STR_ARG(name), names.text, tsr_shown_names_rest(&names));
}

tsr_str tsr_mapping_builtin(tsr_str name)
{
    tsr_str builtin;
    for (size_t i = 0; (builtin = tsr_mapping_builtin_name(i)).size; i++) {
        const struct tsr_builtin_document *document = &tsr_builtin_documents[tsr_builtin_numbers[i]];
        if (tsr_str_equal(builtin, name)) return (tsr_str){(const char *)document->text, document->size};
    }
    return (tsr_str){NULL, 0};
}

/* Whether the text is that of a built-in map from Hugging Face's names to those in the memory of transformers. */
static bool is_for_transformers(const void *text)
{
    tsr_str name;
    for (size_t i = 0; (name = tsr_mapping_builtin_name(i)).size; i++)
        if (tsr_builtin_documents[tsr_builtin_numbers[i]].text == text) return tsr_str_starts(name, TSR_STR(TRANSFORMERS));
    return false;
}

tsr_status tsr_model_check(const tsr_mapped *m, tsr_arena *arena, tsr_error *err)
{
    const cJSON *item = tsr_mapped_setting(m, "model_type");
    if (!cJSON_IsString(item) || !is_for_transformers(m->rules->text)) return TSR_OK;
    const tsr_str name = tsr_arena_format(arena, err, TRANSFORMERS "%s", item->valuestring);
    if (!name.data) return TSR_E_NOMEM;
    const tsr_str other = tsr_mapping_builtin(name);
    TSR_FAIL_IF(other.size && other.data != m->rules->text, err, TSR_E_FORMAT,
                "the map is not for the model_type of %s, '%s'; use the map %s", m->config_name, item->valuestring,
                name.data);
    return TSR_OK;
}
