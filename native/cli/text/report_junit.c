/* See report_junit.h. The format follows junit-10.xsd, with which Jenkins' xUnit plugin reads reports. */
#include "cli/text/report_junit.h"

#include <stdlib.h>

#include "cli/text/findings_text.h"

#include "tessera/sys/visible.h"

/* Prints text for XML. All visible characters are allowed in XML 1.0. */
static void put_xml(FILE *to, tsr_str text)
{
    char escape[TSR_ESCAPE_SIZE];
    tsr_str shown;
    for (size_t at = 0; at < text.size;) {
        at += tsr_str_step((tsr_str){text.data + at, text.size - at}, escape, &shown);
        if (*shown.data == '<') fputs("&lt;", to);
        else if (*shown.data == '>') fputs("&gt;", to); /* it may end a "]]>" */
        else if (*shown.data == '&') fputs("&amp;", to);
        else if (*shown.data == '"') fputs("&quot;", to);
        else fwrite(shown.data, 1, shown.size, to);
    }
}

void cli_junit_start(cli_junit *junit)
{
    *junit = (cli_junit){0};
    junit->cases = open_memstream(&junit->text, &junit->size);
}

static void begin_case(cli_junit *junit, const char *path)
{
    junit->tests++;
    fputs("  <testcase classname=\"tessera\" name=\"", junit->cases);
    put_xml(junit->cases, tsr_str_from(path));
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
        put_xml(junit->cases, cli_finding_words(finding, text));
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
    put_xml(junit->cases, tsr_str_from(err->message));
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
