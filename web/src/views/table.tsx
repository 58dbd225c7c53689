/** A table that scrolls on its own where it has no room, and a sentence about the rows beyond `most`. */
import type { JSX } from "preact";
import { exactText } from "../text";

interface TableProps<Row> {
  readonly label: string;
  readonly head: JSX.Element;
  readonly rows: readonly Row[];
  readonly row: (row: Row, index: number) => JSX.Element;
  readonly most?: number;
  /** What the sentence says after the number. */
  readonly more?: string;
  readonly kind?: "wide" | "series";
  readonly isTall?: boolean;
  readonly onLeave?: () => void;
}

export function Table<Row>({ label, head, rows, row, most = Infinity, more = "", kind, isTall, onLeave }: TableProps<Row>): JSX.Element {
  return (
    <>
      <div class={isTall ? "scroll tall" : "scroll"} tabIndex={0} role="region" aria-label={label}>
        <table class={kind}><thead><tr>{head}</tr></thead><tbody onPointerLeave={onLeave}>{rows.slice(0, most).map(row)}</tbody></table>
      </div>
      {rows.length > most && <p class="quiet">… and {exactText(rows.length - most)} more{more}.</p>}
    </>
  );
}
