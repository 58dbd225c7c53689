/* See service.h. */
#include "object_store/service.h"

#include "tessera/sys/object_store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

static const struct {
    const char *scheme, *form;
    tsr_location_kind kind;
} schemes[] = {
    {"s3://", "s3://BUCKET/KEY", TSR_AT_S3},
    {"gs://", "gs://BUCKET/KEY", TSR_AT_GCS},
    {"az://", "az://ACCOUNT/CONTAINER/KEY", TSR_AT_AZURE},
    {"hf://", "hf://[datasets/]ORG/REPO[@REVISION][/PATH]", TSR_AT_HF},
};
enum { SCHEMES = sizeof schemes / sizeof *schemes };

bool tsr_is_object_url(const char *path)
{
    for (size_t i = 0; i < SCHEMES; i++)
        if (strncmp(path, schemes[i].scheme, 5) == 0) return true;
    return false;
}

/* Names of buckets, accounts and repositories become part of a host or a path, so other characters are not allowed. */
static bool is_name(tsr_str text)
{
    for (size_t i = 0; i < text.size; i++) {
        const char c = text.data[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || tsr_is_digit(c) || c == '-' || c == '.' || c == '_' ||
              c == '$'))
            return false;
    }
    return text.size > 0 && text.data[0] != '.';
}

/* Takes a revision. The names of references contain slashes, as in "@refs/pr/3/model.safetensors". */
static tsr_str take_revision(tsr_str *rest)
{
    const tsr_str whole = *rest;
    tsr_str first = tsr_str_take(rest, '/');
    if (!tsr_str_equal(first, TSR_STR("refs"))) return first;
    tsr_str_take(rest, '/');
    const tsr_str number = tsr_str_take(rest, '/');
    return (tsr_str){whole.data, (size_t)(number.data + number.size - whole.data)};
}

static bool parse_hf(tsr_str rest, tsr_location *out)
{
    const char *begin = rest.data;
    const tsr_str before = rest;
    if (tsr_str_equal(tsr_str_take(&rest, '/'), TSR_STR("datasets"))) {
        out->is_dataset = true;
        begin = rest.data;
    } else {
        rest = before;
    }
    const tsr_str owner = tsr_str_take(&rest, '/');
    const size_t at = (size_t)(rest.data - before.data);
    tsr_str repository = tsr_str_take(&rest, '/');
    const char *mark = repository.size ? memchr(repository.data, '@', repository.size) : NULL;
    if (mark) {
        const size_t from = (size_t)(mark + 1 - before.data);
        repository.size = (size_t)(mark - repository.data);
        rest = (tsr_str){mark + 1, before.size - from};
        out->revision = take_revision(&rest);
        if (!out->revision.size) return false;
    }
    if (!is_name(owner) || !is_name(repository) || at > before.size) return false;
    out->bucket = (tsr_str){begin, (size_t)(repository.data + repository.size - begin)};
    out->key = rest;
    return true;
}

tsr_status tsr_location_parse(const char *url, tsr_location *out, tsr_error *err)
{
    *out = (tsr_location){0};
    size_t i = 0;
    while (i < SCHEMES && strncmp(url, schemes[i].scheme, 5) != 0) i++;
    char shown[1024];
    shown[tsr_uri_redact(tsr_str_from(url), shown, sizeof shown - 1)] = '\0';
    TSR_FAIL_IF(i == SCHEMES, err, TSR_E_USAGE, "'%s' is not the URL of an object store", shown);
    out->kind = schemes[i].kind;
    tsr_str rest = tsr_str_from(url + 5);
    bool good;
    if (out->kind == TSR_AT_HF) {
        TSR_FAIL_IF(tsr_str_starts(rest, TSR_STR("spaces/")), err, TSR_E_UNSUPPORTED,
                    "'%s' is a Space; only models and datasets are read", shown);
        good = parse_hf(rest, out);
    } else {
        if (out->kind == TSR_AT_AZURE) out->account = tsr_str_take(&rest, '/');
        out->bucket = tsr_str_take(&rest, '/');
        out->key = rest;
        good = is_name(out->bucket) && (out->kind != TSR_AT_AZURE || is_name(out->account));
    }
    TSR_FAIL_IF(!good, err, TSR_E_USAGE, "'%s' does not name an object; expected %s", shown, schemes[i].form);
    if (out->key.size && out->key.data[out->key.size - 1] == '/') out->key.size--;
    return TSR_OK;
}
