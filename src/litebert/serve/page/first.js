// Set the remembered theme and language before the first paint, to avoid a flash.
(() => {
  const remembered = (key) => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null; // storage is switched off
    }
  };
  const root = document.documentElement;
  const theme = remembered("litebert.theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const language = remembered("litebert.language") ?? navigator.language ?? "en";
  root.lang = language.toLowerCase().startsWith("zh") ? "zh-CN" : "en";
})();
