// Requests to the server of this page.

import { apiKey, keepApiKey } from "./storage.js";

/** A failed request; `status` 0 means that there was no response. */
export class Failure extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let pendingKey = null; // shared by all requests that wait for an API key

/** `ask(refused)` asks the user for an API key and returns a promise of it; `refused`: the last one was rejected. */
export const keyAsker = { ask: null };

async function requestKey(refused) {
  pendingKey ??= keyAsker.ask(refused).finally(() => (pendingKey = null));
  keepApiKey(await pendingKey);
}

async function send(path, { method, body, signal }) {
  for (;;) {
    const sentKey = apiKey();
    const headers = {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (sentKey) headers.Authorization = `Bearer ${sentKey}`;
    let response;
    try {
      response = await fetch(path, {
        method,
        headers,
        signal,
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure(0, "");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw await failureOf(response);
    if (sentKey === apiKey()) await requestKey(Boolean(sentKey)); // else another request has got a new key meanwhile
  }
}

async function failureOf(response) {
  let message = "";
  try {
    message = (await response.json()).error?.message ?? "";
  } catch {
    // not JSON, such as the error page of a proxy
  }
  return new Failure(response.status, message, Number(response.headers.get("Retry-After")) || null);
}

export async function get(path, signal) {
  return (await send(path, { method: "GET", signal })).json();
}

const MAX_COMMAND_CHARACTERS = 4000;
let lastRequest = null;

/** Path and body of the last POST request. */
export const lastPosted = () => lastRequest;

/** A request as a curl command; "" if it would be too long to read. */
export function asCommand({ path, body }) {
  const data = JSON.stringify(body).replaceAll("'", "'\\''"); // escaped for single quotes in a shell
  const key = apiKey() ? ` -H "Authorization: Bearer $LITEBERT_KEY"` : "";
  const address = new URL(path, document.baseURI).href;
  return data.length > MAX_COMMAND_CHARACTERS ? "" : `curl ${address} -H 'Content-Type: application/json'${key} -d '${data}'`;
}

export async function post(path, body, signal) {
  lastRequest = { path, body };
  return (await send(path, { method: "POST", body, signal })).json();
}

export async function remove(path) {
  await send(path, { method: "DELETE" });
}

export async function download(path) {
  return (await send(path, { method: "GET" })).blob();
}
