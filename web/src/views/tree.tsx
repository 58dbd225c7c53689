/** A treegrid over any number of rows. Only the visible rows exist. Browsers limit the height of a page, so beyond LIMIT
 *  pixels the scroll bar is a scale: its position is a share of the rows, and the places of the rows are computed. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { SortKey } from "../entry_tree";
import type { Model } from "../model";
import type { Act, OutlineName, Row } from "../protocol";
import { wordsOf } from "../filter";
import { exactText, plural, visible } from "../text";
import { useModel, useNarrow } from "./hooks";
import { LevelMark } from "./parts";
import { columnsOf, type Column } from "./tree_columns";

const HEAD = 28, WIDE_HEIGHT = 28, NARROW_HEIGHT = 48;
const LIMIT = 12_000_000, LONG = 24;

/** This row is drawn while the real one is fetched. It has the same cells, so that filling them changes only texts. */
const BLANK: Row = { node: 0, name: "", depth: 1, group: false, open: false, run: 0, folded: false, odd: false, level: undefined, entries: 0, elements: 0, bytes: 0, dtypes: [] };

function nameOf(row: Row): string {
  if (!row.folded) return row === BLANK ? "" : visible(row.name);
  return `${visible(row.name)} … ${row.last ?? Number(row.name) + row.run - 1}`;
}

/** A name with the words of the filter marked. The last part of a long name stays in sight. */
function NameText({ name, words }: { name: string; words: readonly string[] }): JSX.Element {
  const escaped = words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")), parts = escaped.length ? name.split(new RegExp(`(${escaped.join("|")})`, "gi")) : [name];
  const cut = name.length > LONG ? name.lastIndexOf(".", name.length - 2) + 1 : 0, lead: ComponentChildren[] = [], tail: ComponentChildren[] = [];
  let at = 0;
  parts.forEach((part, i) => {
    const ofLead = Math.max(0, Math.min(part.length, cut - at)), show = (text: string) => i % 2 ? <mark>{text}</mark> : text;
    if (ofLead) lead.push(show(part.slice(0, ofLead)));
    if (ofLead < part.length) tail.push(show(part.slice(ofLead)));
    at += part.length;
  });
  return <span class={cut ? "text long" : "text"} title={name}>{cut ? <><span class="lead">{lead}</span><span class="tail">{tail}</span></> : tail}</span>;
}

/** A tag with the format and the number of files of a part of the checkpoint. */
function PartTag({ name }: { name: string }): JSX.Element | null {
  const part = useModel().parts?.find((p) => p.name === name || name.startsWith(`${p.name}.`)); // it may be joined with its only child
  return part ? <span class="tag part" title={`Part ${visible(name)}`}>{part.format} · {plural(part.files, "file")}</span> : null;
}

function Cells({ row, outline, columns, words, toggle }: { row: Row; outline: OutlineName; columns: readonly Column[]; words: readonly string[]; toggle: () => void }): JSX.Element {
  const model = useModel();
  return (
    <>
      <div role="gridcell" class="name">
        <span class={row.group ? "twist" : "twist none"} aria-hidden="true" onClick={(e) => { e.stopPropagation(); toggle(); }}>{row.group ? (row.open ? "▾" : "▸") : ""}</span>
        <NameText name={nameOf(row)} words={words} />
        {row.depth === 1 && outline === "all" && <PartTag name={row.name} />}
        {row.run > 0 && <span class="tag">{exactText(row.run)} alike</span>}
        {row.odd && <span class="tag odd">unlike its siblings</span>}
        {row.level && <LevelMark level={row.level} />}
      </div>
      {columns.map((c) => <div key={c.name} role="gridcell" class={c.className}>{c.cell(row, model)}</div>)}
    </>
  );
}

function Head({ outline, columns }: { outline: OutlineName; columns: readonly Column[] }): JSX.Element {
  const model = useModel(), { sort } = model.lists.get(outline);
  const header = (name: string, className: string, key: SortKey | undefined, bar?: string) => (
    <div key={name} role="columnheader" class={className} {...(key ? { "aria-sort": sort.key !== key ? "none" as const : sort.descending ? "descending" as const : "ascending" as const } : {})}>
      {key ? <button type="button" class="sort" onClick={() => void model.lists.sortBy(outline, key)}>{bar && <span class="of-bar">{bar}</span>}{name}<span aria-hidden="true">{sort.key === key ? (sort.descending ? " ▾" : " ▴") : ""}</span></button> : name}
    </div>
  );
  return <div role="row" class="head row" aria-rowindex={1}>{header("Name", "name", "name")}{columns.map((c) => header(c.name, c.className, c.sort, c.bar))}</div>;
}

type KeyActions = Readonly<Record<string, () => Promise<void>>>;

/** What each key does. An action acts on the rows that the earlier keys left, because a fast typist is ahead of the
 *  worker. */
function keysOf(model: Model, outline: OutlineName, page: number, choose: (row: Row) => void, isNarrow: boolean): KeyActions {
  const listing = () => model.lists.get(outline);
  const moveTo = (where: (at: number) => number) => async () => {
    await model.lists.settled(outline);
    model.lists.setCursor(outline, where(listing().cursor));
    if (!model.selected || isNarrow) return;
    const row = await model.lists.rowAt(outline, listing().cursor); // an entry that is shown follows the cursor
    if (row?.entry !== undefined) choose(row);
  };
  const onRow = (body: (row: Row, at: number) => unknown) => async () => {
    const at = listing().cursor, row = await model.lists.rowAt(outline, at);
    if (row) await body(row, at);
  };
  const act = (row: Row, what: Act) => model.lists.act(outline, row.node, what);
  return {
    ArrowDown: moveTo((at) => at + 1), ArrowUp: moveTo((at) => at - 1), Home: moveTo(() => 0), End: moveTo(() => listing().count - 1),
    PageDown: moveTo((at) => at + page), PageUp: moveTo((at) => at - page),
    ArrowRight: onRow((row, at) => row.group && (row.open ? model.lists.setCursor(outline, at + 1) : act(row, "open"))),
    ArrowLeft: onRow(async (row, at) => row.group && row.open ? act(row, "close") : model.lists.setCursor(outline, await model.lists.parentOf(outline, at))),
    Enter: onRow(choose), " ": onRow(choose),
    "*": onRow((row) => act(row, "open-all")),
    u: onRow((row) => row.run && act(row, row.folded ? "unfold" : "fold")),
  };
}

const MOST_SEARCHED = 4096, TYPING_MS = 800;

/** Goes to the next row whose name begins with what was typed. */
async function goToName(model: Model, outline: OutlineName, typed: string): Promise<void> {
  const { cursor, count } = model.lists.get(outline), from = typed.length > 1 ? cursor : cursor + 1;
  for (let i = 0; i < Math.min(count, MOST_SEARCHED); i++) {
    const at = (from + i) % count, row = await model.lists.rowAt(outline, at);
    if (row?.name.toLowerCase().startsWith(typed.toLowerCase())) return model.lists.setCursor(outline, at);
  }
}

export function Tree({ outline, label }: { outline: OutlineName; label: string }): JSX.Element {
  const model = useModel();
  const listing = model.lists.get(outline), columns = columnsOf(outline, model), words = wordsOf(listing.filter).map(visible);
  const isNarrow = useNarrow(), HEIGHT = isNarrow ? NARROW_HEIGHT : WIDE_HEIGHT;
  const box = useRef<HTMLDivElement>(null);
  const typed = useRef(Promise.resolve());
  const [top, setTop] = useState(0); // in pixels, as if all rows had their full height
  const [height, setHeight] = useState(600);
  const tall = listing.count * HEIGHT + HEAD, shown = Math.min(tall, LIMIT); // both with the head
  const most = Math.max(0, tall - height), scale = shown > height ? most / (shown - height) : 1;

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const watch = new ResizeObserver(() => setHeight(element.clientHeight));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);

  const scrollTo = (pixels: number) => {
    const to = Math.max(0, Math.min(pixels, most));
    if (box.current) box.current.scrollTop = to / scale;
    setTop(to);
  };
  const bringIntoView = (index: number) => {
    const at = index * HEIGHT, head = HEAD;
    if (at < top) scrollTo(at);
    else if (at + HEIGHT > top + height - head) scrollTo(at + HEIGHT - height + head);
  };
  useEffect(() => {
    if (listing.goTo === undefined) return;
    scrollTo(listing.goTo * HEIGHT - height / 3);
    listing.goTo = undefined;
  });
  useEffect(() => {
    if (!listing.follow) return;
    listing.follow = false;
    bringIntoView(listing.cursor);
  });

  const toggle = (row: Row) => model.lists.act(outline, row.node, row.open ? "close" : "open");
  const choose = (row: Row) => {
    if (row.entry === undefined) void toggle(row);
    else if (row.compared?.mark !== "only-b") void model.choose(row.entry, row.fqn, row.compared);
    else model.chooseOther(row.entry, row.fqn, row.compared);
  };
  const word = useRef({ text: "", at: 0 });
  const onKey = (e: KeyboardEvent) => {
    if (e.target !== box.current || e.ctrlKey || e.metaKey || e.altKey) return;
    const isWord = word.current.text !== "" && e.timeStamp - word.current.at < TYPING_MS && e.key.length === 1 && e.key !== " ";
    let act = isWord ? undefined : keysOf(model, outline, Math.max(1, Math.floor(height / HEIGHT) - 2), choose, isNarrow)[e.key];
    if (!act && /^[\p{L}\p{N}_]$/u.test(e.key)) {
      word.current = { text: isWord ? word.current.text + e.key : e.key, at: e.timeStamp };
      const { text } = word.current;
      act = () => goToName(model, outline, text);
    }
    if (!act) return;
    e.preventDefault();
    typed.current = typed.current.then(act).catch(() => undefined); // The page on which the key was typed has been closed.
  };

  const first = Math.max(0, Math.floor(top / HEIGHT) - 2), last = Math.min(listing.count, first + Math.ceil(height / HEIGHT) + 4);
  const pool = Math.ceil(height / HEIGHT) + 6; // Row elements that leave on one side are used again on the other.
  const rows: JSX.Element[] = [];
  for (let i = first; i < last; i++) {
    const row = model.lists.row(outline, i);
    const selected = row?.entry !== undefined && row.entry === model.selected?.entry && (outline === "compare") === (model.selected.compared !== undefined);
    rows.push(
      <div key={i % pool} id={`${outline}-${i}`} role="row" aria-rowindex={i + 2} aria-level={row?.depth ?? 1} aria-busy={row === undefined} {...(row?.group ? { "aria-expanded": row.open } : {})} aria-selected={selected}
        class={`row${i === listing.cursor ? " cursor" : ""}${selected ? " selected" : ""}${row?.group ? " group" : ""}`}
        style={{ transform: `translateY(${i * HEIGHT - top}px)`, "--depth": String(row?.depth ?? 1) }}
        onClick={() => { model.lists.setCursor(outline, i); if (row) choose(row); }}>
        <Cells row={row ?? BLANK} outline={outline} columns={columns} words={words} toggle={() => { if (row) void toggle(row); }} />
      </div>);
  }
  const folded = model.lists.row(outline, listing.cursor);
  return (
    <div class="grid-frame">
      {folded && folded.run > 0 && <p class="hint"><button type="button" class="small" onClick={() => void model.lists.act(outline, folded.node, folded.folded ? "unfold" : "fold")}>{folded.folded ? `Show all ${exactText(folded.run)} alike` : `Fold ${exactText(folded.run)} alike`} <kbd>u</kbd></button></p>}
      {outline === "all" && listing.count === 0 && listing.kept === undefined && <p class="nothing quiet">The checkpoint has no entries.</p>}
      {listing.kept === 0 && !listing.isArranging && <p class="nothing quiet">No entry matches the filter. <button type="button" class="small" onClick={() => void model.lists.filter(outline, "")}>Clear the filter</button></p>}
      <div ref={box} class="grid" role="treegrid" aria-label={label} aria-rowcount={listing.count + 1} aria-colcount={columns.length + 1} aria-busy={listing.isArranging} tabIndex={0}
        aria-activedescendant={listing.cursor >= first && listing.cursor < last ? `${outline}-${listing.cursor}` : undefined}
        onKeyDown={onKey} onScroll={(e) => setTop(Math.min(e.currentTarget.scrollTop * scale, most))}>
        <Head outline={outline} columns={columns} />
        <div class="window" role="presentation" style={{ height: `${Math.max(0, height - HEAD)}px` }}>{rows}</div>
        <div role="presentation" style={{ height: `${Math.max(0, shown - height)}px` }} />
      </div>
    </div>
  );
}
