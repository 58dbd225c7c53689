/* Reads any bytes as a policy: one line ID=LEVEL, and then a baseline. The policy must be accepted, or rejected with a
 * reason. Applying it must never add findings, and must count every finding that it removes. */
#include <stdlib.h>

#include "tessera/sys/document.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void apply(const tsr_policy *policy)
{
    static const char *const rules[] = {"values/nan", "zip/crc", "layout/hole"};
    tsr_policy_result result = {0};
    tsr_findings *from = tsr_findings_new(&tsr_allocator_libc, 0, NULL),
                 *to = tsr_findings_new(&tsr_allocator_libc, 0, NULL);
    for (size_t i = 0; i < 3; i++) tsr_finding_add(from, rules[i], (tsr_place){TSR_STR("f"), 0, TSR_STR("w")}, NULL, "x");
    tsr_findings_count_more(from, tsr_rule_find("values/nan"), TSR_NOTE, 5);
    if (tsr_policy_findings(policy, from, to, &result, NULL) != TSR_OK) abort();
    uint64_t left = 0;
    for (int level = TSR_NOTE; level <= TSR_ERROR; level++) left += tsr_findings_total(to, (tsr_level)level);
    if (left + result.left_out + result.turned_off != 8) abort();
    tsr_findings_free(from);
    tsr_findings_free(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    const uint8_t *end = size ? memchr(data, '\n', size) : NULL;
    const size_t rule_size = end ? (size_t)(end - data) : 0;
    tsr_policy *policy = tsr_policy_new(size % 2 ? TSR_POLICY_DIFF : TSR_POLICY_VALIDATE, &host, &err);
    char *rule = malloc(rule_size + 1);
    if (!policy || !rule) abort();
    if (rule_size) memcpy(rule, data, rule_size);
    rule[rule_size] = '\0';
    tsr_status status = rule_size ? tsr_policy_rule(policy, rule, &err) : TSR_OK;
    if (status == TSR_OK && end) {
        const tsr_str text = {(const char *)end + 1, size - rule_size - 1};
        status = tsr_policy_baseline(policy, text, &err);
    }
    if (status == TSR_OK) apply(policy);
    else if (!err.message[0]) abort();
    tsr_policy_free(policy);
    free(rule);
    return 0;
}
