/* See destination.h. */
#include "publish/destination.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

static size_t without_slashes(const char *path)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/') size--;
    return size;
}

static tsr_status split(const char *path, tsr_destination *out, tsr_error *err)
{
    const size_t size = without_slashes(path);
    size_t start = size;
    while (start > 0 && path[start - 1] != '/') start--;
    TSR_FAIL_IF(size - start > NAME_MAX || start >= PATH_MAX, err, TSR_E_USAGE, "the name '%s' is too long", path);
    memcpy(out->name, path + start, size - start);
    out->name[size - start] = '\0';
    memcpy(out->parent, start ? path : ".", start ? start : 1);
    out->parent[start ? start : 1] = '\0';
    TSR_FAIL_IF(!*out->name || strcmp(out->name, ".") == 0 || strcmp(out->name, "..") == 0, err, TSR_E_USAGE,
                "'%s' cannot be a destination: it does not end with a name", path);
    return TSR_OK;
}

tsr_status tsr_destination_of(const char *path, tsr_destination *out, tsr_error *err)
{
    struct stat link, info;
    char plain[PATH_MAX];
    TSR_TRY(tsr_path_must_be_local(path, err));
    TSR_FAIL_IF(
        strcmp(path, "-") == 0, err, TSR_E_USAGE,
        "'-' cannot be a destination: a checkpoint cannot be written to standard output; give a path, such as ./- for "
        "a file of this name");
    const size_t size = without_slashes(path);
    TSR_FAIL_IF(size >= sizeof plain, err, TSR_E_USAGE, "the name '%s' is too long", path);
    memcpy(plain, path, size);
    plain[size] = '\0';
    const bool leads_on =
        lstat(plain, &link) == 0 && S_ISLNK(link.st_mode) && stat(plain, &info) == 0 && S_ISDIR(info.st_mode);
    char *real = leads_on ? realpath(plain, NULL) : NULL;
    const tsr_status status = split(real ? real : plain, out, err);
    free(real);
    return status;
}

tsr_status tsr_destination_within(const char *path, tsr_destination *out, tsr_error *err)
{
    tsr_destination place;
    TSR_TRY(tsr_destination_of(path, &place, err));
    const int size = snprintf(out->parent, sizeof out->parent, "%s/%s", place.parent, place.name);
    TSR_FAIL_IF(size >= (int)sizeof out->parent, err, TSR_E_USAGE, "the name '%s' is too long", path);
    memcpy(out->name, ".", sizeof ".");
    return TSR_OK;
}
