/* Finds options in the table, sets their values from texts, and writes the table. */
#include <stdlib.h>

#include "tessera/sys/commands.h"
#include "tessera/sys/text.h"

const tsr_command *tsr_command_find(tsr_str name)
{
    for (const tsr_command *command = tsr_commands; command->name; command++) {
        if (tsr_str_equal(tsr_str_from(command->name), name)) return command;
    }
    return NULL;
}

const tsr_option *tsr_option_find(const tsr_option *const *options, tsr_str name)
{
    for (; *options; options++) {
        if (tsr_str_equal(tsr_str_from((*options)->name), name)) return *options;
    }
    return NULL;
}

static tsr_status refuse(const tsr_option *option, const char *allowed, const char *value, tsr_error *err)
{
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "--%s takes %s, not '%s'", option->name, allowed, value);
}

/* Lists have no capacity: it is the power of two that is not less than the count. */
static tsr_status append(tsr_texts *texts, const char *value, tsr_arena *arena, tsr_error *err)
{
    const size_t count = texts->count;
    if ((count & (count - 1)) == 0) {
        const char **items = tsr_arena_array(arena, count ? 2 * count : 1, sizeof *items, err);
        if (!items) return TSR_E_NOMEM;
        if (count) memcpy(items, texts->items, count * sizeof *items);
        texts->items = items;
    }
    texts->items[texts->count++] = value;
    return TSR_OK;
}

tsr_str tsr_choice_word(const char **rest)
{
    const char *word = *rest, *bar = strchr(word, '|');
    *rest = bar ? bar + 1 : NULL;
    return (tsr_str){word, bar ? (size_t)(bar - word) : strlen(word)};
}

static tsr_status set_choice(const tsr_option *option, const char *value, unsigned *field, tsr_error *err)
{
    const char *rest = option->value;
    for (unsigned number = 1; rest; number++) {
        if (!tsr_str_equal(tsr_str_from(value), tsr_choice_word(&rest))) continue;
        *field = number;
        return TSR_OK;
    }
    return refuse(option, option->value, value, err);
}

/* Fewer than 19 digits always fit in 64 bits. */
static bool read_number(const char *value, char first, uint64_t *out)
{
    char *end;
    *out = strtoull(value, &end, 10);
    return *value >= first && *value <= '9' && *end == '\0' && strlen(value) < 19;
}

static bool read_real(const char *value, double *out)
{
    char *end;
    *out = tsr_real_read(value, &end);
    return end != value && *end == '\0' && *out >= 0;
}

tsr_status tsr_option_set(const tsr_option *option, const char *value, tsr_arena *arena, tsr_command_options *options,
                          tsr_error *err)
{
    void *field = (char *)options + option->field;
    tsr_given_number *number = field;
    tsr_given_real *real = field;
    switch (option->type) {
    case TSR_OPTION_FLAG: *(bool *)field = true; return TSR_OK;
    case TSR_OPTION_TEXT:
    case TSR_OPTION_DOCUMENT:
    case TSR_OPTION_CHECKPOINT:
    case TSR_OPTION_MODEL: *(const char **)field = value; return TSR_OK;
    case TSR_OPTION_TEXTS: return append(field, value, arena, err);
    case TSR_OPTION_CHOICE: return set_choice(option, value, field, err);
    case TSR_OPTION_SIZE:
        if (tsr_size_parse(value, field)) return TSR_OK;
        return refuse(option, "a size such as 512MB or 2GiB", value, err);
    case TSR_OPTION_COUNT:
        if (read_number(value, '1', field)) return TSR_OK;
        return refuse(option, "a whole number of 1 or more", value, err);
    case TSR_OPTION_NUMBER:
        number->given = read_number(value, '0', &number->value);
        return number->given ? TSR_OK : refuse(option, "a whole number of 0 or more", value, err);
    case TSR_OPTION_REAL:
        real->given = read_real(value, &real->value);
        return real->given ? TSR_OK : refuse(option, "a number of 0 or more", value, err);
    }
    return TSR_OK;
}

/* ---- the table as JSON ---- */

static void write_words(tsr_json *json, const char *words)
{
    tsr_json_put_array(json, "words");
    while (words) tsr_json_str(json, tsr_choice_word(&words));
    tsr_json_array_end(json);
}

static void write_options(tsr_json *json, const tsr_option *const *options)
{
    static const char *const types[] = {[TSR_OPTION_FLAG] = "flag",
                                        [TSR_OPTION_TEXT] = "text",
                                        [TSR_OPTION_TEXTS] = "texts",
                                        [TSR_OPTION_CHOICE] = "choice",
                                        [TSR_OPTION_REAL] = "real",
                                        [TSR_OPTION_NUMBER] = "number",
                                        [TSR_OPTION_COUNT] = "count",
                                        [TSR_OPTION_SIZE] = "size",
                                        [TSR_OPTION_DOCUMENT] = "document",
                                        [TSR_OPTION_MODEL] = "model",
                                        [TSR_OPTION_CHECKPOINT] = "checkpoint"};
    tsr_json_put_array(json, "options");
    for (; *options; options++) {
        const tsr_option *option = *options;
        tsr_json_object(json);
        tsr_json_put_text(json, "name", option->name);
        tsr_json_put_text(json, "type", types[option->type]);
        if (option->type == TSR_OPTION_CHOICE) write_words(json, option->value);
        tsr_json_put_text(json, "help", option->help);
        tsr_json_put_text(json, "default", option->by_default);
        tsr_json_put_text(json, "not_in_npm", option->npm);
        if (option->npm_name) tsr_json_put_text(json, "npm_name", option->npm_name);
        if (option->npm_opens) tsr_json_put_bool(json, "npm_opens", true);
        if (option->npm_needs) tsr_json_put_bool(json, "npm_needs", true);
        tsr_json_put_text(json, "not_in_python", option->python);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
}

static void write_python(tsr_json *json, const tsr_command *command)
{
    tsr_json_put_array(json, "python");
    if (!command->python) tsr_json_text(json, command->name);
    for (const char *const *name = command->python; name && *name; name++) tsr_json_text(json, *name);
    tsr_json_array_end(json);
}

tsr_status tsr_commands_write(tsr_json *json)
{
    tsr_json_object(json);
    tsr_json_put_array(json, "commands");
    for (const tsr_command *command = tsr_commands; command->name; command++) {
        tsr_json_object(json);
        tsr_json_put_text(json, "name", command->name);
        tsr_json_put_text(json, "summary", command->summary);
        tsr_json_put_text(json, "operands", command->operands);
        tsr_json_put_text(json, "npm", command->npm);
        write_python(json, command);
        write_options(json, command->options);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    write_options(json, tsr_global_options);
    tsr_json_object_end(json);
    return tsr_json_finish(json);
}
