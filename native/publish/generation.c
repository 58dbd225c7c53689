/* The generation of a file, which is part of its name. A checkpoint that replaces another one in the same directory has data
 * files and a sidecar of the next generation, so the old ones stay complete until it is published. */
#include "publish/folder_output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

/* The generation in a file's name: N in "__R_N.distcp", "model-gN-…", "…-gN.safetensors" and "objects-gN.json"; otherwise 0. */
static uint32_t generation_of(const char *name)
{
    const char *digits = strrchr(name, '_'), *mark = strstr(name, "-g");
    if (tsr_str_ends(tsr_str_from(name), TSR_STR(".distcp")) && digits) return (uint32_t)strtoul(digits + 1, NULL, 10);
    return mark ? (uint32_t)strtoul(mark + 2, NULL, 10) : 0;
}

static bool has_generation(const char *name)
{
    const tsr_str text = tsr_str_from(name);
    if (tsr_str_ends(text, TSR_STR(".json"))) return strncmp(name, "objects", strlen("objects")) == 0;
    return tsr_str_ends(text, TSR_STR(".distcp")) || tsr_str_ends(text, TSR_STR(".safetensors"));
}

uint32_t tsr_generation_after(const char *name)
{
    return has_generation(name) ? generation_of(name) + 1 : 0;
}

tsr_status tsr_folder_next_generation(const tsr_sys *sys, const char *path, uint32_t *out, tsr_error *err)
{
    if (!sys) sys = &tsr_sys_posix;
    *out = 0;
    int fd = sys->open_at(sys, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return TSR_OK;
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder) {
        if (fd >= 0) sys->close(sys, fd);
        return tsr_sys_raise(err, "list", path);
    }
    for (struct dirent *item; (item = readdir(folder));) {
        const uint32_t next = tsr_generation_after(item->d_name);
        if (next > *out) *out = next;
    }
    closedir(folder);
    return TSR_OK;
}
