/* See aws_profile.h. Source: AWS's documentation of the configuration and credential files. */
#include "object_store/aws_profile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tessera/sys/try.h"

enum { MOST_BYTES = 1 << 20 };

static tsr_str trim(tsr_str text)
{
    while (text.size && strchr(" \t\r", text.data[0])) text = (tsr_str){text.data + 1, text.size - 1};
    while (text.size && strchr(" \t\r", text.data[text.size - 1])) text.size--;
    return text;
}

static tsr_str take_line(tsr_str *text)
{
    const char *end = memchr(text->data, '\n', text->size);
    const tsr_str line = {text->data, end ? (size_t)(end - text->data) : text->size};
    const size_t used = line.size + (end != NULL);
    *text = (tsr_str){text->data + used, text->size - used};
    return line;
}

/* The lines after "[name]" and before the next section. */
static tsr_str section(tsr_str text, const char *name)
{
    tsr_str found = {NULL, 0};
    while (text.size) {
        const char *at = text.data;
        const tsr_str line = trim(take_line(&text));
        if (!line.size || line.data[0] != '[') continue;
        if (found.data) return (tsr_str){found.data, (size_t)(at - found.data)};
        if (line.data[line.size - 1] == ']' &&
            tsr_str_equal(trim((tsr_str){line.data + 1, line.size - 2}), tsr_str_from(name)))
            found = text;
    }
    return found;
}

/* The value of a setting. Lines that begin with a space are continuations of the previous setting. */
static tsr_str get(tsr_str text, const char *setting)
{
    while (text.size) {
        const tsr_str line = take_line(&text);
        const char *equals = line.size ? memchr(line.data, '=', line.size) : NULL;
        if (!equals || strchr(" \t#;", line.data[0])) continue;
        const tsr_str name = trim((tsr_str){line.data, (size_t)(equals - line.data)});
        const tsr_str value = trim((tsr_str){equals + 1, (size_t)(line.data + line.size - equals - 1)});
        if (tsr_str_equal(name, tsr_str_from(setting)) && value.size) return value;
    }
    return (tsr_str){NULL, 0};
}

static tsr_status read_file(const char *path, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    *out = TSR_STR("");
    FILE *file = fopen(path, "rbe");
    if (!file && (errno == ENOENT || errno == ENOTDIR)) return TSR_OK;
    TSR_FAIL_IF(!file, err, TSR_E_IO, "'%s' cannot be read: %s", path, strerror(errno));
    char *bytes = tsr_arena_array(arena, MOST_BYTES, 1, err);
    if (bytes) *out = (tsr_str){bytes, fread(bytes, 1, MOST_BYTES, file)};
    const bool bad = ferror(file);
    fclose(file);
    TSR_FAIL_IF(bad, err, TSR_E_IO, "'%s' cannot be read", path);
    return bytes ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status read_named(const char *variable, const char *usual, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const char *given = getenv(variable), *home = getenv("HOME");
    if (given && *given) return read_file(given, arena, out, err);
    *out = TSR_STR("");
    if (!home || !*home) return TSR_OK;
    const tsr_str path = tsr_arena_format(arena, err, "%s/.aws/%s", home, usual);
    return path.data ? read_file(path.data, arena, out, err) : TSR_E_NOMEM;
}

tsr_status tsr_aws_profile_read(tsr_arena *arena, tsr_aws_profile *out, tsr_error *err)
{
    const char *given = getenv("AWS_PROFILE");
    tsr_str credentials, config;
    *out = (tsr_aws_profile){.name = given && *given ? given : "default"};
    TSR_TRY(read_named("AWS_SHARED_CREDENTIALS_FILE", "credentials", arena, &credentials, err));
    TSR_TRY(read_named("AWS_CONFIG_FILE", "config", arena, &config, err));
    const tsr_str title = tsr_arena_format(arena, err, "profile %s", out->name);
    if (!title.data) return TSR_E_NOMEM;
    out->credentials = section(credentials, out->name);
    out->config = section(config, title.data);
    if (!out->config.data && strcmp(out->name, "default") == 0) out->config = section(config, "default");
    TSR_FAIL_IF(given && *given && !out->credentials.data && !out->config.data, err, TSR_E_NOT_FOUND,
                "the profile '%s' of AWS_PROFILE is neither in AWS's credentials file nor in its configuration file", given);
    return TSR_OK;
}

tsr_str tsr_aws_profile_get(const tsr_aws_profile *profile, const char *setting)
{
    const tsr_str value = get(profile->credentials, setting);
    return value.data ? value : get(profile->config, setting);
}
