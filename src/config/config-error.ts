/** Thrown for a configuration that can't be used; the message has one line per problem and says what to do. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError'
}
