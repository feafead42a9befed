// Requests to this server; a busy one is asked again, as it says.

const TRIES = 6;

export class Refused extends Error {}

export async function ask(path, { body, signal, type = "application/json" } = {}) {
  const options = body === undefined ? { signal }
    : { method: "POST", signal, headers: { "content-type": type }, body: type === "application/json" ? JSON.stringify(body) : body };
  for (let tried = 1; ; tried += 1) {
    const reply = await fetch(path, options);
    if (reply.ok) return reply;
    if (reply.status === 503 && tried < TRIES) {
      const seconds = Number(reply.headers.get("retry-after")) || 1;
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds * (0.5 + Math.random())));
      signal?.throwIfAborted();
      continue;
    }
    const told = await reply.json().catch(() => ({}));
    throw new Refused(told.error || `the server answered ${reply.status}`);
  }
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

export function told(error) {
  return error instanceof Refused ? error.message : "the server cannot be reached; is it still running?";
}
