import { backoff, parts, pause } from "./http.js";
import { PawlError } from "./problem.js";
import type { PawlEvent } from "./types.js";

/** Milliseconds of silence after which a connection counts as lost. The service sends something every 15 seconds. */
const longestSilence = 45_000;

/** Opens the stream of events, after a cursor if there is one. */
export type Open = (cursor: string | undefined, signal: AbortSignal | undefined) => Promise<Response>;

/** Iterates over the events of a stream (Server-Sent Events). When it ends, it is opened again after the last event. */
export async function* follow(open: Open, signal: AbortSignal | undefined): AsyncGenerator<PawlEvent, void> {
  let cursor: string | undefined;
  for (let attempt = 1; ; attempt++) {
    let retry = 0;
    try {
      for await (const block of parts(await open(cursor, signal), "\n\n", signal, longestSilence)) {
        attempt = 1;
        retry = Number(field(block, "retry") ?? retry);
        const data = field(block, "data");
        if (data !== undefined) yield JSON.parse(data) as PawlEvent;
        cursor = field(block, "id") ?? cursor; // also without an event, for events that the filter left out
      }
    } catch (error) {
      if (error instanceof PawlError || signal?.aborted) throw error;
    }
    await pause(Math.max(retry, backoff(attempt)), signal);
  }
}

function field(block: string, name: string): string | undefined {
  const line = block.split("\n").find((line) => line.startsWith(`${name}:`));
  return line?.slice(name.length + 1).trimStart();
}
