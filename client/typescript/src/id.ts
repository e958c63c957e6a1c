/** Returns a unique ID for an order or a request, which sorts by time (UUID version 7, RFC 9562). */
export function newId(): string {
  const bytes = new DataView(crypto.getRandomValues(new Uint8Array(16)).buffer);
  const now = Date.now();
  bytes.setUint32(0, now / 0x10000);
  bytes.setUint16(4, now % 0x10000);
  bytes.setUint8(6, 0x70 | (bytes.getUint8(6) & 0x0f));
  bytes.setUint8(8, 0x80 | (bytes.getUint8(8) & 0x3f));
  const hex = Array.from(new Uint8Array(bytes.buffer), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
