/** Returns a URL or a path without slashes at its end. Looks at each character once, however many slashes there are. */
export function withoutTrailingSlashes(text: string): string {
  return text.replace(/(?<!\/)\/+$/, '')
}
