/** Numbers per layer of several checkpoints. Pure. */
import type { Statistics } from "./protocol";

export type Metric = "norm" | "std" | "nan";
/** A layer, with a number per column: undefined where the checkpoint does not have it. */
export interface LayerRow { readonly layer: string; readonly values: readonly (number | undefined)[] }

/** "model.layers.3" for what is below a numbered component, otherwise the name without its last component. */
export const layerOf = (fqn: string): string => /^(?:[^.]+\.)*?\d+(?=\.|$)/.exec(fqn)?.[0] ?? (fqn.includes(".") ? fqn.slice(0, fqn.lastIndexOf(".")) : fqn);

interface Sums { count: number; sum: number; squares: number; bad: number }

/** Combines the tensors of each layer. The squares follow from the mean and the sample's standard deviation. */
function sumsOf(statistics: Statistics): Map<string, Sums> {
  const layers = new Map<string, Sums>();
  for (const { fqn, count, mean, std, bad } of statistics) {
    const layer = layerOf(fqn), sums = layers.get(layer) ?? { count: 0, sum: 0, squares: 0, bad: 0 };
    layers.set(layer, { count: sums.count + count, sum: sums.sum + mean * count, squares: sums.squares + std * std * Math.max(0, count - 1) + mean * mean * count, bad: sums.bad + bad });
  }
  return layers;
}

function valueOf({ count, sum, squares, bad }: Sums, metric: Metric): number {
  if (metric === "nan") return bad;
  return metric === "norm" ? Math.sqrt(squares) : count > 1 ? Math.sqrt(Math.max(0, squares - sum * sum / count) / (count - 1)) : 0;
}

/** Returns the layers in the order in which the checkpoints have them. */
export function layersOf(columns: readonly (Statistics | undefined)[], metric: Metric): LayerRow[] {
  const sums = columns.map((statistics) => sumsOf(statistics ?? [])), names = new Set(sums.flatMap((layers) => [...layers.keys()]));
  return [...names].sort(new Intl.Collator("en", { numeric: true }).compare).map((layer) => ({ layer, values: sums.map((layers) => { const found = layers.get(layer); return found && valueOf(found, metric); }) }));
}
