/** Light or dark: the system's choice until another is made. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";

const systemIsDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const saved = () => { try { return localStorage.getItem("theme"); } catch { return null; } };

function apply(theme: string | null): void {
  if (theme) document.documentElement.dataset["theme"] = theme;
}

apply(saved());

export function Theme(): JSX.Element {
  const [isDark, setDark] = useState(saved() ? saved() === "dark" : systemIsDark());
  const flip = () => {
    const theme = isDark ? "light" : "dark";
    apply(theme);
    try { localStorage.setItem("theme", theme); } catch { /* it holds for this page then */ }
    setDark(!isDark);
  };
  return <button type="button" onClick={flip} aria-label={isDark ? "Light colours" : "Dark colours"}>{isDark ? "☀" : "☾"}</button>;
}
