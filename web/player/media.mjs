// Whether this page may play video that a script puts together. A content policy can forbid it although the browser can.

const PATIENCE = 1000; // ms

/** True when a policy text lets media come from blob: addresses. */
export function policyAllowsBlobs(policy) {
  if (!policy) return true;
  const rules = new Map(
    policy.split(";").map((rule) => {
      const [name, ...sources] = rule.trim().toLowerCase().split(/\s+/);
      return [name, sources];
    }),
  );
  const sources = rules.get("media-src") ?? rules.get("default-src");
  return sources === undefined || sources.includes("blob:");
}

/**
 * Attach a MediaSource and see whether it opens; types and policies promise too much. The policy is read first, because
 * a refused attempt is an error message in the console. `policy` is the header of any answer of the server.
 */
export async function canAssembleVideo(mime, policy) {
  if (!globalThis.MediaSource?.isTypeSupported(mime) || !policyAllowsBlobs(policy)) return false;
  const source = new MediaSource();
  const video = document.createElement("video");
  video.muted = true;
  const address = URL.createObjectURL(source);
  const opened = await new Promise((resolve) => {
    source.addEventListener("sourceopen", () => resolve(true), { once: true });
    video.addEventListener("error", () => resolve(false), { once: true });
    setTimeout(() => resolve(false), PATIENCE);
    video.src = address;
  });
  URL.revokeObjectURL(address);
  video.removeAttribute("src");
  video.load();
  return opened;
}
