/** Color theme: light, dark, or the system's. */

const THEME_STORAGE_KEY = 'continuo.theme';

export function applyTheme(): void {
  document.documentElement.dataset.theme = localStorage.getItem(THEME_STORAGE_KEY) ?? 'system';
}

/** Switch between light and dark. */
export function switchTheme(): void {
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  const chosen = document.documentElement.dataset.theme;
  const current = chosen === 'light' || chosen === 'dark' ? chosen : system;
  localStorage.setItem(THEME_STORAGE_KEY, current === 'dark' ? 'light' : 'dark');
  applyTheme();
}
