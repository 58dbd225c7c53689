/** Which state each parameter has, by optimizer; what is missing stands first. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Optimizer, ParameterStates } from "../protocol";
import { exactText, plural, shapeText, visible } from "../text";
import { useModel } from "./hooks";

const MOST = 1000;

const sameShape = (a: readonly number[], b: readonly number[]): boolean => a.length === b.length && a.every((n, i) => n === b[i]);

/** What is wrong with a parameter's state, in words; empty: nothing. */
function faultOf(row: ParameterStates, names: readonly string[]): string {
  const missing = names.filter((_, i) => !row.states[i]);
  if (!row.in_group) return "in no param group";
  if (missing.length === names.length) return names.length ? "no state" : "";
  return missing.length ? `lacks ${missing.join(", ")}` : "";
}

function State({ state, row }: { state: ParameterStates["states"][number]; row: ParameterStates }): JSX.Element {
  if (!state) return <td class="bad">missing</td>;
  const shape = state.shape ?? [], expected = row.values?.shape;
  const isOdd = expected !== undefined && shape.length > 0 && !sameShape(shape, expected);
  return <td>{state.dtype ?? "object"}{isOdd && <span class="bad"> {shapeText(shape)}</span>}</td>;
}

function Table({ optimizer, show }: { optimizer: Optimizer; show: (fqn: string) => void }): JSX.Element {
  const { names, parameters } = optimizer;
  const rows = parameters.map((row) => ({ row, fault: faultOf(row, names) }));
  const faulty = rows.filter((r) => r.fault), sorted = [...faulty, ...rows.filter((r) => !r.fault)];
  const title = optimizer.optimizer || "optimizer";
  return (
    <section aria-label={title}>
      <h2>{visible(title)}</h2>
      <p class="fine" role="status">{plural(parameters.length, "parameter")} with {plural(names.length, "state")} each: {faulty.length ? `${exactText(faulty.length)} incomplete` : "all complete"}.</p>
      <div class="scroll" tabIndex={0} role="region" aria-label={`Parameters of ${title}`}>
        <table class="wide">
          <thead><tr><th>Parameter</th><th>Shape</th>{names.map((n) => <th key={n}>{visible(n)}</th>)}<th>Incomplete</th></tr></thead>
          <tbody>
            {sorted.slice(0, MOST).map(({ row, fault }) => (
              <tr key={row.parameter}>
                <td>{row.values ? <button type="button" class="link" onClick={() => row.values && show(row.values.fqn)}>{visible(row.parameter)}</button> : visible(row.parameter)}</td>
                <td>{row.values?.shape ? shapeText(row.values.shape) : <span class="quiet">not named</span>}</td>
                {row.states.map((s, i) => <State key={i} state={s} row={row} />)}
                <td class={fault ? "bad" : ""}>{fault}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {sorted.length > MOST && <p class="quiet">… and {exactText(sorted.length - MOST)} more.</p>}
    </section>
  );
}

export function OptimizerView({ show }: { show: (fqn: string) => void }): JSX.Element {
  const model = useModel(), list = model.optimizers;
  useEffect(() => { if (!list) void model.loadOptimizers(); }, [list]);
  return (
    <section class="view" aria-label="Optimizer">
      {list?.length === 0 && <p class="fine">There is no optimizer in this checkpoint: nothing has param groups.</p>}
      {list?.map((o) => <Table key={o.optimizer} optimizer={o} show={show} />)}
    </section>
  );
}
