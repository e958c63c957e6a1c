import { Webhook, WebhookVerificationError } from "standardwebhooks";
import type { PawlEvent } from "./types.js";

/** A webhook is not signed with any of the secrets, or not about now. */
export class SignatureError extends Error {
  override readonly name = "SignatureError";
}

/** What a server calls the headers of a request. */
export type WebhookHeaders = Headers | Record<string, string | string[] | undefined>;

/** The shortest key: 16 bytes in base64. With a shorter one, or none, anybody could sign. */
const minKey = 22;

/**
 * Returns the event that a webhook delivered, or throws a SignatureError: it is not from the service, was changed, or was
 * signed more than five minutes ago. The body must be as it came, byte for byte. Give both secrets while one is replaced.
 */
export function verifyWebhook(secrets: string | readonly string[], headers: WebhookHeaders, body: string | Uint8Array): PawlEvent {
  const text = typeof body === "string" ? body : new TextDecoder().decode(body);
  const entries = headers instanceof Headers ? [...headers] : Object.entries(headers);
  const plain = Object.fromEntries(entries.map(([name, value]) => [name, String(value ?? "")]));
  for (const secret of typeof secrets === "string" ? [secrets] : secrets) {
    if (secret.replace(/^whsec_|=+$/g, "").length < minKey) throw new Error("secret of the webhook: want whsec_ and at least 16 bytes in base64");
    try {
      return new Webhook(secret).verify(text, plain) as PawlEvent;
    } catch (error) {
      if (!(error instanceof WebhookVerificationError)) throw error; // the secret is none
    }
  }
  throw new SignatureError("the signature of the webhook does not fit");
}
