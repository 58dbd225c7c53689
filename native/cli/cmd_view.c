/* `tessera view`: the browser viewer with a checkpoint open in it, served on the loopback address. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/session.h"
#include "cli/view_server.h"
#include "tessera/folder.h"

typedef struct view_arguments {
    uint64_t port;
    const char *pages;
} view_arguments;

static bool has_index(const char *folder)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/index.html", folder) < (int)sizeof path && access(path, R_OK) == 0;
}

/* Where the viewer is: installed beside the program, or built in its source tree. `out` has PATH_MAX bytes. */
static bool find_pages(char *out)
{
    static const char *const places[] = {"../share/tessera/viewer", "../../../web/dist"};
    char program[PATH_MAX], path[PATH_MAX];
    const ssize_t size = readlink("/proc/self/exe", program, sizeof program - 1);
    if (size <= 0) return false;
    program[size] = 0;
    char *slash = strrchr(program, '/');
    if (!slash) return false;
    *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (snprintf(path, sizeof path, "%s/%s", program, places[i]) < (int)sizeof path && realpath(path, out) && has_index(out))
            return true;
    }
    return false;
}

static const char *title_of(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t from = end;
    while (from && path[from - 1] != '/') from--;
    return path + from;
}

static int run(cli *program, const void *given)
{
    const view_arguments *arguments = given;
    const char *path = program->operands.items[0];
    char pages[PATH_MAX];
    tsr_error err = {0};
    tsr_store *store = NULL;
    cli_view_server *server = NULL;
    uint16_t port = 0;
    if (arguments->port > UINT16_MAX) return cli_fail(program, "--port: ports end at %u", (unsigned)UINT16_MAX);
    if (arguments->pages ? !has_index(arguments->pages) : !find_pages(pages))
        return cli_fail(program, "the viewer is not %s: web/build makes it, --pages names its folder",
                        arguments->pages ? arguments->pages : "beside this program");
    tsr_status status = tsr_folder_store_open(NULL, cli_host(program)->allocator, path, &store, &err);
    const cli_viewing view = {arguments->pages ? arguments->pages : pages, title_of(path), store, (uint16_t)arguments->port};
    if (status == TSR_OK) status = cli_view_start(&view, cli_host(program), &server, &port, &err);
    if (status == TSR_OK) {
        printf("http://127.0.0.1:%u/?view\n", port);
        fflush(stdout);
        for (;;) pause(); /* a signal ends it */
    }
    cli_view_stop(server);
    if (store) store->close(store);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

static const cli_option options[] = {
    {"port", 0, CLI_COUNT, "N", "the port (default: a free one)", offsetof(view_arguments, port)},
    {"pages", 0, CLI_TEXT, "FOLDER", "the built viewer (default: the one installed or built with this program)",
     offsetof(view_arguments, pages)},
    {0},
};

const cli_command cli_view_command = {
    .name = "view",
    .summary = "serves the browser viewer with a checkpoint open in it, on the loopback address",
    .operands = "PATH",
    .least = 1,
    .most = 1,
    .examples = "tessera view ckpt/\nprints the address to open; ends with Ctrl-C\n"
                "ssh -L 8000:127.0.0.1:8000 host tessera view --port 8000 ckpt/\na checkpoint of another machine, only the bytes that are looked at\n",
    .options = options,
    .arguments_size = sizeof(view_arguments),
    .run = run,
};
