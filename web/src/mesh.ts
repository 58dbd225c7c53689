/** Coordinates on a device mesh: those of a rank, and those that hold a chunk of a DTensor. Pure. */
import type { Chunk, TensorDetail } from "./protocol";

export interface MeshAxis { readonly name: string; readonly size: number }
type Placement = { readonly dim: number; readonly isStrided: boolean } | undefined;
interface Span { readonly offset: number; readonly size: number }

const MOST_RANKS = 4096;

/** Reads "dp=2,tp=4", or "2,4" for a mesh whose dimensions have no names. */
function axesOf(mesh: string): MeshAxis[] | undefined {
  const axes = mesh.split(",").map((text, i): MeshAxis => {
    const [, name, size] = /^(?:(.*)=)?(\d+)$/.exec(text.trim()) ?? [];
    return { name: name || `mesh dim ${i}`, size: Number(size) };
  });
  return axes.every(({ size }) => size >= 1) ? axes : undefined;
}

/** The coordinates of a rank, when ranks count along the last dimension first, as init_device_mesh has them. */
export function coordinatesOf(rank: number, axes: readonly MeshAxis[]): number[] {
  const at: number[] = [];
  let rest = rank;
  for (const { size } of [...axes].reverse()) { at.unshift(rest % size); rest = Math.floor(rest / size); }
  return at;
}

/** "dp=1, tp=0" */
export const coordinatesText = (at: readonly (number | undefined)[], axes: readonly MeshAxis[]): string =>
  axes.flatMap(({ name }, i) => at[i] === undefined ? [] : [`${name}=${at[i]}`]).join(", ");

/** Reads "strided_shard(0,2),shard(1)"; undefined if a placement is none of those that say where an element is. */
function placementsOf(text: string): Placement[] | undefined {
  const parts = text.split(/,(?![^(]*\))/).map((p) => p.trim());
  const list = parts.map((p): Placement | null => {
    const [, strided, dim] = /^(strided_)?shard\((\d+)(?:,\d+)?\)$/.exec(p) ?? [];
    return dim !== undefined ? { dim: Number(dim), isStrided: strided !== undefined } : p === "replicate" ? undefined : null;
  });
  return list.includes(null) ? undefined : list as Placement[];
}

/** What torch.chunk gives to the part `at` of `count`. */
function chunkOf({ offset, size }: Span, at: number, count: number): Span {
  const each = Math.ceil(size / count), begin = Math.min(size, at * each);
  return { offset: offset + begin, size: Math.min(size, begin + each) - begin };
}

/** The box that the coordinates hold. A strided shard divides what the mesh dimensions after it leave. */
function boxAt(at: readonly number[], shape: readonly number[], axes: readonly MeshAxis[], placements: readonly Placement[]): Span[] {
  const box = shape.map((size): Span => ({ offset: 0, size })), order = axes.map((_, i) => i);
  for (const i of [...order.filter((n) => !placements[n]?.isStrided), ...order.filter((n) => placements[n]?.isStrided).reverse()]) {
    const dim = placements[i]?.dim, span = dim === undefined ? undefined : box[dim];
    if (dim !== undefined && span) box[dim] = chunkOf(span, at[i] ?? 0, axes[i]?.size ?? 1);
  }
  return box;
}

/** Returns for each chunk which coordinates hold it. Dimensions over which it is replicated are left out. Undefined if the mesh
 *  is not known, or if the chunks are not those that its placements make. */
export function chunkCoordinates({ shape, mesh, placements: text, chunks }: Pick<TensorDetail, "shape" | "mesh" | "placements" | "chunks">): string[] | undefined {
  const axes = mesh === undefined ? undefined : axesOf(mesh), placements = text === undefined ? undefined : placementsOf(text);
  const ranks = axes?.reduce((n, { size }) => n * size, 1) ?? 0;
  if (!axes || placements?.length !== axes.length || ranks > MOST_RANKS) return undefined;
  const keyOf = (offsets: readonly number[], sizes: readonly number[]) => `${offsets.join()};${sizes.join()}`, holders = new Map<string, number[][]>();
  for (let rank = 0; rank < ranks; rank++) {
    const at = coordinatesOf(rank, axes), box = boxAt(at, shape, axes, placements), key = keyOf(box.map((b) => b.offset), box.map((b) => b.size));
    holders.set(key, [...holders.get(key) ?? [], at]);
  }
  const texts = chunks.map((c: Chunk) => {
    const found = holders.get(keyOf(c.offsets, c.sizes));
    return found && coordinatesText(axes.map((_, i) => found.every((at) => at[i] === found[0]?.[i]) ? found[0]?.[i] : undefined), axes);
  });
  return texts.every((t) => t) ? texts as string[] : undefined;
}
