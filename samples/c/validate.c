/* Checks every byte of a checkpoint and prints what is wrong with it: validate PATH
 *
 * Exits with 0 for a sound checkpoint, 1 for one with errors, and 2 when it could not be checked. */
#include <stdio.h>

#include <tessera/check.h>
#include <tessera/native_host.h>
#include <tessera/path.h>

static void print_findings(const tsr_findings *findings)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *finding = tsr_findings_at(findings, i);
        printf("%s: %s: %.*s", tsr_level_name(finding->level), finding->rule->id, TSR_STR_ARG(finding->message));
        if (finding->file.size) printf(" (%.*s)", TSR_STR_ARG(finding->file));
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    const tsr_open_options options = {.purpose = TSR_FOR_FINDINGS}; /* open even an incomplete checkpoint, to report on it */
    tsr_native_host native;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    int result = 2;
    if (argc != 2) {
        fprintf(stderr, "usage: validate PATH\n");
        return 2;
    }
    tsr_native_host_open(&native, 0);
    tsr_status status = tsr_path_open(argv[1], &native.host, &options, &checkpoint, &err);
    if (status == TSR_OK)
        status = tsr_validate(checkpoint, &(tsr_validate_options){.size = sizeof(tsr_validate_options), .deep = true}, &err);
    if (status == TSR_OK) {
        const tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
        print_findings(findings);
        result = tsr_findings_total(findings, TSR_ERROR) > 0;
    } else {
        fprintf(stderr, "validate: %s\n", err.message);
    }
    tsr_path_close(checkpoint);
    tsr_native_host_close(&native);
    return result;
}
