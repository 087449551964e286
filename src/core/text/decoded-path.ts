/** Returns a path as a server may read it that undoes the percent-encoding of ASCII characters, slashes too. */
export function decodedPath(path: string): string {
  if (!path.includes('%')) return path
  return path.replace(/%([0-7][0-9a-f])/gi, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)))
}
