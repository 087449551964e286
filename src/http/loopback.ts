/** Returns whether a host name or address, without port and brackets, is one of the loopback interface. */
export function isLoopback(host: string): boolean {
  return /^(?:(?:.+\.)?localhost|127\.\d+\.\d+\.\d+|::1)$/i.test(host)
}
