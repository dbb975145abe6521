/** Light, dark, or as the system has it. */

const THEME = 'continuo.theme';

export function applyTheme(): void {
  document.documentElement.dataset.theme = localStorage.getItem(THEME) ?? 'system';
}

/** To the other one of light and dark. */
export function switchTheme(): void {
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  const chosen = document.documentElement.dataset.theme;
  const now = chosen === 'light' || chosen === 'dark' ? chosen : system;
  localStorage.setItem(THEME, now === 'dark' ? 'light' : 'dark');
  applyTheme();
}
