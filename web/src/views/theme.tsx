/** The light or dark theme. The page follows the system until a person chooses one. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useMedia } from "./hooks";

const saved = () => { try { return localStorage.getItem("theme"); } catch { return null; } };

function apply(theme: string | null): void {
  if (theme) document.documentElement.dataset["theme"] = theme;
}

apply(saved());

export function Theme(): JSX.Element {
  const [chosen, setChosen] = useState(saved()), isSystemDark = useMedia("(prefers-color-scheme: dark)"), isDark = chosen ? chosen === "dark" : isSystemDark;
  const flip = () => {
    const theme = isDark ? "light" : "dark";
    apply(theme);
    try { localStorage.setItem("theme", theme); } catch { /* The choice is then valid only until the page is closed. */ }
    setChosen(theme);
  };
  return <button type="button" class="ghost icon" onClick={flip} aria-label={isDark ? "Light colours" : "Dark colours"}><svg viewBox="0 0 16 16" aria-hidden="true"><path d={isDark ? "M8 1v2M8 13v2M1 8h2M13 8h2M3 3l1.4 1.4M11.6 11.6 13 13M3 13l1.4-1.4M11.6 4.4 13 3M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6z" : "M13.5 10A6 6 0 0 1 6 2.5a6 6 0 1 0 7.5 7.5z"} /></svg></button>;
}
