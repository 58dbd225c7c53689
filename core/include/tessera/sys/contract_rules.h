/* Which entries of a checkpoint a contract (tessera/validate.h) is about, and what it allows for each.
 *
 * Example:
 *
 *     tsr_contract contract = {.prefix = TSR_STR("model.")};
 *     tsr_str name;
 *     if (tsr_contract_name(&contract, entry->fqn, &name) && tsr_contract_allows(&contract, name) & TSR_ANY_DTYPE)
 *         printf("%.*s may have any dtype\n", TSR_STR_ARG(name)); */
#ifndef TESSERA_SYS_CONTRACT_RULES_H
#define TESSERA_SYS_CONTRACT_RULES_H

#include "tessera/validate.h"

TSR_API_BEGIN

/* The name that an entry of a checkpoint has for the contract: without the prefix; false if the contract ignores the
 * entry. */
bool tsr_contract_name(const tsr_contract *contract, tsr_str fqn, tsr_str *out);

/* The rule for a name, or NULL; and the differences that are allowed for it, as bits of tsr_leniency. */
const tsr_contract_rule *tsr_contract_rule_of(const tsr_contract *contract, tsr_str fqn);
uint32_t tsr_contract_allows(const tsr_contract *contract, tsr_str fqn);

/* "missing", "extra", "dtype", "shape", "chunks", "value" as a bit of tsr_leniency; 0: another word. */
uint32_t tsr_leniency_from_word(tsr_str word);
/* Such words with commas between them, as --allow has them; an empty text allows nothing. TSR_E_USAGE for another word. */
tsr_status tsr_leniency_parse(tsr_str words, uint32_t *out, tsr_error *err);

/* Checks the catalog against a contract and adds findings: layout/missing-entry, layout/unexpected-entry, layout/kind,
 * layout/dtype, layout/shape, layout/chunks, and the note layout/prefix where a prefix explains nearly all of them. Chunks are compared as sets of boxes. tsr_check_digests compares the digests. */
tsr_status tsr_validate_contract(const tsr_catalog *catalog, const tsr_contract *contract, const tsr_host *host,
                                 tsr_findings *findings, tsr_error *err);

TSR_API_END

#endif
