/** The parts of the questions that Convert and Reshard ask. */
import type { ComponentChildren, JSX } from "preact";

export function Text({ label, value = "", hint, set }: { label: string; value: string | undefined; hint: string; set: (value: string) => void }): JSX.Element {
  return <label>{label}<input type="text" value={value} placeholder={hint} spellcheck={false} onInput={(e) => set(e.currentTarget.value)} /></label>;
}

/** `text` is the label that is shown, if that is not the name of the field. */
export function Select<V extends string>({ label, text = label, value, options, set }: { label: string; text?: string; value: V; options: readonly (readonly [V, string])[]; set: (value: V) => void }): JSX.Element {
  return <label>{text}<select aria-label={label} value={value} onChange={(e) => set(e.currentTarget.value as V)}>{options.map(([v, name]) => <option key={v} value={v}>{name}</option>)}</select></label>;
}

export const Check = ({ label, isOn = false, set }: { label: string; isOn: boolean | undefined; set: (to: boolean) => void }): JSX.Element =>
  <label class="check broad"><input type="checkbox" checked={isOn} onChange={(e) => set(e.currentTarget.checked)} /> {label}</label>;

/** One of several answers to a question, with what it means here. */
export function Answer({ name, label, isChosen, choose, children }: { name: string; label: string; isChosen: boolean; choose: () => void; children?: ComponentChildren }): JSX.Element {
  return <label class="answer"><input type="radio" name={name} aria-label={label} checked={isChosen} onChange={choose} /><span><strong>{label}</strong> <span class="quiet">{children}</span></span></label>;
}

/** The questions, and what follows from the answers: next to each other where there is room. */
export const Asking = ({ questions, children }: { questions: ComponentChildren; children: ComponentChildren }): JSX.Element =>
  <div class="asking"><div>{questions}</div><div class="outcome">{children}</div></div>;
