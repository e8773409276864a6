// Dark or light: what the system says, until the reader chooses.
import { useEffect, useState } from "preact/hooks";

export type Theme = "dark" | "light";

const KEPT = "onelog.theme";
const watchers = new Set<(theme: Theme) => void>();
const system = matchMedia("(prefers-color-scheme: dark)");

function kept(): Theme | null {
  try {
    const found = localStorage.getItem(KEPT);
    return found === "dark" || found === "light" ? found : null;
  } catch {
    return null;
  }
}

export function themeNow(): Theme {
  return kept() ?? (system.matches ? "dark" : "light");
}

export function showTheme(): void {
  document.documentElement.dataset.theme = themeNow();
  for (const tell of watchers) tell(themeNow());
}

export function turnTheme(): void {
  try {
    localStorage.setItem(KEPT, themeNow() === "dark" ? "light" : "dark");
  } catch {
    // a browser that keeps nothing follows its system
  }
  showTheme();
}

system.addEventListener("change", showTheme);

export function useTheme(): Theme {
  const [theme, setTheme] = useState(themeNow);
  useEffect(() => {
    watchers.add(setTheme);
    return () => {
      watchers.delete(setTheme);
    };
  }, []);
  return theme;
}
