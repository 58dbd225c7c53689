/* See tessera/sys/commands.h. */
#include "base/line.h"
#include "commands/command_request_read.h"
#include "tessera/convert.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/try.h"

/* ---- values ---- */

static const void *field_of(const tsr_option *option, const tsr_command_options *options)
{
    return (const char *)options + option->field;
}

/* How many values an option has. */
static size_t count_of(const tsr_option *option, const tsr_command_options *options)
{
    const void *field = field_of(option, options);
    switch (option->type) {
    case TSR_OPTION_FLAG: return *(const bool *)field;
    case TSR_OPTION_TEXT:
    case TSR_OPTION_DOCUMENT:
    case TSR_OPTION_CHECKPOINT:
    case TSR_OPTION_MODEL: return *(const char *const *)field != NULL;
    case TSR_OPTION_TEXTS: return ((const tsr_texts *)field)->count;
    case TSR_OPTION_CHOICE: return *(const unsigned *)field != 0;
    case TSR_OPTION_SIZE:
    case TSR_OPTION_COUNT: return *(const uint64_t *)field != 0;
    case TSR_OPTION_NUMBER: return ((const tsr_given_number *)field)->given;
    case TSR_OPTION_REAL: return ((const tsr_given_real *)field)->given;
    }
    return 0;
}

/* The word of a choice. */
static tsr_str word_of(const tsr_option *option, unsigned number)
{
    const char *rest = option->value;
    while (--number) tsr_choice_word(&rest);
    return tsr_choice_word(&rest);
}

static void write_value(tsr_json *json, const tsr_option *option, const tsr_command_options *options)
{
    const void *field = field_of(option, options);
    const tsr_texts *texts = field;
    switch (option->type) {
    case TSR_OPTION_FLAG: tsr_json_bool(json, true); return;
    case TSR_OPTION_TEXT:
    case TSR_OPTION_DOCUMENT:
    case TSR_OPTION_CHECKPOINT:
    case TSR_OPTION_MODEL: tsr_json_text(json, *(const char *const *)field); return;
    case TSR_OPTION_TEXTS:
        tsr_json_array(json);
        for (size_t i = 0; i < texts->count; i++) tsr_json_text(json, texts->items[i]);
        tsr_json_array_end(json);
        return;
    case TSR_OPTION_CHOICE: tsr_json_str(json, word_of(option, *(const unsigned *)field)); return;
    case TSR_OPTION_SIZE:
    case TSR_OPTION_COUNT: tsr_json_uint(json, *(const uint64_t *)field); return;
    case TSR_OPTION_NUMBER: tsr_json_uint(json, ((const tsr_given_number *)field)->value); return;
    case TSR_OPTION_REAL: tsr_json_double(json, ((const tsr_given_real *)field)->value); return;
    }
}

static tsr_str text_of_real(double value, tsr_arena *arena, tsr_error *err)
{
    char text[40];
    tsr_line line = tsr_line_on(text, sizeof text);
    tsr_line_real(&line, value, false);
    return tsr_arena_str(arena, (tsr_str){text, line.used}, err);
}

/* The text of value `i`; data NULL if there is no memory for it. */
static tsr_str text_of(const tsr_option *option, const tsr_command_options *options, size_t i, tsr_arena *arena,
                       tsr_error *err)
{
    const void *field = field_of(option, options);
    switch (option->type) {
    case TSR_OPTION_FLAG: return TSR_STR("");
    case TSR_OPTION_TEXT:
    case TSR_OPTION_DOCUMENT:
    case TSR_OPTION_CHECKPOINT:
    case TSR_OPTION_MODEL: return tsr_str_from(*(const char *const *)field);
    case TSR_OPTION_TEXTS: return tsr_str_from(((const tsr_texts *)field)->items[i]);
    case TSR_OPTION_CHOICE: return tsr_arena_str(arena, word_of(option, *(const unsigned *)field), err);
    case TSR_OPTION_SIZE:
    case TSR_OPTION_COUNT: return tsr_arena_format(arena, err, "%llu", (unsigned long long)*(const uint64_t *)field);
    case TSR_OPTION_NUMBER:
        return tsr_arena_format(arena, err, "%llu", (unsigned long long)((const tsr_given_number *)field)->value);
    case TSR_OPTION_REAL: return text_of_real(((const tsr_given_real *)field)->value, arena, err);
    }
    return TSR_STR("");
}

tsr_status tsr_request_list(const tsr_command_request *request, tsr_arena *arena, const tsr_option_value **out,
                            size_t *count, tsr_error *err)
{
    const tsr_option *const *const options = request->command->options;
    *count = 0;
    for (size_t i = 0; options[i]; i++) *count += count_of(options[i], &request->options);
    tsr_option_value *values = tsr_arena_array(arena, *count, sizeof *values, err);
    if (!values) return TSR_E_NOMEM;
    *out = values;
    *count = 0;
    for (size_t i = 0; options[i]; i++) {
        const size_t given = options[i]->role == TSR_OPTION_OF_RUN ? 0 : count_of(options[i], &request->options);
        for (size_t j = 0; j < given; j++) {
            const tsr_str text = text_of(options[i], &request->options, j, arena, err);
            if (!text.data) return TSR_E_NOMEM;
            values[(*count)++] = (tsr_option_value){options[i], options[i]->type == TSR_OPTION_FLAG ? NULL : text.data};
        }
    }
    return TSR_OK;
}

void tsr_options_override(const tsr_command *command, const tsr_command_options *given, tsr_command_options *out)
{
    static const size_t sizes[] = {
        [TSR_OPTION_FLAG] = sizeof(bool),           [TSR_OPTION_TEXT] = sizeof(char *),
        [TSR_OPTION_TEXTS] = sizeof(tsr_texts),     [TSR_OPTION_CHOICE] = sizeof(unsigned),
        [TSR_OPTION_REAL] = sizeof(tsr_given_real), [TSR_OPTION_NUMBER] = sizeof(tsr_given_number),
        [TSR_OPTION_COUNT] = sizeof(uint64_t),      [TSR_OPTION_SIZE] = sizeof(uint64_t),
        [TSR_OPTION_DOCUMENT] = sizeof(char *),     [TSR_OPTION_CHECKPOINT] = sizeof(char *),
        [TSR_OPTION_MODEL] = sizeof(char *)};
    const tsr_option *const *const lists[] = {command->options, tsr_global_options};
    for (size_t i = 0; i < 2; i++) {
        for (const tsr_option *const *option = lists[i]; *option; option++)
            if (count_of(*option, given))
                memcpy((char *)out + (*option)->field, field_of(*option, given), sizes[(*option)->type]);
    }
}

/* TSR_E_USAGE if an option is given that `command` does not have, or not in this form; `given` is by the options of `of`. */
static tsr_status options_fit(const tsr_command *of, const tsr_command_options *given, const tsr_command *command,
                              tsr_error *err)
{
    for (const tsr_option *const *option = of->options; *option; option++) {
        if ((*option)->role == TSR_OPTION_OF_RUN || !count_of(*option, given)) continue;
        const tsr_option *same = tsr_option_find(command->options, tsr_str_from((*option)->name));
        TSR_FAIL_IF(!same, err, TSR_E_USAGE, "%s has no option --%s", command->name, (*option)->name);
        if (same->type != TSR_OPTION_CHOICE) continue;
        tsr_command_options ignored;
        const tsr_str word = word_of(*option, *(const unsigned *)field_of(*option, given));
        char text[32];
        tsr_line line = tsr_line_on(text, sizeof text);
        tsr_line_put(&line, word.data, word.size);
        text[line.used] = '\0';
        TSR_TRY(tsr_option_set(same, text, NULL, &ignored, err));
    }
    return TSR_OK;
}

/* ---- document ---- */

void tsr_request_write(tsr_json *json, const tsr_command_request *request)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.request/1");
    tsr_json_put_text(json, "command", request->command->name);
    tsr_json_put_object(json, "options");
    for (const tsr_option *const *option = request->command->options; *option; option++) {
        if ((*option)->role == TSR_OPTION_OF_RUN || !count_of(*option, &request->options)) continue;
        tsr_json_key(json, (*option)->name);
        write_value(json, *option, &request->options);
    }
    tsr_json_object_end(json);
    tsr_json_object_end(json);
}

static tsr_status set_option(const tsr_option *option, const cJSON *item, tsr_arena *arena, tsr_command_options *out,
                             tsr_error *err)
{
    uint64_t number;
    tsr_str text = TSR_STR("");
    if (option->type == TSR_OPTION_FLAG && cJSON_IsFalse(item)) return TSR_OK;
    if (cJSON_IsString(item)) text = tsr_arena_str(arena, tsr_json_text_of(item), err);
    else if (option->type == TSR_OPTION_REAL && cJSON_IsNumber(item)) text = text_of_real(item->valuedouble, arena, err);
    else if (cJSON_IsNumber(item)) {
        TSR_TRY(tsr_json_to_u64(item, option->name, &number, err));
        text = tsr_arena_format(arena, err, "%llu", (unsigned long long)number);
    }
    if (!text.data) return TSR_E_NOMEM;
    TSR_FAIL_IF(!cJSON_IsString(item) && !cJSON_IsNumber(item) && !(cJSON_IsTrue(item) && option->type == TSR_OPTION_FLAG),
                err, TSR_E_FORMAT, "request.options: %s has a value of a type that it does not take", option->name);
    return tsr_option_set(option, text.data, arena, out, err);
}

tsr_status tsr_request_of(const cJSON *root, tsr_arena *arena, tsr_command_request *out, tsr_error *err)
{
    const cJSON *schema, *command, *options, *item, *one;
    *out = (tsr_command_request){.command = NULL};
    TSR_TRY(tsr_json_get(root, "schema", TSR_JSON_STRING, "request", &schema, err));
    TSR_FAIL_IF(strcmp(schema->valuestring, "tessera.request/1") != 0, err, TSR_E_FORMAT,
                "request: unexpected schema '%s'; expected tessera.request/1", schema->valuestring);
    TSR_TRY(tsr_json_get(root, "command", TSR_JSON_STRING, "request", &command, err));
    out->command = tsr_command_find(tsr_json_text_of(command));
    TSR_FAIL_IF(!out->command, err, TSR_E_FORMAT, "request: there is no command '%s'", command->valuestring);
    TSR_TRY(tsr_json_get(root, "options", TSR_JSON_OBJECT, "request", &options, err));
    cJSON_ArrayForEach(item, options)
    {
        const tsr_option *option = tsr_option_find(out->command->options, tsr_str_from(item->string));
        TSR_FAIL_IF(!option, err, TSR_E_FORMAT, "request.options: %s has no option '%s'", out->command->name, item->string);
        const bool is_list = option->type == TSR_OPTION_TEXTS && cJSON_IsArray(item);
        if (!is_list) TSR_TRY(set_option(option, item, arena, &out->options, err));
        else cJSON_ArrayForEach(one, item) TSR_TRY(set_option(option, one, arena, &out->options, err));
    }
    return TSR_OK;
}

tsr_status tsr_plan_request(tsr_checkpoint *checkpoint, const tsr_command_options *options, bool reshards, tsr_arena *arena,
                            tsr_command_request *out, tsr_error *err)
{
    tsr_convert_options casts;
    *out = (tsr_command_request){tsr_command_find(reshards ? TSR_STR("reshard") : TSR_STR("convert")), *options};
    tsr_command_options *o = &out->options;
    o->target = o->mesh = o->placements = NULL;
    TSR_TRY(options_fit(tsr_command_find(TSR_STR("plan")), o, out->command, err));
    o->storage = NULL;
    if (reshards && !o->to) o->to = 1 + (unsigned)tsr_container_for(tsr_checkpoint_catalog(checkpoint)->format);
    TSR_TRY(tsr_conversion_options(options, o->to ? (tsr_container)(o->to - 1) : TSR_TO_DCP, arena, &casts, err));
    return tsr_check_casts(checkpoint, &casts, err);
}
