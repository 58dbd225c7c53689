/** The findings, grouped by rule. Each group shows the cause and the fix once and then every place. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { saveText } from "../download";
import type { Finding, Level } from "../protocol";
import { sizeOf, type Model } from "../model";
import type { View } from "../route";
import { absentText, bytesText, exactText, plural, visible } from "../text";
import { useModel } from "./hooks";
import { Later } from "./later";
import { LevelMark, More } from "./parts";
import { isBad, ScanView } from "./scan";

const LEVELS: readonly Level[] = ["error", "warning", "note"];
const FIRST = 8, MOST = 2000, MISSING = "dcp/missing-file";

interface Group { readonly rule: string; readonly level: Level; readonly findings: readonly Finding[]; readonly count: number }

/** The findings by rule, the gravest first. */
export function groupsOf(model: Model): Group[] {
  const groups = new Map<string, Finding[]>(), { findings } = model;
  for (const f of findings?.list ?? []) groups.set(`${f.level} ${f.rule}`, [...groups.get(`${f.level} ${f.rule}`) ?? [], f]);
  const list = [...groups.values()].map((all): Group => {
    const { rule = "", level = "note" } = all[0] ?? {};
    return { rule, level, findings: all, count: all.length + (findings?.unlisted[rule] ?? 0) };
  });
  return list.sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level));
}

/** What is said of a checkpoint without data files, in place of a finding per file. */
export const loneText = (model: Model, { rule, count }: Group): string | undefined =>
  model.opened?.isMetadataOnly && rule === MISSING ? `Only the metadata is here: ${exactText(count)} of ${plural(count, "data file")} ${count === 1 ? "is" : "are"} absent.` : undefined;

/** If every data file is absent, that counts as one problem, however many files there are. */
const countOf = (group: Group, model: Model): number => loneText(model, group) ? 1 : group.count;

export function problemCount(model: Model): { errors: number; warnings: number; notes: number } {
  const of = (level: Level) => groupsOf(model).filter((g) => g.level === level).reduce((sum, g) => sum + countOf(g, model), 0);
  return { errors: of("error"), warnings: of("warning") + (model.scan?.suspects.filter(isBad).length ?? 0), notes: of("note") };
}

function Place({ finding: { message, file, byte_offset: at, fqn }, show }: { finding: Finding; show: (fqn: string) => void }): JSX.Element {
  return (
    <li>
      <p class="message">{visible(message)}</p>
      {(file !== undefined || fqn !== undefined) && <p class="quiet">
        {file !== undefined && <>In {visible(file)}{at !== undefined && Number.isSafeInteger(at) && <>, at byte {exactText(at)}</>}. </>}
        {fqn !== undefined && <button type="button" class="link" onClick={() => show(fqn)}>{visible(fqn)}</button>}
      </p>}
    </li>
  );
}

/** The module's help about a rule. Its first line says what the problem is, the rest what to do. */
function Help({ text }: { text: string }): JSX.Element {
  const [cause = "", ...fix] = text.split(/\n\n|\n/).filter(Boolean);
  return <><p>{cause}</p>{fix.length > 0 && <p class="quiet">{fix.join(" ")}</p>}</>;
}

function GroupView({ group, show }: { group: Group; show: (fqn: string) => void }): JSX.Element {
  const model = useModel(), [isOpen, setOpen] = useState(false), { rule, level, findings } = group;
  const lone = loneText(model, group);
  const list = findings.slice(0, isOpen ? MOST : FIRST);
  return (
    <li class={level}>
      <h2><LevelMark level={level} text /> <code>{rule}</code> <span class="quiet">{!lone && group.count > 1 && plural(group.count, "time")}</span></h2>
      {lone ? <><p>{lone} Names, shapes and shards are known; values are not.</p><p class="quiet">Open the checkpoint together with the files of every rank.</p></> : <Help text={model.findings?.help[rule] ?? ""} />}
      <ul class="places">{lone ? list.map((f) => <li key={f.file}>{visible(f.file ?? "")}</li>) : list.map((f, i) => <Place key={i} finding={f} show={show} />)}</ul>
      {findings.length > FIRST && <button type="button" class="small" onClick={() => setOpen(!isOpen)}>{isOpen ? "Show fewer" : `Show all ${exactText(findings.length)}`}</button>}
      {group.count > findings.length && <p class="quiet">{exactText(group.count - findings.length)} more were counted and are not listed.</p>}
      {isOpen && findings.length > MOST && <p class="quiet">The first {exactText(MOST)} are shown; the export has them all.</p>}
    </li>
  );
}

const loadOpenAs = async () => (await import("./open_as")).OpenAs;

/** Forms of findings for other programs, and the names of the files. */
const REPORTS = [
  { title: "SARIF", format: "sarif", name: "findings.sarif" },
  { title: "JUnit", format: "junit", name: "findings.xml" },
  { title: "GitHub", format: "github", name: "findings.txt" },
] as const;

export function Problems({ show, go }: { show: (fqn: string) => void; go: (view: View) => void }): JSX.Element {
  const model = useModel();
  const [hidden, setHidden] = useState<ReadonlySet<Level>>(new Set());
  const groups = groupsOf(model), counts = problemCount(model), { opened } = model, absent = opened?.overview.absent.length ?? 0;
  const number: Record<Level, number> = { error: counts.errors, warning: counts.warnings, note: counts.notes };
  const asks = model.findings?.list.some(({ message, rule }) => /--(part|shards)/.test(message + model.findings?.help[rule]));
  const save = async ({ format, name }: (typeof REPORTS)[number]) => {
    const text = await model.run("Writing the report", undefined, () => model.client.call("report", { findings: model.findings?.text ?? "", format }), model.hear);
    if (text !== undefined) saveText(name, text);
  };
  const flip = (level: Level) => setHidden((h) => { const next = new Set(h); if (!next.delete(level)) next.add(level); return next; });
  const found = LEVELS.filter((level) => number[level] > 0);
  const state = model.scan && counts.warnings ? "Metadata, headers and sizes have no problems. Values do, as the scan below lists."
    : model.isDeep ? "Every byte was checked. No problems were found."
    : `Metadata, headers and sizes were checked. No problems were found.${model.scan ? "" : " Values have not been read."}`; // what a scan found is below
  return (
    <section class="view" aria-label="Problems">
      <p role="status" class={groups.length ? "quiet" : ""}>{groups.length === 0 ? state : model.isDeep && (opened?.overview.missing_chunks ? "Every byte that is here was checked." : "Every byte was checked.")}</p>
      <p class="buttons">
        {!opened?.isMetadataOnly && !model.isDeep && <button type="button" onClick={() => void model.deepCheck()}>Check every byte (reads {bytesText(sizeOf(model.opening))})</button>}
        {absent === 0 && !model.scan && <button type="button" onClick={() => void model.scanValues()}>Scan the values of all tensors (reads {bytesText(opened?.overview.bytes ?? 0)})</button>}
        <button type="button" onClick={() => go("load")}>Would it load?</button>
        <span class="space" />
        {groups.length > 0 && <More label="Export">
          <button type="button" class="ghost" onClick={() => saveText("findings.json", model.findings?.text ?? "")}>Export JSON</button>
          {REPORTS.map((report) => <button key={report.format} type="button" class="ghost" onClick={() => void save(report)}>Export {report.title}</button>)}
        </More>}
      </p>
      {absent > 0 && !opened?.isMetadataOnly && <p class="quiet">Values cannot be scanned, because {absentText(absent)}.</p>}
      {found.length > 1 && <p class="chip-line" role="group" aria-label="Levels">{found.map((level) => <button key={level} type="button" class="chip" aria-pressed={!hidden.has(level)} onClick={() => flip(level)}>{plural(number[level], level)}</button>)}</p>}
      <ul class="findings">{groups.filter((g) => !hidden.has(g.level)).map((g) => <GroupView key={`${g.level} ${g.rule}`} group={g} show={show} />)}</ul>
      {asks && <Later load={loadOpenAs} why="--part" />}
      <ScanView show={show} />
    </section>
  );
}
