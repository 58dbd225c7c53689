/* See resumed.h. */
#include "cli/writing/resumed.h"

#include <stdio.h>

#include "cli/program/term.h"

void cli_report_resumed(const cli *program, const tsr_object_resumed *r)
{
    if (program->options.quiet) return;
    if (r->objects || r->parts) {
        fprintf(stderr, "resumed: %s and %s (%s) were uploaded already", cli_plural(r->objects, "object").text,
                cli_plural(r->parts, "part").text, cli_bytes(r->bytes).text);
    } else {
        fprintf(stderr, "resumed: nothing that can be continued was found; everything was uploaded");
    }
    if (r->differing)
        fprintf(stderr, "; %s with another size or checksum uploaded again", cli_plural(r->differing, "part").text);
    if (r->uploads_given_up) fprintf(stderr, "; %s given up", cli_plural(r->uploads_given_up, "other upload").text);
    fputc('\n', stderr);
    if (r->uploads_left)
        cli_warn(
            program,
            "the destination has %s unfinished upload%s of objects that this run does not write; nothing of them was removed",
            cli_number(r->uploads_left).text, r->uploads_left == 1 ? "" : "s");
}

void cli_note_other_parts(const cli *program, const tsr_output *output, const char *destination)
{
    tsr_str first;
    const size_t count = tsr_object_output_other_parts(output, &first);
    if (!count) return;
    cli_warn(
        program,
        "'%s' has unfinished parts of another plan ('%.*s'%s%s%s); they are kept; --discard-parts of exec, convert or reshard removes them",
        destination, TSR_STR_ARG(first), count > 1 ? " and " : "", count > 1 ? cli_number(count - 1).text : "",
        count > 1 ? " more" : "");
}

void cli_report_continued(const tsr_object_resumed *r)
{
    if (r->bytes) {
        fprintf(stderr, "resumed: %s and %s (%s) had been copied already", cli_plural(r->objects, "file").text,
                cli_plural(r->parts, "chunk").text, cli_bytes(r->bytes).text);
    } else {
        fprintf(stderr, "resumed: nothing that can be continued was found; everything was copied");
    }
    if (r->differing) fprintf(stderr, "; %s with another digest copied again", cli_plural(r->differing, "chunk").text);
    fputc('\n', stderr);
}

void cli_put_resumed(tsr_json *json, const tsr_object_resumed *r)
{
    const struct {
        const char *key;
        uint64_t count;
    } counts[] = {{"objects", r->objects},
                  {"parts", r->parts},
                  {"bytes", r->bytes},
                  {"differing", r->differing},
                  {"uploads_given_up", r->uploads_given_up},
                  {"uploads_left", r->uploads_left}};
    tsr_json_put_object(json, "resumed");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) tsr_json_put_uint(json, counts[i].key, counts[i].count);
    tsr_json_object_end(json);
}
