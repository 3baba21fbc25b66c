// Talking to the server this page came from, and to nobody else.

import { apiKey, keepApiKey } from "./storage.js";

/** What went wrong. `status` 0: no answer came. */
export class Failure extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let keyWanted = null; // shared by all requests that wait for a key

/** Who asks for the key: called with whether one was refused, gives a promise of the key. */
export const keyAsker = { ask: null };

async function key(refused) {
  keyWanted ??= keyAsker.ask(refused).finally(() => (keyWanted = null));
  keepApiKey(await keyWanted);
}

async function send(path, { method, body, signal }) {
  for (;;) {
    const given = apiKey();
    const headers = {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (given) headers.Authorization = `Bearer ${given}`;
    let answer;
    try {
      answer = await fetch(path, {
        method,
        headers,
        signal,
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure(0, "");
    }
    if (answer.ok) return answer;
    if (answer.status !== 401) throw await failureOf(answer);
    if (given === apiKey()) await key(Boolean(given)); // else another request has got a new one meanwhile
  }
}

async function failureOf(answer) {
  let message = "";
  try {
    message = (await answer.json()).error?.message ?? "";
  } catch {
    // not ours: a proxy's page, say
  }
  return new Failure(answer.status, message, Number(answer.headers.get("Retry-After")) || null);
}

export async function get(path, signal) {
  return (await send(path, { method: "GET", signal })).json();
}

const LONGEST_SHOWN = 4000;
let posted = null;

/** The last question: its path and its body. */
export const lastPosted = () => posted;

/** A question as a command for a shell; "" where it would be too long to read. */
export function asCommand({ path, body }) {
  const data = JSON.stringify(body).replaceAll("'", "'\\''"); // as a shell wants it between quotes
  const key = apiKey() ? ` -H "Authorization: Bearer $LITEBERT_KEY"` : "";
  const address = new URL(path, document.baseURI).href;
  return data.length > LONGEST_SHOWN ? "" : `curl ${address} -H 'Content-Type: application/json'${key} -d '${data}'`;
}

export async function post(path, body, signal) {
  posted = { path, body };
  return (await send(path, { method: "POST", body, signal })).json();
}

export async function remove(path) {
  await send(path, { method: "DELETE" });
}

export async function download(path) {
  return (await send(path, { method: "GET" })).blob();
}
