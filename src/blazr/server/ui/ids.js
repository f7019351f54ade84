// Names for what is kept.

// Secure contexts alone have randomUUID, and this page may come from another machine.
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
