/** The Contents view: the search field, the filter chips with the totals of the matching entries, and the tree. */
import type { JSX } from "preact";
import { OWN_ORDER } from "../entry_tree";
import { belowTerm, termsOf, toggled } from "../filter";
import type { OutlineName } from "../protocol";
import { amountText, bytesText, exactText, plural } from "../text";
import { useModel } from "./hooks";
import { Tree } from "./tree";

const MOST_DTYPES = 5;

interface ChipTerm { readonly term: string; readonly label: string }

/** The totals of the entries that match the filter. */
function totalsText(outline: OutlineName, model: ReturnType<typeof useModel>): string {
  const { totals, kept } = model.lists.get(outline), overview = model.opened?.overview;
  if (kept === undefined || !overview) return "";
  if (!totals) return plural(kept, "match", "matches");
  return [plural(kept, "match", "matches"), ...(totals.elements ? [amountText(totals.elements, "element"), bytesText(totals.bytes)] : [])].join(" · ");
}

export function FilterLine({ outline, chips, placeholder }: { outline: OutlineName; chips: readonly ChipTerm[]; placeholder: string }): JSX.Element {
  const model = useModel(), listing = model.lists.get(outline), terms = termsOf(listing.filter);
  return (
    <div class="filter">
      {listing.sort.key === OWN_ORDER.key ? <span class="order quiet">In stored order</span> : <button type="button" class="order small ghost" title="Show the entries in the order in which the checkpoint stores them" onClick={() => void model.lists.storedOrder(outline)}>Stored order</button>}
      <input type="search" aria-label="Filter" id={`filter-${outline}`} value={listing.filter} spellcheck={false} autocomplete="off" placeholder={placeholder}
        onInput={(e) => void model.lists.filter(outline, e.currentTarget.value)} />
      <div class="chip-line" role="group" aria-label="Show only">
        {chips.map(({ term, label }) => <button key={term} type="button" class="chip" aria-pressed={terms.includes(term)} onClick={() => void model.lists.filter(outline, toggled(listing.filter, term))}>{label}</button>)}
        <span class="quiet" role="status" aria-busy={listing.isArranging}>{listing.trouble ? <span class="bad">{listing.trouble.message}</span> : <span class={listing.isArranging ? "older" : ""}>{totalsText(outline, model)}</span>}</span>
      </div>
    </div>
  );
}

export function Listing(): JSX.Element | null {
  const model = useModel(), overview = model.opened?.overview;
  if (!overview) return null;
  const objects = overview.objects + overview.opaque;
  const chips: ChipTerm[] = [
    ...(model.parts ?? []).map(({ name }) => ({ term: belowTerm(name), label: name })),
    ...(objects && overview.tensors ? [{ term: "kind:tensor", label: plural(overview.tensors, "tensor") }, ...(overview.objects ? [{ term: "kind:object", label: plural(overview.objects, "object") }] : []), ...(overview.opaque ? [{ term: "kind:opaque", label: `${exactText(overview.opaque)} opaque` }] : [])] : []),
    ...(overview.dtypes.length > 1 ? [...overview.dtypes].sort((a, b) => b.bytes - a.bytes).slice(0, MOST_DTYPES).map(({ name }) => ({ term: `dtype:${name}`, label: name })) : []),
  ];
  return (
    <div class="list">
      <FilterLine outline="all" chips={chips} placeholder="Filter: text, **.weight, dtype:bfloat16, shape:4096x*, >1GiB, file:__0" />
      <Tree key="all" outline="all" label="Entries" />
    </div>
  );
}
