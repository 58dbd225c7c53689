/** The light or dark theme. The page follows the system until a person chooses one. */
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
    try { localStorage.setItem("theme", theme); } catch { /* The choice is then valid only until the page is closed. */ }
    setDark(!isDark);
  };
  return <button type="button" onClick={flip} aria-label={isDark ? "Light colours" : "Dark colours"}>{isDark ? "☀" : "☾"}</button>;
}
