/* See report_junit.h. The format follows junit-10.xsd, with which Jenkins' xUnit plugin reads reports. */
#include "cli/text/report_junit.h"

#include <stdlib.h>

#include "cli/program/term.h"
#include "cli/text/findings_text.h"

/* All visible characters are allowed in XML 1.0. A '>' may end a "]]>". */
static const cli_escape in_xml[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {0}};

void cli_junit_start(cli_junit *junit)
{
    *junit = (cli_junit){0};
    junit->cases = open_memstream(&junit->text, &junit->size);
}

static void begin_case(cli_junit *junit, const char *path)
{
    junit->tests++;
    fputs("  <testcase classname=\"tessera\" name=\"", junit->cases);
    cli_put_escaped(junit->cases, tsr_str_from(path), in_xml);
    fputs("\">\n", junit->cases);
}

void cli_junit_add(cli_junit *junit, const char *path, const tsr_findings *findings)
{
    char text[CLI_FINDING_WORDS];
    if (!junit->cases) return;
    begin_case(junit, path);
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        const tsr_finding *finding = tsr_findings_at(findings, i);
        const char *element = finding->level == TSR_ERROR ? "failure" : "system-out";
        fprintf(junit->cases, "    <%s", element);
        if (finding->level == TSR_ERROR) fprintf(junit->cases, " type=\"%s\"", finding->rule->id);
        fprintf(junit->cases, ">%s %s: ", tsr_level_name(finding->level), finding->rule->id);
        cli_put_escaped(junit->cases, cli_finding_words(finding, text), in_xml);
        fprintf(junit->cases, "</%s>\n", element);
    }
    fputs("  </testcase>\n", junit->cases);
    junit->failures += tsr_findings_total(findings, TSR_ERROR) > 0;
}

void cli_junit_trouble(cli_junit *junit, const char *path, const tsr_error *err)
{
    if (!junit->cases) return;
    begin_case(junit, path);
    fputs("    <error>", junit->cases);
    cli_put_escaped(junit->cases, tsr_str_from(err->message), in_xml);
    fputs("</error>\n  </testcase>\n", junit->cases);
    junit->errors++;
}

tsr_status cli_junit_end(cli_junit *junit, tsr_error *err)
{
    const bool whole = junit->cases && !ferror(junit->cases);
    if (junit->cases && fclose(junit->cases) == 0 && whole) {
        printf(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"tessera\" tests=\"%zu\" failures=\"%zu\" errors=\"%zu\">\n",
            junit->tests, junit->failures, junit->errors);
        fwrite(junit->text, 1, junit->size, stdout);
        puts("</testsuite>");
    }
    free(junit->text);
    return whole ? TSR_OK : tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory for a JUnit report");
}
