// Settings in browser storage; without storage they last until the page is closed.

export function remember(key, value) {
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, value);
  } catch {
    // storage is switched off
  }
}

const KEY = "litebert.key"; // for this browser tab only
let kept = null;

export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? kept;
  } catch {
    return kept;
  }
}

export function keepApiKey(key) {
  kept = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // storage is switched off: the key lasts until the page is closed
  }
}
