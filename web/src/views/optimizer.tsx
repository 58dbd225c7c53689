/** The optimizers: their groups with hyperparameters, and which state each parameter has. Missing states come first. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Model } from "../model";
import type { Optimizer, ParameterStates } from "../protocol";
import { exactText, plural, shapeText, startOf, visible } from "../text";
import { useModel } from "./hooks";
import { OptimizerForms } from "./optimizer_forms";
import { Table } from "./table";

const MOST = 1000, MOST_GROUPS = 16, MOST_TEXT = 80;

const sameShape = (a: readonly number[], b: readonly number[]): boolean => a.length === b.length && a.every((n, i) => n === b[i]);

/** Says in words what a parameter lacks, or returns an empty text. */
function faultOf(row: ParameterStates, names: readonly string[]): string {
  const missing = names.filter((_, i) => !row.states[i]);
  if (!row.in_group) return "a param group";
  if (missing.length === names.length) return names.length ? "all states" : "";
  return missing.join(", ");
}

function State({ state, row }: { state: ParameterStates["states"][number]; row: ParameterStates }): JSX.Element {
  if (!state) return <td class="quiet">–</td>;
  const shape = state.shape ?? [], expected = row.values?.shape;
  const isOdd = expected !== undefined && shape.length > 0 && !sameShape(shape, expected);
  return <td>{state.dtype ?? "object"}{isOdd && <span class="quiet"> {shapeText(shape)}</span>}</td>;
}

/** Returns the members of a group as text. Several names are replaced by their number. */
const memberText = (members: readonly string[]): string => members.every((m) => /^\d+$/.test(m)) ? `group ${members.join(", ")}` : members.length > 1 ? `${exactText(members.length)} parameters` : visible(members[0] ?? "");

function Groups({ optimizer: { groups, hasGroups } }: { optimizer: Optimizer }): JSX.Element {
  if (!hasGroups) return <p class="bad" role="status">There are no param groups: hyperparameters such as the learning rate are not in this checkpoint. The states were recognized by their names.</p>;
  const keys = [...new Set(groups.flatMap((g) => Object.keys(g.values)))].filter((k) => k !== "params").sort();
  if (groups.length === 0 || keys.length === 0) return <></>;
  return (
    <>
      <Table label="Param groups" head={<><th>Hyperparameter</th>{groups.slice(0, MOST_GROUPS).map((g) => <th key={g.members[0]}>{memberText(g.members)}</th>)}</>} rows={keys}
        row={(k) => <tr key={k}><td><code>{visible(k)}</code></td>{groups.slice(0, MOST_GROUPS).map((g) => <td key={g.members[0]} title={visible(g.values[k] ?? "")}>{startOf(visible(g.values[k] ?? "–"), MOST_TEXT)}</td>)}</tr>} />
      {groups.length > MOST_GROUPS && <p class="quiet">… and {plural(groups.length - MOST_GROUPS, "more group")}.</p>}
    </>
  );
}

function Parameters({ optimizer, show }: { optimizer: Optimizer; show: (fqn: string) => void }): JSX.Element {
  const { names, parameters } = optimizer;
  const rows = parameters.map((row) => ({ row, fault: faultOf(row, names) }));
  const faulty = rows.filter((r) => r.fault), sorted = [...faulty, ...rows.filter((r) => !r.fault)];
  const title = optimizer.optimizer || "optimizer";
  return (
    <section aria-label={title}>
      <h2>{visible(title)}</h2>
      <p class="fine" role="status">{plural(parameters.length, "parameter")}{faulty.length ? `: ${exactText(faulty.length)} ${faulty.length === 1 ? "lacks" : "lack"} states that others have. Frozen parameters and some optimizers need none; Problems lists those that are incomplete` : names.length ? ` with ${plural(names.length, "state")} each: all complete` : " without any state"}.</p>
      <Groups optimizer={optimizer} />
      <Table label={`Parameters of ${title}`} kind="wide" head={<><th>Parameter</th><th>Shape</th>{names.map((n) => <th key={n}>{visible(n)}</th>)}{faulty.length > 0 && <th>Lacks</th>}</>} rows={sorted} most={MOST} row={({ row, fault }) => (
        <tr key={row.parameter}>
          <td>{row.values ? <button type="button" class="link" onClick={() => row.values && show(row.values.fqn)}>{visible(row.parameter)}</button> : visible(row.parameter)}</td>
          <td>{row.values?.shape ? shapeText(row.values.shape) : <span class="quiet">not named</span>}</td>
          {row.states.map((s, i) => <State key={i} state={s} row={row} />)}
          {faulty.length > 0 && <td>{fault}</td>}
        </tr>
      )} />
    </section>
  );
}

async function loadOptimizers(model: Model): Promise<void> {
  const found = model.optimizers ?? await model.run("Looking for optimizers", undefined, () => model.client.call("optimizers", {}), model.hear);
  if (found) model.optimizers = found;
  model.changed();
}

export function OptimizerView(): JSX.Element {
  const model = useModel(), list = model.optimizers;
  useEffect(() => { void loadOptimizers(model); }, [list, model.opening]);
  return (
    <section class="view" aria-label="Optimizer">
      <h2>Optimizer</h2>
      {list?.length === 0 && <p class="fine">No optimizer state was recognized: no entry is in param groups or is named like one (state.PARAMETER.exp_avg).</p>}
      {list?.map((o) => <Parameters key={o.optimizer} optimizer={o} show={(fqn) => { void model.reveal(fqn); }} />)}
      {list && list.length > 0 && <OptimizerForms />}
    </section>
  );
}
