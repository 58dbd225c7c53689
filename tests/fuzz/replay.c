/* Runs a fuzz target once for every file in the files and directories given on the command line, so that a corpus runs as an
 * ordinary test. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        return 1;
    }
    long size = ftell(file);
    rewind(file);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    int failed = !data || fread(data, 1, (size_t)size, file) != (size_t)size;
    fclose(file);
    if (!failed) LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return failed;
}

static int replay_directory(const char *path, unsigned *count)
{
    DIR *directory = opendir(path);
    if (!directory) {
        perror(path);
        return 1;
    }
    int failed = 0;
    for (struct dirent *item; (item = readdir(directory));) {
        char name[4096];
        if (item->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, item->d_name);
        failed |= replay_file(name);
        ++*count;
    }
    closedir(directory);
    return failed;
}

int main(int argc, char **argv)
{
    int failed = 0;
    unsigned count = 0;
    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode)) {
            failed |= replay_directory(argv[i], &count);
        } else {
            failed |= replay_file(argv[i]);
            ++count;
        }
    }
    printf("replayed %u inputs\n", count);
    return failed || count == 0;
}
