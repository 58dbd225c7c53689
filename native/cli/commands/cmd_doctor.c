/* `tessera doctor`: reports the features of this build and this machine, for bug reports and to explain slowness. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__linux__)
#include <linux/fs.h>
#include <linux/magic.h>
#endif

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "io/sys.h"
#include "tessera/gpu.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/path.h"

/* Facts in groups. Text and JSON are both printed from this list. */
typedef struct fact {
    const char *group, *key;
    enum { FACT_TEXT, FACT_YES, FACT_NUMBER } kind;
    char text[160];
    uint64_t number;
} fact;

typedef struct facts {
    fact items[64];
    size_t count;
} facts;

static void tell(facts *f, const char *group, const char *key, const char *text)
{
    fact *item = &f->items[f->count++];
    *item = (fact){.group = group, .key = key, .kind = FACT_TEXT};
    snprintf(item->text, sizeof item->text, "%.159s", text ? text : "none");
}

static void tell_yes(facts *f, const char *group, const char *key, bool yes)
{
    f->items[f->count++] = (fact){.group = group, .key = key, .kind = FACT_YES, .number = yes};
}

static void tell_number(facts *f, const char *group, const char *key, uint64_t number)
{
    f->items[f->count++] = (fact){.group = group, .key = key, .kind = FACT_NUMBER, .number = number};
}

static void tell_program(facts *f, const tsr_host *host)
{
    tsr_native_parts parts = tsr_native_parts_built();
    struct utsname system;
    tell(f, "program", "version", TSR_VERSION);
    tell(f, "program", "crc32", parts.crc32);
    tell(f, "program", "sha256", parts.sha256);
    tell(f, "program", "xxh3", parts.xxh3);
    tell(f, "program", "zstd", parts.zstd);
    char text[160] = "unknown";
    if (uname(&system) == 0)
        snprintf(text, sizeof text, "%.40s %.60s %.40s", system.sysname, system.release, system.machine);
    tell(f, "machine", "system", text);
    tell_number(f, "machine", "threads", host->threads);
    tell_number(f, "machine", "memory_bytes", (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

static void tell_cpu(facts *f)
{
    char text[160] = "";
#if defined(__x86_64__)
    size_t used = 0;
    __builtin_cpu_init();
#define FEATURE(name) \
    if (__builtin_cpu_supports(name)) \
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? " " : "", name)
    FEATURE("sse4.2");
    FEATURE("pclmul");
    FEATURE("avx2");
    FEATURE("avx512f");
    FEATURE("avx512bw");
    FEATURE("vpclmulqdq");
#undef FEATURE
#endif
    tell(f, "machine", "cpu_features", text);
}

/* Finds the program `name` on PATH; `out` receives its path. */
static bool on_path(const char *name, char *out, size_t capacity)
{
    const char *path = getenv("PATH");
    for (const char *at = path; at && *at;) {
        const char *colon = strchr(at, ':');
        int size = colon ? (int)(colon - at) : (int)strlen(at);
        snprintf(out, capacity, "%.*s/%s", size, at, name);
        if (access(out, X_OK) == 0) return true;
        at = colon ? colon + 1 : NULL;
    }
    return false;
}

/* tessera-mpi prints the properties of its MPI library as "key value" lines, without starting MPI. */
static void tell_library(facts *f, const char *program)
{
    static const char *const keys[] = {"library", "standard", "cuda_aware"};
    char values[3][160] = {"", "", ""}, line[256];
    int ends[2];
    if (pipe(ends) != 0) return;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl(program, program, "--mpi-facts", (char *)NULL);
        _exit(CLI_TROUBLE);
    }
    close(ends[1]);
    FILE *answer = fdopen(ends[0], "r");
    while (child > 0 && answer && fgets(line, sizeof line, answer)) {
        line[strcspn(line, "\n")] = '\0';
        char *space = strchr(line, ' ');
        for (size_t k = 0; space && k < 3; k++) {
            if ((size_t)(space - line) == strlen(keys[k]) && strncmp(line, keys[k], strlen(keys[k])) == 0)
                snprintf(values[k], sizeof values[k], "%s", space + 1);
        }
    }
    if (answer) fclose(answer);
    else close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    for (size_t k = 0; k < 3; k++) tell(f, "mpi", keys[k], *values[k] ? values[k] : "unknown");
}

static void tell_mpi(facts *f)
{
    char place[4200];
    const cli_launch launch = cli_launch_seen();
    const bool found = cli_find_mpi(place, sizeof place);
    tell(f, "mpi", "tessera_mpi", found ? place : NULL);
    if (found) tell_library(f, place);
    tell(f, "mpi", "mpirun", on_path("mpirun", place, sizeof place) ? place : NULL);
    tell(f, "mpi", "launched_by", launch.sign);
    tell_number(f, "mpi", "processes", launch.processes);
    if (launch.sign) tell_yes(f, "mpi", "serves_pmi", launch.has_pmi);
}

static void tell_gpu(facts *f, uint32_t ordinal)
{
    static const char *const keys[] = {"device_0", "device_1", "device_2", "device_3",
                                       "device_4", "device_5", "device_6", "device_7"};
    tsr_gpu_info info;
    tsr_error err = {0};
    char text[160];
    if (ordinal >= sizeof keys / sizeof *keys) return;
    if (tsr_gpu_describe(ordinal, &info, &err) == TSR_OK) {
        snprintf(text, sizeof text, "%.60s, sm_%u%u, %.30s, %.30s free", info.name, (unsigned)info.major,
                 (unsigned)info.minor, cli_bytes(info.memory_bytes).text, cli_bytes(info.free_bytes).text);
    } else {
        snprintf(text, sizeof text, "%.150s", err.message);
    }
    tell(f, "cuda", keys[ordinal], text);
}

static void tell_version(facts *f, const char *key, uint32_t version)
{
    char text[32];
    snprintf(text, sizeof text, "%u.%u", (unsigned)version / 1000, (unsigned)version % 1000 / 10);
    tell(f, "cuda", key, version ? text : NULL);
}

static void tell_cuda(facts *f)
{
    char line[160] = "";
    tsr_gpu_runtime runtime;
    tsr_gpu_runtime_describe(&runtime);
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file) {
        if (fgets(line, sizeof line, file)) line[strcspn(line, "\n")] = '\0';
        fclose(file);
    }
    tell_yes(f, "cuda", "built", runtime.is_built);
    tell_version(f, "runtime", runtime.runtime_version);
    tell(f, "cuda", "driver", *line ? line : NULL);
    tell_version(f, "driver_cuda", runtime.driver_version);
    tell_number(f, "cuda", "devices", runtime.devices);
    if (*runtime.reason) tell(f, "cuda", "reason", runtime.reason);
    for (uint32_t i = 0; i < runtime.devices; i++) tell_gpu(f, i);
}

#if defined(__linux__)
static const char *file_system_name(long magic)
{
    switch ((unsigned long)magic) {
    case EXT4_SUPER_MAGIC: return "ext4";
    case TMPFS_MAGIC: return "tmpfs";
    case BTRFS_SUPER_MAGIC: return "btrfs";
    case XFS_SUPER_MAGIC: return "xfs";
    case OVERLAYFS_SUPER_MAGIC: return "overlayfs";
    case NFS_SUPER_MAGIC: return "nfs";
    case FUSE_SUPER_MAGIC: return "fuse";
    case 0x0bd00bd0: return "lustre";
    case 0x47504653: return "gpfs";
    case 0x2fc12fc1: return "zfs";
    default: return "other";
    }
}

/* Tries each operation on unnamed files, which vanish when their descriptors are closed. */
static void tell_operations(facts *f, const char *directory)
{
    int from = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600),
        to = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (from >= 0 && to >= 0) {
        static const char block[65536];
        bool wrote = write(from, block, sizeof block) == (ssize_t)sizeof block;
        loff_t in = 0, out = 0;
        tell_yes(f, "files", "preallocation", fallocate(to, 0, 0, sizeof block) == 0);
        tell_yes(f, "files", "copy_file_range", wrote && copy_file_range(from, &in, to, &out, sizeof block, 0) > 0);
        tell_yes(f, "files", "reflink", wrote && ioctl(to, FICLONE, from) == 0);
    } else {
        tell_yes(f, "files", "writable", access(directory, W_OK) == 0);
    }
    if (from >= 0) close(from);
    if (to >= 0) close(to);
}
#else
static const char *file_system_name(long magic)
{
    (void)magic;
    return "other";
}

static void tell_operations(facts *f, const char *directory)
{
    tell_yes(f, "files", "writable", access(directory, W_OK) == 0);
}
#endif

static tsr_status tell_file_system(facts *f, const char *directory, tsr_error *err)
{
    struct statfs info;
    tell(f, "files", "directory", directory);
    if (statfs(directory, &info) != 0) return tsr_sys_raise(err, "look at", directory);
    tell(f, "files", "file_system", file_system_name((long)info.f_type));
    tell_number(f, "files", "free_bytes", (uint64_t)info.f_bavail * (uint64_t)info.f_bsize);
    tell_operations(f, directory);
    return TSR_OK;
}

/* What was looked for and not found when this was configured (tsr_missing in native/CMakeLists.txt). */
static void tell_missing(facts *f)
{
    static const struct {
        const char *library, *package, *effect;
    } missing[] = {TSR_MISSING{NULL, NULL, NULL}};
    for (size_t i = 0; missing[i].library; i++) {
        char text[160];
        snprintf(text, sizeof text, "%.90s (Debian: %.50s)", missing[i].effect, missing[i].package);
        tell(f, "missing", missing[i].library, text);
    }
}

static void put_text(const cli *program, const facts *f)
{
    const char *group = "";
    for (size_t i = 0; i < f->count; i++) {
        const fact *item = &f->items[i];
        if (strcmp(group, item->group) != 0) {
            cli_on(&program->out, stdout, CLI_BOLD);
            printf("%s%s\n", i ? "\n" : "", group = item->group);
            cli_off(&program->out, stdout);
        }
        const tsr_str key = tsr_str_from(item->key), unit = TSR_STR("_bytes");
        const bool bytes = tsr_str_ends(key, unit); /* the value is printed with its unit, so the name is printed without */
        printf("  %-16.*s ", (int)(key.size - (bytes ? unit.size : 0)), item->key);
        if (item->kind == FACT_TEXT) cli_put(stdout, tsr_str_from(item->text));
        else if (item->kind == FACT_YES) fputs(item->number ? "yes" : "no", stdout);
        else fputs(bytes ? cli_bytes(item->number).text : cli_number(item->number).text, stdout);
        putchar('\n');
    }
}

static tsr_status put_json(const cli *program, const facts *f, tsr_error *err)
{
    tsr_json json;
    const char *group = "";
    cli_document_start(program, &json, err);
    tsr_json_object(&json);
    tsr_json_put_text(&json, "schema", "tessera.doctor/1");
    for (size_t i = 0; i < f->count; i++) {
        const fact *item = &f->items[i];
        if (strcmp(group, item->group) != 0) {
            if (*group) tsr_json_object_end(&json);
            tsr_json_put_object(&json, group = item->group);
        }
        tsr_json_key(&json, item->key);
        if (item->kind == FACT_TEXT) tsr_json_text(&json, item->text);
        else if (item->kind == FACT_YES) tsr_json_bool(&json, item->number != 0);
        else tsr_json_uint(&json, item->number);
    }
    tsr_json_object_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

static int run(cli *program, const tsr_command_options *arguments)
{
    const char *directory = program->operands.count ? program->operands.items[0] : ".";
    facts f = {.count = 0};
    tsr_error err = {0};
    tell_program(&f, cli_host(program));
    tell_cpu(&f);
    tell_missing(&f);
    tell_mpi(&f);
    tell_cuda(&f);
    if (tell_file_system(&f, directory, &err) != TSR_OK) return cli_fail_error(program, NULL, &err);
    if (!arguments->json) {
        put_text(program, &f);
        return CLI_DONE;
    }
    return put_json(program, &f, &err) == TSR_OK ? CLI_DONE : cli_fail_error(program, NULL, &err);
}

const cli_command cli_doctor = {
    .name = "doctor",
    .examples = "tessera doctor\nShow versions, libraries, processor features, MPI and CUDA\ntessera doctor "
                "/scratch\nShow the file system's features too\n",
    .run = run,
};
