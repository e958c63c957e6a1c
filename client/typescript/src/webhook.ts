import { Webhook, WebhookVerificationError } from "standardwebhooks";
import type { PawlEvent } from "./types.js";

/** A webhook was not recently signed with any of the secrets. */
export class SignatureError extends Error {
  override readonly name = "SignatureError";
}

/** The headers of a request, in the forms of servers. */
export type WebhookHeaders = Headers | Record<string, string | string[] | undefined>;

/** The shortest key: 16 bytes in base64. A shorter one could be guessed. */
const minKey = 22;

/**
 * Returns the event of a webhook, or throws a SignatureError if it is not from the service, was changed, or was signed
 * more than five minutes ago. The body must be unchanged, byte for byte. While a secret is being rotated, pass both.
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
      if (!(error instanceof WebhookVerificationError)) throw error; // the secret is not valid
    }
  }
  throw new SignatureError("the signature of the webhook does not fit");
}
